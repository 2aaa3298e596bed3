"""Training that is killed and taken up again is the uninterrupted training, bit for bit."""

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from training_problems import classification, convolutional, perceptron

from coset import (
    SWAG,
    Checkpoint,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    RebasedGaussian,
)
from coset.inference import SGD, Adam
from coset.inference.beginnings import starting_points
from coset.inference.run_record import RunRecord, part_of
from coset.inference.training.parallel import train_stacks
from coset.inference.training.planning import Plan
from coset.weights import functionalise


class Noisy(nn.Module):
    """Draws from torch's own generator while it trains."""

    def __init__(self):
        super().__init__()
        self.inner = perceptron()

    def forward(self, inputs):
        noise = torch.randn_like(inputs) if self.training else torch.zeros_like(inputs)
        return self.inner(inputs + 0.1 * noise)


def held_out():
    generator = torch.Generator().manual_seed(9)
    return torch.randn(9, 4, generator=generator), torch.arange(9) % 3


SHORT = MaximumAPosteriori(epochs=5, batch_size=8)  # 3 steps an epoch
CASES = {
    "Adam": (SHORT, perceptron),
    "momentum": (replace(SHORT, optimiser=SGD(0.05)), perceptron),
    "no momentum": (replace(SHORT, optimiser=SGD(0.05, momentum=0.0)), perceptron),
    "batch norm": (SHORT, convolutional),
    "noise in the network": (SHORT, Noisy),
    "early stopping": (
        DeepEnsemble(
            4,
            replace(SHORT, epochs=14, validation=held_out(), patience=2, optimiser=Adam(0.02)),
        ),
        perceptron,
    ),
    "ensemble": (DeepEnsemble(3, SHORT), perceptron),
    "ensemble in several stacks": (DeepEnsemble(3, SHORT, memory=1), Noisy),
    "dropout": (MCDropout(SHORT), lambda: perceptron(0.3)),
    "SWAG": (SWAG(rank=2, base=replace(SHORT, epochs=2), epochs=3), perceptron),
    "SWAG with batch norm": (
        SWAG(rank=2, base=replace(SHORT, epochs=1), epochs=3, members=3),
        convolutional,
    ),
    "mean field": (MeanField(epochs=5, batch_size=8), perceptron),
    "mean field with noise in the network": (MeanField(epochs=5, batch_size=8), Noisy),
    "mean field, trained before": (
        MeanField(epochs=5, batch_size=8, base=SHORT, estimator="flipout"),
        perceptron,
    ),
    "modes": (MultiMode(MeanField(epochs=5, batch_size=8, base=SHORT), 2), perceptron),
    "modes of aligned ensembles": (
        MultiMode(RebasedGaussian(DeepEnsemble(2, replace(SHORT, epochs=2))), 2),
        perceptron,
    ),
}


class Killed(Exception):
    pass


def problem_of(build):
    torch.manual_seed(0)
    return classification(build(), (1, 6, 6) if build is convolutional else (4,))


def seeded():
    return torch.Generator().manual_seed(5)


def with_folder(method, folder, every=2):
    checkpoint = Checkpoint(folder, every)
    if hasattr(method, "inner"):
        return replace(method, inner=with_folder(method.inner, folder, every))
    return replace(method, checkpoint=checkpoint)


def numbers_of(posterior):
    drawn = posterior.sample(3, generator=torch.Generator().manual_seed(1))
    return {**drawn, **{k: torch.tensor(v) for k, v in posterior.report.diagnostics.items()}}


def assert_equal(first, second):
    ours, theirs = numbers_of(first), numbers_of(second)
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert first.report.likelihood == second.report.likelihood


def killed_at_write(monkeypatch, number, *, before):
    """The run ends at its ``number``-th record, before or after that is written."""
    write, count = RunRecord.write, itertools.count(1)  # its next is one for all threads

    def dying(self, snapshot):
        own = next(count)
        if own == number and before:
            raise Killed
        write(self, snapshot)
        if own == number:
            raise Killed

    monkeypatch.setattr(RunRecord, "write", dying)


@pytest.mark.parametrize("name", CASES)
def test_resumed_training_is_bitwise_equal(name, tmp_path, monkeypatch):
    method, build = CASES[name]
    problem = problem_of(build)
    whole = method.fit(problem, generator=seeded())
    for number, before in ((1, True), (3, False), (6, True)):
        resumed = with_folder(method, tmp_path / f"{number}{before}")
        with monkeypatch.context() as patch:
            killed_at_write(patch, number, before=before)
            with pytest.raises(Killed):
                resumed.fit(problem, generator=seeded())
        assert_equal(whole, resumed.fit(problem, generator=seeded()))
        assert_equal(whole, resumed.fit(problem, generator=seeded()))  # only read


@pytest.mark.parametrize("name", ["Adam", "dropout", "SWAG", "mean field", "early stopping"])
def test_a_run_may_be_killed_again_and_again(name, tmp_path, monkeypatch):
    method, build = CASES[name]
    problem = problem_of(build)
    whole, resumed = method.fit(problem, generator=seeded()), with_folder(method, tmp_path)
    for _ in range(60):
        with monkeypatch.context() as patch:
            killed_at_write(patch, 2, before=False)
            try:
                found = resumed.fit(problem, generator=seeded())
            except Killed:
                continue
        break
    assert_equal(whole, found)


def test_learnt_noise_and_the_callers_generator_are_taken_up(tmp_path, monkeypatch):
    inputs = torch.randn(20, 4)
    problem = classification(nn.Linear(4, 1), rows=20, likelihood=GaussianNoise())
    data = replace(problem.train, inputs=inputs, targets=inputs[:, :1] + torch.randn(20, 1))
    problem = replace(problem, train=data)
    for method in (SHORT, CASES["mean field"][0]):
        generator, folder = seeded(), tmp_path / type(method).__name__
        whole = method.fit(problem, generator=generator)
        with monkeypatch.context() as patch:
            killed_at_write(patch, 3, before=True)
            with pytest.raises(Killed):
                with_folder(method, folder).fit(problem, generator=seeded())
        again = seeded()
        assert_equal(whole, with_folder(method, folder).fit(problem, generator=again))
        assert torch.equal(again.get_state(), generator.get_state())


def test_killed_from_its_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("coset.inference.training.loop._REPORTS_PER_SECOND", float("inf"))
    problem = problem_of(perceptron)
    whole = SHORT.fit(problem, generator=seeded())

    def dying(done, line):
        if done > 0.5:
            raise Killed

    method = with_folder(SHORT, tmp_path)
    with pytest.raises(Killed):
        method.fit(problem, generator=seeded(), progress=dying)
    assert_equal(whole, method.fit(problem, generator=seeded()))


def test_finished_members_are_not_trained_again(tmp_path, monkeypatch):
    problem, method = problem_of(Noisy), CASES["ensemble in several stacks"][0]
    with monkeypatch.context() as patch:
        killed_at_write(patch, 12, before=False)  # 15 steps a member: 8 records each
        with pytest.raises(Killed):
            with_folder(method, tmp_path).fit(problem, generator=seeded())
    steps = []
    from coset.inference.training import loop

    step = loop._train_step
    monkeypatch.setattr(loop, "_train_step", lambda *args: steps.append(1) or step(*args))
    with_folder(method, tmp_path).fit(problem, generator=seeded())
    assert len(steps) == 7 + 15  # the second member from its eighth step on, and the third


def test_stacks_in_threads_are_taken_up_too(tmp_path, monkeypatch):
    problem, seeds = problem_of(perceptron), [1, 2, 3, 4]
    starts = starting_points(problem, None, seeds)

    def trained(checkpoint=None):
        return train_stacks(
            problem, starts, SHORT.recipe, seeds, Plan(2, 2), checkpoint=checkpoint
        ).weights

    whole = trained()
    with monkeypatch.context() as patch:
        killed_at_write(patch, 5, before=False)
        with pytest.raises(Killed):
            trained(Checkpoint(tmp_path, 2))
    resumed = trained(Checkpoint(tmp_path, 2))
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


SCRIPT = """
import sys, torch
sys.path[:0] = {paths!r}
torch.set_num_threads(1)
import test_resumed_training as here
method = here.with_folder(here.LONG, sys.argv[1], every=20)
method.fit(here.problem_of(here.perceptron), generator=here.seeded())
"""
LONG = DeepEnsemble(3, MaximumAPosteriori(epochs=20_000, batch_size=8))


def test_a_killed_process_leaves_a_run_that_goes_on(tmp_path):
    here = Path(__file__).parent
    script = SCRIPT.format(paths=[str(here), str(here.parent)])
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    state = tmp_path / "stack-000" / "state.safetensors"
    deadline = time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # the recipe is that of an endless run; its schedule makes a shorter one another run
    problem = problem_of(perceptron)
    short = with_folder(replace(LONG, base=replace(LONG.base, epochs=20)), tmp_path, every=20)
    with pytest.raises(CosetError, match="record of a run with recipe"):
        short.fit(problem, generator=seeded())
    until = _step_of(state) + 60
    went_on = _stopped_after(with_folder(LONG, tmp_path, every=20), problem, until)
    whole = _stopped_after(LONG, problem, until)
    for name, tensor in whole.items():
        assert torch.equal(tensor, went_on[name])


def _step_of(path):
    from coset.store import load_record

    return load_record(path)[1]["state"]["mapping"]["step"]


def _stopped_after(method, problem, steps):
    """The weights of a long run at some step."""
    from coset.inference.training import loop

    step, found = loop._train_step, {}

    def watched(run, state, batch):
        losses = step(run, state, batch)
        if state.step == steps:
            found.update({name: tensor.clone() for name, tensor in state.weights.items()})
            raise Killed
        return losses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_train_step", watched)
        with pytest.raises(Killed):
            method.fit(problem, generator=seeded())
    return found


def other_perceptron():
    """Weights of the same names and shapes, another function."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))


OTHERS = {
    "seeds": lambda m, p: (m, p, torch.Generator().manual_seed(6)),
    "recipe": lambda m, p: (replace(m, batch_size=9), p, seeded()),
    "network": lambda m, p: (m, replace(p, network=functionalise(other_perceptron())), seeded()),
    "prior": lambda m, p: (m, replace(p, prior=type(p.prior)(3.0)), seeded()),
    "data": lambda m, p: (
        m,
        replace(p, train=replace(p.train, inputs=p.train.inputs + 1)),
        seeded(),
    ),
    "numbers": lambda m, p: (m, doubled(p), seeded()),
    "kind": lambda m, p: (MeanField(batch_size=8), p, seeded()),
}


def doubled(problem):
    train = replace(problem.train, inputs=problem.train.inputs.double())
    return replace(problem, network=functionalise(perceptron().double()), train=train)


@pytest.mark.parametrize("name", OTHERS)
def test_the_record_of_another_run_is_refused(name, tmp_path):
    problem = problem_of(perceptron)
    with_folder(SHORT, tmp_path).fit(problem, generator=seeded())
    kept = (tmp_path / "state.safetensors").read_bytes()
    method, other, generator = OTHERS[name](SHORT, problem)
    with pytest.raises(CosetError, match=f"record of a run with {name}"):
        with_folder(method, tmp_path).fit(other, generator=generator)
    assert (tmp_path / "state.safetensors").read_bytes() == kept


def test_swag_does_not_go_on_with_another_rank(tmp_path):
    problem, method = problem_of(perceptron), with_folder(CASES["SWAG"][0], tmp_path)
    method.fit(problem, generator=seeded())
    with pytest.raises(CosetError, match=r"kind 'collection of rank 2'; needed .* rank 3'"):
        replace(method, rank=3).fit(problem, generator=seeded())


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_threads_is_that_of_the_run(workers, tmp_path, monkeypatch):
    """As many as the caller has: the workers of several stacks have one each."""
    problem, seeds = problem_of(perceptron), [1, 2]
    starts = starting_points(problem, None, seeds)

    def train(threads):
        monkeypatch.setattr("torch.get_num_threads", lambda: threads)
        monkeypatch.setattr("torch.set_num_threads", lambda count: None)
        folder = Checkpoint(tmp_path, 2)
        return train_stacks(
            problem, starts, SHORT.recipe, seeds, Plan(1, workers), checkpoint=folder
        )

    train(3)
    told = r"record of a run with threads 3; needed threads 2; .*set_num_threads\(3\) before"
    with pytest.raises(CosetError, match=told):
        train(2)
    train(3)


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[:-20],
        lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
        lambda content: b"",
        lambda content: b"not a record",
    ],
)
def test_a_damaged_record_is_refused(harm, tmp_path):
    problem, method = problem_of(perceptron), with_folder(SHORT, tmp_path)
    method.fit(problem, generator=seeded())
    path = tmp_path / "state.safetensors"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(CosetError, match=r"got .*state\.safetensors"):
        method.fit(problem, generator=seeded())


def test_one_place_for_a_run():
    base = replace(SHORT, checkpoint=Checkpoint("somewhere"))
    for build in (DeepEnsemble, MCDropout, SWAG, MeanField):
        with pytest.raises(CosetError, match=f"give the checkpoint to {build.__name__}"):
            build(base=base)
    assert part_of(None, "stack-000") is None
