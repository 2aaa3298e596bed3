"""Recorded training steps are the steps themselves."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from training_problems import (
    DataDependent,
    assert_same,
    classification,
    convolutional,
    perceptron,
)

from coset import Checkpoint, CosetError, DeepEnsemble, GaussianNoise, MaximumAPosteriori, Problem
from coset.bayes import GaussianPrior, as_batches
from coset.inference import SGD, Adam, train_stack
from coset.inference.training import loop
from coset.inference.training import recorded as module
from coset.inference.training.gradients import Objective, choose, lightly_together, together
from coset.inference.training.members import starting_points
from coset.inference.training.recipe import Recipe
from coset.inference.training.recorded import Recorded, recorded
from coset.weights import functionalise

pytestmark = pytest.mark.usefixtures("double")

SEEDS = [11, 22, 33]


def picture_network():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 3)
    )


def regression():
    inputs = torch.randn(23, 4)
    data = as_batches((inputs, inputs[:, :2] + 0.1 * torch.randn(23, 2)))
    network = functionalise(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    return Problem(network, GaussianNoise(), GaussianPrior(0.1), data)


PROBLEMS = {
    "perceptron": lambda: classification(perceptron()),
    "convolutions": lambda: classification(picture_network(), (1, 6, 6)),
    "learnt noise": regression,
}


@pytest.mark.parametrize("case", PROBLEMS)
@pytest.mark.parametrize("optimiser", [SGD(0.05), Adam(0.01)])
def test_training_is_the_same(case, optimiser, monkeypatch):
    torch.manual_seed(0)
    problem = PROBLEMS[case]()
    starts = starting_points(problem, None, SEEDS)
    recipe = Recipe(optimiser, epochs=6, batch_size=6, clip=0.5)  # batches of 6 and of 5
    plain = train_stack(problem, starts, recipe, SEEDS)
    monkeypatch.setattr(module, "_LONG", 1)
    replayed = train_stack(problem, starts, recipe, SEEDS)
    assert_same(replayed.weights, plain.weights)
    torch.testing.assert_close(replayed.losses, plain.losses)


@pytest.mark.parametrize("way", [together, lightly_together])
def test_gradients_are_those_of_what_was_recorded(way):
    torch.manual_seed(0)
    problem = classification(perceptron())
    objective = Objective(problem.network, problem.likelihood.log_prob)
    replay = Recorded(way, len(SEEDS))
    scale, none = torch.tensor([1.0, 2.0, 0.5]), [torch.Generator() for _ in SEEDS]
    for seed in range(3):
        weights = starting_points(problem, None, [seed, seed + 1, seed + 2])
        batch = problem.train.rows(torch.randint(23, (3, 7)))
        found = replay(objective, weights, batch, scale, none)
        wanted = way(objective, weights, batch, scale, none)
        torch.testing.assert_close(found.losses, wanted.losses, rtol=1e-12, atol=1e-12)
        assert_same(found.gradients, wanted.gradients)
    (program,) = replay._programs.values()
    assert program.__name__ == "replay"


class Coin(nn.Module):
    """Draws a number that torch does not know of."""

    def __init__(self, toss):
        super().__init__()
        self.layer, self.toss = nn.Linear(4, 3), toss

    def forward(self, x):
        return self.layer(x) * self.toss()


@pytest.mark.parametrize(
    ("build", "shape", "members", "steps", "expected"),
    [
        (perceptron, (4,), 3, 100, True),
        (perceptron, (4,), 3, 99, False),
        (perceptron, (4,), 1, 100, False),
        (lambda: perceptron(0.3), (4,), 3, 100, False),
        (convolutional, (1, 6, 6), 3, 100, False),
        (DataDependent, (4,), 3, 100, False),
        (lambda: Coin(lambda: random.random()), (4,), 3, 100, False),
        # networks that toss by numpy's global generator, which is why it is used here
        (lambda: Coin(lambda: np.random.random()), (4,), 3, 100, False),  # noqa: NPY002
    ],
    ids=["long", "short", "alone", "dropout", "batch norm", "looks at its numbers", "coin", "die"],
)
def test_only_what_changes_nothing_is_recorded(build, shape, members, steps, expected):
    problem = classification(build(), shape)
    weights = starting_points(problem, None, list(range(members)))
    objective = Objective(problem.network, problem.likelihood.log_prob)
    few = problem.train.rows(torch.arange(2).expand(members, -1))
    way = choose(objective, weights, few, size=8)
    found = recorded(way, problem.network, few[0][0], members=members, steps=steps)
    assert isinstance(found, Recorded) is expected
    assert expected or found is way


def test_members_that_stop_leave_the_others_as_they_would_be(monkeypatch):
    torch.manual_seed(1)
    problem = classification(perceptron(), rows=40)
    labels = torch.arange(12) % 3
    held_out = torch.randn(12, 4) + labels.unsqueeze(1), labels
    recipe = Recipe(Adam(0.05), epochs=30, batch_size=10, validation=held_out, patience=3)
    starts = starting_points(problem, None, SEEDS)
    plain = train_stack(problem, starts, recipe, SEEDS)
    monkeypatch.setattr(module, "_LONG", 1)
    replayed = train_stack(problem, starts, recipe, SEEDS)
    assert len(set(plain.epochs)) > 1, "members should stop at different epochs in this test"
    assert replayed.epochs == plain.epochs
    assert_same(replayed.weights, plain.weights)


def test_a_recorded_training_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_REPORTS_PER_SECOND", 1e9)  # every step
    torch.manual_seed(0)
    problem = classification(perceptron())
    base = MaximumAPosteriori(epochs=70, batch_size=8)  # 210 steps
    whole = DeepEnsemble(3, base).fit(problem, generator=torch.Generator().manual_seed(5))
    method = replace(DeepEnsemble(3, base), checkpoint=Checkpoint(tmp_path, 50))

    def stop(done, message):
        if done > 0.5:
            raise CosetError("stopped")

    with pytest.raises(CosetError, match="stopped"):
        method.fit(problem, generator=torch.Generator().manual_seed(5), progress=stop)
    resumed = method.fit(problem, generator=torch.Generator().manual_seed(5))
    for name, tensor in whole.stack.items():
        assert torch.equal(tensor, resumed.stack[name]), name
