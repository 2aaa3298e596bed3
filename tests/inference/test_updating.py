"""Data added to a posterior, against a fit to all data together."""

import pytest
import torch
from laplace_problems import blobs, classifier, regressor, train, wave
from torch import nn

from coset import (
    KFAC,
    ByEvidence,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    LowRank,
    MaximumAPosteriori,
    Subnetwork,
    fit,
    load,
    metrics,
)
from coset.linalg import dense, diagonal, inverse

pytestmark = pytest.mark.usefixtures("double")
NOISE, PRIOR = GaussianNoise(0.4), GaussianPrior(0.7)


def line(rows):
    inputs = torch.randn(rows, 3)
    return inputs, inputs @ torch.randn(3, 2) + 0.4 * torch.randn(rows, 2)


def ridge(inputs, targets):
    """The exact posterior mean as a module."""
    features = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
    system = features.mT @ features / 0.16 + 0.7 * torch.eye(4)
    solution = torch.linalg.solve(system, features.mT @ targets / 0.16)
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(solution[:3].mT)
        module.bias.copy_(solution[3])
    return module


def exact(module, data, recipe, **options):
    method = Laplace(recipe, tuning=None, **options)
    return fit(module, data, method=method, likelihood=NOISE, prior=PRIOR)


def matrix(predictor):
    return dense(predictor.posterior.covariance, like=torch.zeros(()))


@pytest.mark.parametrize("rows", [(2, 1), (2, 9), (12, 9)])  # rows below, across, above weights
def test_a_linear_model_with_gaussian_noise_is_exact(rows):
    old, new = line(rows[0]), line(rows[1])
    both = tuple(torch.cat(parts) for parts in zip(old, new, strict=True))
    updated = exact(ridge(*old), old, Full()).update(new)
    joint = exact(ridge(*both), both, Full())
    for name, tensor in joint.posterior.mean.items():
        torch.testing.assert_close(updated.posterior.mean[name], tensor, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(matrix(updated), matrix(joint), rtol=1e-8, atol=1e-10)
    assert updated.log_evidence == pytest.approx(joint.log_evidence, rel=1e-8)
    one_by_one = exact(ridge(*old), old, Full())
    for row in range(rows[1]):
        one_by_one = one_by_one.update((new[0][row : row + 1], new[1][row : row + 1]))
    torch.testing.assert_close(matrix(one_by_one), matrix(joint), rtol=1e-8, atol=1e-10)


def test_a_subnetwork_is_exact_too():
    old, new = line(12), line(9)
    both = tuple(torch.cat(parts) for parts in zip(old, new, strict=True))
    first = exact(ridge(*old), old, Full(), subset=Subnetwork(8))
    updated = first.update(new)
    joint = exact(ridge(*both), both, Full())
    torch.testing.assert_close(matrix(updated), matrix(joint), rtol=1e-8, atol=1e-10)
    assert updated.log_evidence == pytest.approx(joint.log_evidence, rel=1e-8)
    few = exact(ridge(*old), old, Full(), subset=Subnetwork(3)).update(new)
    still = torch.ones(8, dtype=torch.bool)
    still[few.posterior.covariance.index] = False
    layout = few.posterior.layout
    before = layout.flatten(first.posterior.mean)
    assert torch.equal(layout.flatten(few.posterior.mean)[still], before[still])


def test_a_diagonal_adds_its_diagonal():
    old, new = line(12), line(9)
    both = tuple(torch.cat(parts) for parts in zip(old, new, strict=True))
    module = ridge(*old)
    updated = exact(module, old, DiagonalOnly()).update(new, mean="kept")
    joint = exact(module, both, DiagonalOnly())
    torch.testing.assert_close(
        diagonal(updated.posterior.covariance), diagonal(joint.posterior.covariance)
    )


@pytest.mark.parametrize("rows", [None, torch.tensor([[0.5], [1.5]])], ids=["layers", "rows"])
def test_kronecker_blocks(rows):
    """Exact for data with the old eigenvectors; for all others the trace is."""
    old, new = line(12), line(9)
    module = ridge(*old)
    table = {"weight": rows, "bias": rows.squeeze(1)} if rows is not None else 0.7
    prior = GaussianPrior(table)

    def fitted(data):
        return fit(module, data, method=Laplace(tuning=None), likelihood=NOISE, prior=prior)

    twice = tuple(torch.cat([part, part]) for part in old)
    again = fitted(old).update(old, mean="kept")
    torch.testing.assert_close(matrix(again), matrix(fitted(twice)), rtol=1e-8, atol=1e-10)
    both = tuple(torch.cat(parts) for parts in zip(old, new, strict=True))
    traces = [
        diagonal(inverse(found.posterior.covariance)).sum()
        for found in (fitted(old).update(new), fitted(both))
    ]
    torch.testing.assert_close(traces[0], traces[1])


def test_classes_move_to_the_mode():
    """Where the gradient of the new data meets the pull of the old posterior."""
    old, new = blobs(30), blobs(21)
    module = train(nn.Linear(2, 3), *old)
    predictor = fit(module, old, method=Laplace(Full(), tuning=ByEvidence()))
    updated = predictor.update(new)
    layout = predictor.posterior.layout
    centre = layout.flatten(predictor.posterior.mean)
    precision = torch.linalg.inv(matrix(predictor))

    def cost(flat):
        weights = layout.unflatten(flat)
        outputs = new[0] @ weights["weight"].mT + weights["bias"]
        loss = nn.functional.cross_entropy(outputs, new[1], reduction="sum")
        return loss + (flat - centre) @ precision @ (flat - centre) / 2

    mode = layout.flatten(updated.posterior.mean)
    slope = torch.autograd.functional.jacobian(cost, mode)
    assert slope.abs().max() < 1e-6
    hessian = torch.autograd.functional.hessian(cost, mode)
    torch.testing.assert_close(torch.linalg.inv(hessian), matrix(updated))


@pytest.mark.parametrize("recipe", [Full(), KFAC(), DiagonalOnly(), LowRank(6)], ids=repr)
def test_networks_learn_from_more_data(recipe, tmp_path):
    old, new = blobs(20), blobs(200)
    module = train(classifier(), *old)
    predictor = fit(module, old, method=Laplace(recipe))
    updated = predictor.update(new)
    before, after = (
        metrics.negative_log_likelihood(found(new[0]).mean, new[1])
        for found in (predictor, updated)
    )
    assert after < before
    assert (updated(new[0]).variance < predictor(new[0]).variance).double().mean() > 0.9
    updated.save(tmp_path / "updated.safetensors")
    loaded = load(tmp_path / "updated.safetensors", classifier())
    torch.testing.assert_close(loaded(new[0]).mean, updated(new[0]).mean)


@pytest.mark.parametrize("recipe", [Full(), KFAC(), LowRank(20)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_network_that_is_far_from_its_tangent_gets_no_worse(recipe, dtype):
    inputs = torch.randn(80, 2) @ torch.randn(2, 4) + 0.1 * torch.randn(80, 4)
    targets = torch.sin(2 * inputs.sum(1, keepdim=True)) + 0.1 * torch.randn(80, 1)
    module = nn.Sequential(
        nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 10), nn.Tanh(), nn.Linear(10, 1)
    )
    module = train(module, inputs, targets, steps=400).to(dtype)
    old, new = ((inputs[p].to(dtype), targets[p].to(dtype)) for p in (slice(40), slice(40, 80)))
    method = Laplace(recipe, tuning=None)
    predictor = fit(module, old, method=method, likelihood=GaussianNoise(0.02))
    updated = predictor.update(new)

    def loss(found, data):
        return float((found(data[0]).mean - data[1]).square().mean())

    assert loss(updated, new) < loss(predictor, new)
    assert loss(updated, old) < 2 * loss(predictor, old)


def test_refusals():
    data = wave()
    predictor = fit(regressor(), data, likelihood=GaussianNoise(0.2))
    with pytest.raises(CosetError, match="mean='fixed'"):
        predictor.update(data, mean="fixed")
    with pytest.raises(CosetError, match="targets of shape"):
        predictor.update((data[0], torch.zeros(30, 2)))
    trained = fit(regressor(), data, method=MaximumAPosteriori(epochs=1), likelihood=NOISE)
    with pytest.raises(CosetError, match="PointMass"):
        trained.update(data)
