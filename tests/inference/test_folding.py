"""Masks folded into weights compute what they computed as masks."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from coset import CosetError, MaximumAPosteriori, MCDropout, MultiMode, RebasedGaussian
from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.inference.folding import fold_masks
from coset.posterior.random_masks import RandomMasks
from coset.weights import functionalise

pytestmark = pytest.mark.usefixtures("double")

BASE = MaximumAPosteriori(epochs=2)


class Digits(nn.Module):
    """Dropout of channels before a rectifier and a pool, as in torch's example for MNIST."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.drop, self.last = nn.Dropout2d(0.5), nn.Linear(4, 2)

    def forward(self, inputs):
        hidden = functional.relu(functional.max_pool2d(self.drop(self.first(inputs)), 2))
        hidden = functional.relu(self.drop(self.second(hidden)))
        return self.last(hidden.view(len(hidden), -1))


class Residual(nn.Module):
    """What is dropped goes past the layer that reads it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs):
        hidden = functional.dropout(self.first(inputs).tanh(), 0.5, self.training)
        return self.last(hidden) + hidden


def problem_of(module, shape=(3,)):
    torch.manual_seed(0)
    inputs = torch.randn(12, *shape)
    data = as_batches((inputs, torch.arange(12) % 2))
    return Problem(functionalise(module), Categorical(), GaussianPrior(1.0), data)


def perceptron():
    return nn.Sequential(
        nn.Dropout(0.2), nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 2)
    )


FOLDABLE = {
    "perceptron": (perceptron, (3,)),
    "convolutions": (Digits, (1, 8, 8)),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 2)),
        (1, 6, 6),
    ),
}
OTHERS = {
    "past a layer": (Residual, (3,), "something other than one"),
    "of outputs": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Softplus()),
        (3,),
        "that no linear layer",
    ),
    "a mask a token": (
        lambda: nn.Sequential(perceptron(), nn.Flatten(), nn.Linear(8, 2)),
        (4, 3),
        "something other than one",
    ),
}


@pytest.mark.parametrize("name", FOLDABLE)
def test_folded_networks_compute_the_same(name, generator):
    build, shape = FOLDABLE[name]
    problem = problem_of(build(), shape)
    network, inputs = problem.network, problem.train.inputs
    drawn, folded = drawn_and_folded(problem, generator)
    assert set(folded) == set(network.weights)
    masked = vmap(network.apply, in_dims=(0, None))(drawn, inputs)
    torch.testing.assert_close(vmap(network.apply, in_dims=(0, None))(folded, inputs), masked)
    assert float(masked.std(0).max()) > 0.01


def drawn_and_folded(problem, generator):
    sites = MCDropout(BASE).sites(problem)
    drawn = RandomMasks(problem.network.weights, sites).sample(7, generator=generator)
    return drawn, fold_masks(problem.network, drawn, problem.train.inputs[:5])


@pytest.mark.parametrize("name", OTHERS)
def test_masks_that_are_no_weights_are_refused(name, generator):
    build, shape, message = OTHERS[name]
    with pytest.raises(CosetError, match=message):
        drawn_and_folded(problem_of(build(), shape), generator)


@pytest.mark.parametrize("inner", [MCDropout(BASE), MultiMode(MCDropout(BASE), 2)])
def test_the_gaussian_of_dropout_has_its_spread(inner, generator):
    problem = problem_of(perceptron())
    fitted = RebasedGaussian(inner, align=None, samples=400).fit(problem, generator=generator)
    if isinstance(inner, MultiMode):
        assert float(fitted.std["4.weight"].min()) > 0
        return
    # a weight under a mask of rate p has mean w and standard deviation |w| √(p / (1 - p))
    for name, rate in (("1.weight", 0.2), ("4.weight", 0.5)):
        spread = fitted.std[name] / fitted.mean[name].abs() / (rate / (1 - rate)) ** 0.5
        # 400 draws: standard errors of about 5 %, four of them allowed
        assert float((spread - 1).abs().max()) < 0.25
    assert float(fitted.std["4.bias"].max()) == 0.0


def test_masks_of_each_examples_own_are_refused(generator):
    problem = problem_of(perceptron())
    method = RebasedGaussian(MCDropout(BASE, per_example=True))
    with pytest.raises(CosetError, match="per_example=False"):
        method.fit(problem, generator=generator)
