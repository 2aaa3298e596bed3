"""A run that is killed and taken up again is the uninterrupted run, bit for bit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from coset import (
    HMC,
    NUTS,
    SGHMC,
    SGLD,
    Checkpoint,
    CosetError,
    Cyclical,
    DeepEnsemble,
    Laplace,
    MatrixFree,
    MaximumAPosteriori,
    MeanField,
)
from coset.bayes import GaussianPrior, as_batches
from coset.weights import functionalise
from problems import logistic

RUNS = {
    "HMC": HMC(warmup=90, draws=20, chains=2, max_steps=8),
    "NUTS": NUTS(warmup=24, draws=10, chains=2, max_depth=3),
    "SGHMC": SGHMC(burn_in=30, draws=10, thinning=3, chains=2, batch_size=16),
    "SGLD": SGLD(burn_in=30, draws=10, thinning=3, chains=2, batch_size=16),
    "cyclical": SGHMC(schedule=Cyclical(3, 12, 0.5, 2), chains=2, batch_size=16),
}


class Killed(Exception):
    pass


def with_folder(method, folder):
    fields = {name: getattr(method, name) for name in method.__dataclass_fields__}
    return type(method)(**{**fields, "checkpoint": Checkpoint(folder, every=7)})


def seeded():
    return torch.Generator().manual_seed(5)


def kill_after(fraction):
    def progress(done, line):
        if done > fraction:
            raise Killed

    return progress


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("fraction", [0.2, 0.7])
def test_resumed_runs_are_bitwise_equal(name, fraction, tmp_path, monkeypatch):
    monkeypatch.setattr("coset.inference.sampling.chains._SECONDS_BETWEEN_REPORTS", 0.0)
    problem = logistic()
    whole = RUNS[name].fit(problem, generator=seeded())
    method = with_folder(RUNS[name], tmp_path / "run")
    with pytest.raises(Killed):
        method.fit(problem, generator=seeded(), progress=kill_after(fraction))
    torch.rand(1)  # somebody else has drawn since
    state = torch.get_rng_state()
    resumed = method.fit(problem, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)
    for key, tensor in whole.stack.items():
        assert torch.equal(tensor, resumed.stack[key])
    assert whole.report.diagnostics == resumed.report.diagnostics
    again = method.fit(problem, generator=seeded())  # a finished run is only read
    assert all(torch.equal(tensor, again.stack[key]) for key, tensor in whole.stack.items())


class Noisy(nn.Module):
    """With batch norm it is evaluated in training mode, in which it draws from torch's own."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(2), nn.Linear(2, 2)

    def forward(self, inputs):
        noise = torch.randn_like(inputs) if self.training else 0.0
        return self.last(self.norm(inputs) + 0.1 * noise)


def test_noise_in_the_network_is_taken_up(tmp_path, monkeypatch):
    monkeypatch.setattr("coset.inference.sampling.chains._SECONDS_BETWEEN_REPORTS", 0.0)
    problem = replace(logistic(), network=functionalise(Noisy().double()))
    whole = RUNS["SGLD"].fit(problem, generator=seeded())
    method = with_folder(RUNS["SGLD"], tmp_path)
    with pytest.raises(Killed):
        method.fit(problem, generator=seeded(), progress=kill_after(0.7))
    resumed = method.fit(problem, generator=seeded())
    assert all(torch.equal(tensor, resumed.stack[key]) for key, tensor in whole.stack.items())


def test_a_run_killed_between_its_two_files_goes_on(tmp_path, monkeypatch):
    problem, method = logistic(), with_folder(RUNS["SGLD"], tmp_path / "run")
    whole = RUNS["SGLD"].fit(problem, generator=seeded())
    from coset.inference import run_record

    written = []
    save = run_record.save_record

    def killed_at_the_fourth_state(path, tensors, facts):
        if path.name == "state.safetensors":
            written.append(path)
            if len(written) == 4:
                raise Killed
        save(path, tensors, facts)

    monkeypatch.setattr(run_record, "save_record", killed_at_the_fourth_state)
    with pytest.raises(Killed):
        method.fit(problem, generator=seeded())
    monkeypatch.setattr(run_record, "save_record", save)
    resumed = method.fit(problem, generator=seeded())
    assert all(torch.equal(tensor, resumed.stack[key]) for key, tensor in whole.stack.items())


def test_the_folder_of_another_run_is_refused(tmp_path):
    problem = logistic()
    with_folder(RUNS["SGLD"], tmp_path).fit(problem, generator=seeded())
    with pytest.raises(CosetError, match="record of a run with method"):
        with_folder(RUNS["SGHMC"], tmp_path).fit(problem, generator=seeded())
    with pytest.raises(CosetError, match="record of a run with seed"):
        with_folder(RUNS["SGLD"], tmp_path).fit(problem, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("name", ["HMC", "SGLD"])
def test_a_run_does_not_go_on_with_other_data_or_another_prior(name, tmp_path):
    problem, method = logistic(), with_folder(RUNS[name], tmp_path)
    method.fit(problem, generator=seeded())
    inputs, targets = problem.train.inputs, problem.train.targets
    other = replace(problem, train=as_batches((inputs, targets.flip(0))))
    with pytest.raises(CosetError, match=r"record of a run with data '60 .*the data and the seed"):
        method.fit(other, generator=seeded())
    other = replace(problem, prior=GaussianPrior(3.0))
    with pytest.raises(CosetError, match="record of a run with prior"):
        method.fit(other, generator=seeded())
    start = problem.network.weights
    with pytest.raises(CosetError, match="record of a run with first weights"):
        method.fit(problem, start=start, generator=seeded())


class Curved(nn.Linear):
    """Prints as a linear layer."""

    def _get_name(self):
        return "Linear"

    def forward(self, inputs):
        return super().forward(inputs).tanh()


@pytest.mark.parametrize("name", ["HMC", "SGLD"])
def test_a_run_does_not_go_on_with_another_network_or_generator(name, tmp_path):
    problem, method = logistic(), with_folder(RUNS[name], tmp_path)
    start = problem.network.weights
    method.fit(problem, start=start, generator=seeded())
    other = replace(problem, network=functionalise(Curved(2, 2).double()))
    with pytest.raises(CosetError, match="record of a run with outputs"):
        method.fit(other, start=start, generator=seeded())
    advanced = seeded()
    torch.rand(1, generator=advanced)
    with pytest.raises(CosetError, match="record of a run with generator"):
        method.fit(problem, start=start, generator=advanced)


PLACES = {
    **RUNS,
    "training": MaximumAPosteriori(),
    "ensemble": DeepEnsemble(2),
    "mean field": MeanField(),
    "matrix-free": Laplace(MatrixFree()),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(name, tmp_path):
    (tmp_path / "file").write_text("in the way")
    told = []
    for place in ("file", "file/run"):
        with pytest.raises(CosetError, match=r"got the checkpoint .*file.*: (File|Not)"):
            with_folder(PLACES[name], tmp_path / place).fit(
                logistic(), generator=seeded(), progress=lambda done, line: told.append(line)
            )
    assert set(told) <= {"curvature", "features"}


def test_draws_of_another_run_are_noticed(tmp_path):
    problem, method = logistic(), RUNS["SGLD"]
    with_folder(method, tmp_path / "one").fit(problem, generator=seeded())
    other = replace(method, temperature=0.5)
    with_folder(other, tmp_path / "two").fit(problem, generator=seeded())
    foreign = (tmp_path / "two" / "draws-000000007.safetensors").read_bytes()
    (tmp_path / "one" / "draws-000000007.safetensors").write_bytes(foreign)
    with pytest.raises(CosetError, match=r"draws-000000007.* method\.temperature 0\.5; needed"):
        with_folder(method, tmp_path / "one").fit(problem, generator=seeded())
    own = (tmp_path / "one" / "draws-000000000.safetensors").read_bytes()
    (tmp_path / "one" / "draws-000000007.safetensors").write_bytes(own)  # for ever, once
    with pytest.raises(CosetError, match="record of a run with from 0; needed from 7"):
        with_folder(method, tmp_path / "one").fit(problem, generator=seeded())


def test_the_setting_that_differs_is_told(tmp_path):
    problem, method = logistic(), with_folder(RUNS["HMC"], tmp_path)
    method.fit(problem, generator=seeded())
    told = r"a run with method\.draws 20; needed method\.draws 21;"
    with pytest.raises(CosetError, match=told):
        replace(method, draws=21).fit(problem, generator=seeded())


def test_a_damaged_file_is_noticed(tmp_path):
    problem = logistic()
    method = with_folder(RUNS["SGLD"], tmp_path)
    method.fit(problem, generator=seeded())
    part = sorted(tmp_path.glob("draws-*"))[1]
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes(bytes(content))
    with pytest.raises(CosetError, match="sha256"):
        method.fit(problem, generator=seeded())
