"""Layered networks give the numbers of the network itself, whatever the likelihood."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from coset import (
    Bernoulli,
    Categorical,
    GaussianNoise,
    GaussianPrior,
    HeteroscedasticGaussian,
    Problem,
    functionalise,
)
from coset.bayes import as_batches
from coset.inference.sampling.layered import LayeredLoss
from coset.inference.sampling.layers import layers_of
from coset.inference.sampling.targets import FullBatch
from coset.inference.training.members import starting_points


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Written(nn.Module):
    """Layers called one after the other in a forward of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 5), nn.Linear(5, 4, bias=False)
        self.third = nn.Linear(4, 2)

    def forward(self, inputs):
        hidden = functional.gelu(self.first(torch.flatten(inputs, 1)), approximate="tanh")
        return self.third(functional.leaky_relu(self.second(hidden), 0.2).tanh())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 2)

    def forward(self, inputs):
        rows = inputs.flatten(1)
        return self.second(rows + self.first(rows).relu())


def sequential():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 6),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Sequential(nn.Linear(6, 4), nn.Softplus(beta=2.0)),
        nn.Linear(4, 2),
    )


def problem_of(module, likelihood, targets):
    inputs = torch.randn(20, 3, 4, generator=seeded(1), dtype=torch.float64)
    data = as_batches((inputs, targets))
    return Problem(functionalise(module.double()), likelihood, GaussianPrior(2.0), data)


CASES = {
    "classes": (Categorical(), torch.arange(20) % 2),
    "yes or no": (Bernoulli(), torch.eye(2, dtype=torch.float64).repeat(10, 1)),
    "regression": (GaussianNoise(0.3), torch.randn(20, 2, generator=seeded(2)).double()),
    "noise each": (HeteroscedasticGaussian(), torch.randn(20, 1, generator=seeded(2)).double()),
}


@pytest.mark.parametrize("module", [sequential, Written])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [20, 7])
@pytest.mark.parametrize("count", [3, 1])
def test_losses_and_gradients_are_those_of_the_network(module, case, rows, count):
    problem = problem_of(module(), *CASES[case])
    chains = starting_points(problem, None, list(range(count)))
    layers = layers_of(problem)
    assert layers is not None
    inputs, targets = problem.train.inputs.flatten(1), problem.train.targets
    loss = LayeredLoss(problem, layers, inputs, targets, rows)
    positions = problem.network.layout.flatten(chains)
    losses, gradients = loss(positions)
    alone = loss.pull(positions, torch.empty_like(positions))
    torch.testing.assert_close(alone, gradients, rtol=1e-12, atol=1e-12)
    # a recording that failed would be the method itself
    assert all(part.evaluate != loss._evaluate for part in loss._parts(positions))
    for chain in range(count):
        leaves = {name: w[chain].clone().requires_grad_() for name, w in chains.items()}
        outputs = problem.network.apply(leaves, problem.train.inputs)
        wanted = -problem.likelihood.log_prob(outputs, targets).sum()
        found = torch.autograd.grad(wanted, list(leaves.values()))
        torch.testing.assert_close(losses[chain], wanted.detach())
        flat = torch.cat([gradient.flatten() for gradient in found])
        torch.testing.assert_close(gradients[chain], flat)


def test_a_single_linear_layer_and_targets_without_an_axis():
    inputs, targets = torch.randn(9, 3, generator=seeded()), torch.randn(9, generator=seeded(3))
    problem = Problem(
        functionalise(nn.Linear(3, 1)),
        GaussianNoise(1.0),
        GaussianPrior(),
        as_batches((inputs, targets)),
    )
    assert LayeredLoss.of(problem, 2) is not None
    chains = starting_points(problem, None, [0, 1])
    full = FullBatch.of(problem, chains)
    wanted = [
        -problem.log_joint({n: w[c] for n, w in chains.items()}, (inputs, targets)) for c in (0, 1)
    ]
    found = full(*full.target.split(chains)).energy
    torch.testing.assert_close(found.diff(), torch.stack(wanted).diff(), rtol=1e-4, atol=1e-4)


class Counted(nn.Module):
    """A layer used twice."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(12, 12)

    def forward(self, inputs):
        return self.only(self.only(inputs.flatten(1)).relu())[:, :2]


@pytest.mark.parametrize(
    "module",
    [
        Residual,
        Counted,
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 2)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.Softmax(1)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(6, 2)),
    ],
)
def test_other_networks_are_left_to_the_general_way(module):
    assert layers_of(problem_of(module(), *CASES["classes"])) is None


@pytest.mark.parametrize("each", [False, True])
def test_the_gradient_alone_is_that_of_the_energy(each):
    problem = problem_of(sequential(), *CASES["classes"])
    if each:
        names = problem.network.layout.names
        prior = GaussianPrior({name: 1.0 + place for place, name in enumerate(names)})
        problem = replace(problem, prior=prior)
    chains = starting_points(problem, None, [0, 1])
    target = FullBatch.of(problem, chains)
    assert target.loss is not None
    positions, buffers = target.target.split(chains)
    found = target.gradient(positions, buffers, into=torch.empty_like(positions))
    torch.testing.assert_close(found, target(positions, buffers).gradient)
    plain = replace(target, loss=None)
    torch.testing.assert_close(found, plain(positions, buffers).gradient)
    torch.testing.assert_close(
        found, plain.gradient(positions, buffers, into=torch.empty_like(positions))
    )
