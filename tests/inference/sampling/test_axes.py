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
from coset.inference.sampling.axes import along_axes
from coset.inference.sampling.targets import FullBatch
from coset.inference.training.members import starting_points


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
    turned, axes = along_axes(plain)
    positions, buffers = plain.target.split(chains)
    there = axes.turned(positions)
    torch.testing.assert_close(axes.back(there), positions)
    assert not torch.allclose(there, positions)
    found, wanted = turned(there, buffers), plain(positions, buffers)
    torch.testing.assert_close(found.energy, wanted.energy)
    torch.testing.assert_close(found.gradient, axes.turned(wanted.gradient))


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
    turned, axes = along_axes(plain)
    assert turned.loss.inputs.shape == (40, 4)
    positions, buffers = plain.target.split(stack)
    found, wanted = turned(axes.turned(positions), buffers), plain(positions, buffers)
    exact = {"atol": 1e-9, "rtol": 1e-9} if kind == torch.float64 else {"atol": 1e-3, "rtol": 1e-5}
    torch.testing.assert_close(found.energy, wanted.energy, **exact)
    torch.testing.assert_close(axes.back(found.gradient), wanted.gradient, **exact)
    pulled = turned.gradient(axes.turned(positions), buffers, into=torch.empty_like(positions))
    torch.testing.assert_close(axes.back(pulled), wanted.gradient, **exact)


def test_inputs_that_are_all_zero_keep_an_axis():
    problem = problem_of()
    silent = replace(problem, train=replace(problem.train, inputs=torch.zeros_like(correlated())))
    stack = starting_points(silent, None, [0])
    plain = FullBatch.of(silent, stack)
    turned, axes = along_axes(plain)
    positions, buffers = plain.target.split(stack)
    wanted = plain(positions, buffers).energy
    torch.testing.assert_close(turned(axes.turned(positions), buffers).energy, wanted)


def test_the_hessian_of_a_linear_model_becomes_diagonal():
    problem = problem_of(
        module=nn.Linear(4, 1, bias=False),
        targets=torch.zeros(40, 1, dtype=torch.float64),
        likelihood=GaussianNoise(0.5),
    )
    turned, _ = along_axes(FullBatch.of(problem, starting_points(problem, None, [0])))
    unit = torch.eye(4, dtype=torch.float64)
    zero = turned(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 0)).gradient
    columns = [turned(row[None], torch.zeros(1, 0)).gradient - zero for row in unit]
    hessian = torch.cat(columns)
    wanted = torch.linalg.eigvalsh(correlated().T @ correlated() / 0.25) + 2
    torch.testing.assert_close(hessian, wanted.diag(), atol=1e-8, rtol=1e-8)


def test_priors_that_notice_are_left_alone():
    shaped = GaussianPrior({"0.weight": torch.tensor([[1.0, 2.0, 1.0, 1.0]]), **REST})
    problem = problem_of(shaped)
    assert along_axes(FullBatch.of(problem, starting_points(problem, None, [0])))[1] is None
    rows = GaussianPrior({"0.weight": torch.tensor([[1.0], [2.0], [3.0]]), **REST})
    problem = problem_of(rows)
    assert along_axes(FullBatch.of(problem, starting_points(problem, None, [0])))[1] is not None


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
    target = FullBatch.of(huge, starting_points(huge, None, [0]))
    assert along_axes(target)[1] is None
    data = replace(huge.train, targets=torch.zeros(40, 2, dtype=torch.float64))
    broken = replace(huge, train=data, likelihood=GaussianNoise(1.0))
    linear = replace(broken, network=functionalise(nn.Linear(4, 2).double()))
    with pytest.raises(CosetError, match="not finite at the first weights"):
        HMC().fit(linear, generator=seeded())
