"""Weights along a training, and members that part: held against trainings of their own."""

from dataclasses import replace

import pytest
import torch
from training_problems import assert_same, classification, convolutional, perceptron

from coset import (
    SWAG,
    Checkpoint,
    CosetError,
    DeepEnsemble,
    Laplace,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    Snapshots,
    fit,
    load,
)
from coset.inference import SGD, Constant

pytestmark = pytest.mark.usefixtures("double")

PLAIN = MaximumAPosteriori(SGD(0.05), Constant(), epochs=5, batch_size=8)  # 3 steps an epoch


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def test_a_snapshot_is_the_end_of_a_shorter_training():
    problem = classification(convolutional(), (1, 6, 6))
    found = replace(PLAIN, snapshots=Snapshots([4, 0, 2])).fit(problem, generator=seeded())
    assert list(found.snapshots) == [0, 2, 4]
    for epoch in (2, 4):
        shorter = replace(PLAIN, epochs=epoch).fit(problem, generator=seeded())
        assert_same(found.snapshots[epoch], shorter.weights)
    assert_same(found.weights, PLAIN.fit(problem, generator=seeded()).weights)
    assert PLAIN.fit(problem, generator=seeded()).snapshots == {}


def test_the_first_is_where_training_begins():
    problem = classification(perceptron())
    start = problem.network.initialise(seeded(8))
    method = replace(PLAIN, snapshots=Snapshots((0, 5)))
    found = method.fit(problem, start=start, generator=seeded())
    assert_same(found.snapshots[0], start)
    assert_same(found.snapshots[5], found.weights)


def test_members_of_an_ensemble_have_theirs_as_a_stack():
    problem = classification(perceptron())
    base = replace(PLAIN, snapshots=Snapshots((1, 3)))
    whole = DeepEnsemble(3, base).fit(problem, generator=seeded())
    parts = DeepEnsemble(3, base, memory=1).fit(problem, generator=seeded())  # stacks of one
    shorter = DeepEnsemble(3, replace(PLAIN, epochs=3)).fit(problem, generator=seeded())
    for posterior in (whole, parts):
        assert list(posterior.snapshots) == [1, 3]
        for name, tensor in posterior.snapshots[3].items():
            torch.testing.assert_close(tensor, shorter.members[name])


@pytest.mark.parametrize(
    "method",
    [
        MCDropout(base=PLAIN),
        SWAG(base=PLAIN, rank=2, epochs=3, learning_rate=1e-3),
        MeanField(base=PLAIN, epochs=2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_methods_around_a_training_have_those_of_it(method):
    problem = classification(perceptron(0.2))
    with_snapshots = replace(method, base=replace(PLAIN, snapshots=Snapshots((2,))))
    found = with_snapshots.fit(problem, generator=seeded())
    shapes = {name: tensor.shape for name, tensor in problem.network.weights.items()}
    assert {name: tensor.shape for name, tensor in found.snapshots[2].items()} == shapes


def test_modes_have_theirs_as_a_stack():
    """From the training before Laplace, and from the trainings that methods do themselves."""
    problem = classification(perceptron())
    base = replace(PLAIN, snapshots=Snapshots((2, 5)))
    before = MultiMode(Laplace(), 3, base=base).fit(problem, generator=seeded())
    parts = [part.mean for part in before.components]
    for name, tensor in before.snapshots[5].items():
        assert torch.equal(tensor, torch.stack([part[name] for part in parts]))
    inner = MeanField(base=base, epochs=2)
    inside = MultiMode(inner, 3).fit(problem, generator=seeded())
    for name, tensor in inside.snapshots[2].items():
        each = [part.snapshots[2][name] for part in inside.components]
        assert torch.equal(tensor, torch.stack(each))
    assert MultiMode(PLAIN, 2).fit(problem, generator=seeded()).snapshots == {}


def test_a_member_that_stopped_has_the_weights_it_ended_with():
    problem = classification(perceptron())
    held_out = (torch.randn(9, 4), torch.arange(9) % 3)
    stops = replace(PLAIN, epochs=30, optimiser=SGD(1.0), validation=held_out, patience=1)
    base = replace(stops, snapshots=Snapshots(range(31)))
    found = DeepEnsemble(4, base).fit(problem, generator=seeded())
    last = max(found.snapshots)
    assert last < 30
    assert len(found.snapshots) == last + 1
    ended = found.snapshots[last]["0.weight"]
    same = [torch.equal(ended[k], found.members["0.weight"][k]) for k in range(4)]
    assert sum(same) > 0  # those who stopped before; the others' best epoch was an earlier one


def test_snapshots_outlive_a_kill_and_a_file(tmp_path):
    problem = classification(perceptron())
    method = replace(PLAIN, snapshots=Snapshots((1, 4)))
    whole = method.fit(problem, generator=seeded())

    class Killed(Exception):
        pass

    def kill(fraction, _):
        if fraction > 0.5:
            raise Killed

    kept = replace(method, checkpoint=Checkpoint(tmp_path / "run", every=2))
    with pytest.raises(Killed):
        kept.fit(problem, generator=seeded(), progress=kill)
    again = kept.fit(problem, generator=seeded())
    for epoch in (1, 4):
        assert_same(again.snapshots[epoch], whole.snapshots[epoch])

    module = perceptron()
    train = problem.train.inputs, problem.train.targets
    predictor = fit(module, train, method=method, generator=seeded())
    predictor.save(tmp_path / "p.safetensors")
    loaded = load(tmp_path / "p.safetensors", module)
    for epoch in (1, 4):
        assert_same(loaded.posterior.snapshots[epoch], predictor.posterior.snapshots[epoch])


@pytest.mark.parametrize("steps", [1, 4, 6, 12])
def test_members_part_after_a_step(steps):
    """Before it they are one network; after it they are as many, from one point."""
    problem = classification(perceptron())
    base = replace(PLAIN, snapshots=Snapshots(range(6)))
    found = DeepEnsemble(3, base, together=steps).fit(problem, generator=seeded())
    for epoch, weights in found.snapshots.items():
        first, second, third = weights["0.weight"]
        if 3 * epoch <= steps:
            assert torch.equal(first, second)
            assert torch.equal(first, third)
        else:
            assert not torch.equal(first, second)
            assert not torch.equal(second, third)
    parts = DeepEnsemble(3, base, memory=1, together=steps).fit(problem, generator=seeded())
    for name, tensor in parts.members.items():
        torch.testing.assert_close(tensor, found.members[name])


def test_until_they_part_members_are_the_network_alone():
    problem = classification(perceptron(0.3))
    base = replace(PLAIN, snapshots=Snapshots((2,)))
    found = DeepEnsemble(3, base, together=6).fit(problem, generator=seeded())
    alone = DeepEnsemble(3, base).fit(problem, generator=seeded())
    for name, tensor in found.snapshots[2].items():
        torch.testing.assert_close(tensor[2], alone.snapshots[2][name][0])


def test_every_example_is_still_seen_once_an_epoch():
    """A network whose gradient counts examples, whatever order they come in."""
    problem = classification(perceptron())
    rows = []
    inner = problem.train.rows
    method = DeepEnsemble(2, PLAIN, together=4)
    object.__setattr__(problem.train, "rows", lambda index: rows.append(index) or inner(index))
    method.fit(problem, generator=seeded())
    steps = rows[-15:]
    for epoch in range(1, 5):
        seen = torch.cat([step.expand(2, -1) for step in steps[3 * epoch : 3 * epoch + 3]], 1)
        assert torch.equal(seen.sort(1).values, torch.arange(23).expand(2, -1))
    assert steps[3].shape[0] == 1
    assert steps[4].shape[0] == 2


def test_a_fork_outlives_a_kill(tmp_path):
    problem = classification(perceptron(0.3))
    method = DeepEnsemble(2, PLAIN, together=7)
    whole = method.fit(problem, generator=seeded())

    class Killed(Exception):
        pass

    for number, moment in enumerate((0.2, 0.45, 0.48, 0.8)):

        def kill(fraction, _, moment=moment):
            if fraction > moment:
                raise Killed

        kept = replace(method, checkpoint=Checkpoint(tmp_path / str(number), every=1))
        with pytest.raises(Killed):
            kept.fit(problem, generator=seeded(), progress=kill)
        assert_same(kept.fit(problem, generator=seeded()).members, whole.members)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Snapshots(3), r"write \(3,\)"),
        (lambda: Snapshots((1, -1)), r"epochs\[1\]=-1"),
        (lambda: Snapshots((0.5,)), r"epochs\[0\]=0.5"),
        (lambda: DeepEnsemble(together=-1), "together=-1"),
    ],
)
def test_settings_that_are_none_are_refused(build, words):
    with pytest.raises(CosetError, match=words):
        build()


def test_epochs_and_steps_that_there_are_not_are_refused():
    problem = classification(perceptron())
    with pytest.raises(CosetError, match="after epoch 6; needed epochs from 0 to 5"):
        replace(PLAIN, snapshots=Snapshots((6,))).fit(problem, generator=seeded())
    with pytest.raises(CosetError, match="after step 15; needed fewer than the 15 steps"):
        DeepEnsemble(2, PLAIN, together=15).fit(problem, generator=seeded())
    validated = replace(PLAIN, validation=(torch.randn(9, 4), torch.arange(9) % 3))
    with pytest.raises(CosetError, match="a shared beginning and validation data"):
        DeepEnsemble(2, validated, together=3).fit(problem, generator=seeded())
