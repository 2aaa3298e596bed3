"""Turned coordinates: the same energy, the same prior, a diagonal curvature."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from coset import (
    HMC,
    Categorical,
    CosetError,
    GaussianNoise,
    GaussianPrior,
    Problem,
    functionalise,
)
from coset.bayes import as_batches
from coset.inference.beginnings import starting_points
from coset.inference.sampling.axes import along_axes, first_weight
from coset.inference.sampling.targets import FullBatch


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def correlated(rows=40):
    inputs = torch.randn(rows, 4, generator=seeded(), dtype=torch.float64)
    mixing = torch.randn(4, 4, generator=seeded(1), dtype=torch.float64)
    return inputs @ mixing + 3


def problem_of(prior=None, module=None, targets=None, likelihood=None):
    inputs = correlated()
    targets = (inputs[:, 0] > 3).long() if targets is None else targets
    module = module or nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return Problem(
        functionalise(module.double()),
        likelihood or Categorical(),
        prior or GaussianPrior(2.0),
        as_batches((inputs, targets)),
    )


def test_energies_are_the_same_and_gradients_turn_along():
    problem = problem_of()
    chains = starting_points(problem, None, [0, 1])
    plain = FullBatch.of(problem, chains)
    along, axes = along_axes(problem)
    turned = FullBatch.of(along, chains)
    positions, buffers = plain.target.split(chains)
    there = axes.turned(positions)
    torch.testing.assert_close(axes.back(there), positions)
    assert not torch.allclose(there, positions)
    found, wanted = turned(there, buffers), plain(positions, buffers)
    torch.testing.assert_close(found.energy, wanted.energy)
    torch.testing.assert_close(found.gradient, axes.turned(wanted.gradient))


def test_inputs_that_are_all_zero_have_any_axes():
    problem = problem_of()
    silent = replace(problem, train=replace(problem.train, inputs=torch.zeros_like(correlated())))
    stack = starting_points(silent, None, [0])
    plain = FullBatch.of(silent, stack)
    along, axes = along_axes(silent)
    turned = FullBatch.of(along, stack)
    positions, buffers = plain.target.split(stack)
    wanted = plain(positions, buffers).energy
    torch.testing.assert_close(turned(axes.turned(positions), buffers).energy, wanted)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("chains", [1, 3])
def test_axes_without_inputs_are_left_out_of_products(chains, kind):
    """Dead pixels, copies and sums of others; only the prior acts there."""
    seen = correlated()
    dead, copied, summed = torch.zeros(40, 2), seen[:, :1], seen[:, 1:2] + 2 * seen[:, 2:3]
    inputs = torch.cat([dead, seen, copied, summed], 1).to(kind)
    module = nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2)).to(kind)
    data = as_batches((inputs, (seen[:, 0] > 3).long()))
    problem = Problem(functionalise(module), Categorical(), GaussianPrior(2.0), data)
    stack = starting_points(problem, None, list(range(chains)))
    plain = FullBatch.of(problem, stack)
    along, axes = along_axes(problem)
    turned = FullBatch.of(along, stack)
    assert turned.batches[0][0].shape == (40, 4)
    assert turned.target.together == (chains > 1)
    positions, buffers = plain.target.split(stack)
    found, wanted = turned(axes.turned(positions), buffers), plain(positions, buffers)
    exact = {"atol": 1e-9, "rtol": 1e-9} if kind == torch.float64 else {"atol": 1e-3, "rtol": 1e-5}
    torch.testing.assert_close(found.energy, wanted.energy, **exact)
    torch.testing.assert_close(axes.back(found.gradient), wanted.gradient, **exact)


class Counts(nn.Linear):
    """Asks for the number of its inputs."""

    def forward(self, inputs):
        return super().forward(inputs.reshape(-1, 4))


@pytest.mark.parametrize("module", [nn.Linear(4, 2), Counts(4, 2)])
def test_inputs_that_are_all_zero_keep_an_axis(module):
    problem = problem_of(module=module)
    silent = replace(problem, train=replace(problem.train, inputs=torch.zeros_like(correlated())))
    stack = starting_points(silent, None, [0])
    plain = FullBatch.of(silent, stack)
    along, axes = along_axes(silent)
    turned = FullBatch.of(along, stack)
    assert turned.batches[0][0].shape == (40, 4 if isinstance(module, Counts) else 1)
    positions, buffers = plain.target.split(stack)
    wanted = plain(positions, buffers).energy
    torch.testing.assert_close(turned(axes.turned(positions), buffers).energy, wanted)


def test_the_hessian_of_a_linear_model_becomes_diagonal():
    problem = problem_of(
        module=nn.Linear(4, 1, bias=False),
        targets=torch.zeros(40, 1, dtype=torch.float64),
        likelihood=GaussianNoise(0.5),
    )
    along, _ = along_axes(problem)
    turned = FullBatch.of(along, starting_points(problem, None, [0]))
    unit = torch.eye(4, dtype=torch.float64)
    zero = turned(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 0)).gradient
    columns = [turned(row[None], torch.zeros(1, 0)).gradient - zero for row in unit]
    hessian = torch.cat(columns)
    wanted = torch.linalg.eigvalsh(correlated().T @ correlated() / 0.25) + 2
    torch.testing.assert_close(hessian, wanted.diag(), atol=1e-8, rtol=1e-8)


def test_priors_that_notice_are_left_alone():
    shaped = GaussianPrior({"0.weight": torch.tensor([[1.0, 2.0, 1.0, 1.0]]), **REST})
    problem = problem_of(shaped)
    assert along_axes(problem)[1] is None
    rows = GaussianPrior({"0.weight": torch.tensor([[1.0], [2.0], [3.0]]), **REST})
    problem = problem_of(rows)
    assert along_axes(problem)[1] is not None


class Residual(nn.Module):
    """Its inputs go past the first layer too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs):
        return self.second(inputs + self.first(inputs).relu())


class Tied(nn.Module):
    """One layer, twice."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.only(self.only(inputs).relu())[:, :2]


class Branches(nn.Module):
    """Two layers read the inputs."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, inputs):
        return self.one(inputs) * self.other(inputs).sigmoid()


class Written(nn.Module):
    """A first layer whose weights are taken by hand, of inputs with two axes."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(3, 4))
        self.norm, self.last = nn.LayerNorm(3), nn.Linear(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, inputs):
        hidden = self.norm(inputs.reshape(-1, 4) @ self.matrix.T)
        return self.out(self.last(hidden).tanh())


@pytest.mark.parametrize(
    ("module", "shape", "name"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)), (4,), "0.weight"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Softmax(1)), (2, 2), "1.weight"),
        (Written, (2, 2), "matrix"),
        (Residual, (4,), None),
        (Tied, (4,), None),
        (Branches, (4,), None),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), (4,), None),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Flatten(), nn.Linear(4, 2)), (2, 2), None),
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2)), (2, 2), None),
    ],
)
def test_only_a_matrix_that_meets_all_of_the_inputs_alone_is_turned(module, shape, name):
    network = functionalise(module().eval())
    inputs = torch.randn(3, *shape, generator=seeded())
    assert first_weight(network, inputs) == name


def test_inputs_that_a_network_looks_at_stay_as_they_are():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 2)

        def forward(self, inputs):
            if bool((inputs < 0).any()):
                raise ValueError("no pixel is negative")
            return self.first(inputs)

    network = functionalise(Asks())
    assert first_weight(network, torch.rand(3, 4, generator=seeded())) is None


REST = {"0.bias": 1.0, "2.weight": 1.0, "2.bias": 1.0}


def test_draws_come_back_in_the_coordinates_of_the_network():
    # one long-chain mean of the predictions against the other coordinates: same posterior
    target = (correlated()[:, :1] - 3) * 0.3
    problem = problem_of(module=nn.Linear(4, 1), targets=target, likelihood=GaussianNoise(0.5))
    design = torch.cat([correlated(), torch.ones(40, 1, dtype=torch.float64)], 1)
    covariance = torch.linalg.inv(design.T @ design / 0.25 + 2 * torch.eye(5))
    mean = covariance @ design.T @ target / 0.25
    posterior = HMC(warmup=100, draws=500).fit(problem, generator=seeded(4))
    flat = problem.network.layout.flatten(posterior.stack)
    whitened = (flat - mean.T) @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T
    assert float(whitened.mean(0).abs().max()) < 0.15
    assert float((whitened.T.cov() - torch.eye(5)).abs().max()) < 0.25


def test_inputs_too_large_to_be_squared_are_named_by_the_energy():
    problem = problem_of()
    huge = replace(problem, train=replace(problem.train, inputs=problem.train.inputs * 1e200))
    assert along_axes(huge)[1] is None
    data = replace(huge.train, targets=torch.zeros(40, 2, dtype=torch.float64))
    broken = replace(huge, train=data, likelihood=GaussianNoise(1.0))
    linear = replace(broken, network=functionalise(nn.Linear(4, 2).double()))
    with pytest.raises(CosetError, match="not finite at the first weights"):
        HMC().fit(linear, generator=seeded())
