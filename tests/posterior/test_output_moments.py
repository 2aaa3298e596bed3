"""Covariances of outputs: the factor space against the Jacobian."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from coset import (
    KFAC,
    Bernoulli,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    HeteroscedasticGaussian,
    Linearised,
    Probit,
)
from coset.curvature.measure import Cuts
from coset.inference.updating import add_data
from coset.linalg import Dense
from coset.posterior import output_moments
from coset.posterior.linearised import predict_from_moments

sys.path.insert(0, str(Path(__file__).parents[1] / "curvature"))
from curvature_networks import NETWORKS, brute_jacobian, build, problem_of
from structured_gaussians import pictures, posterior_of

pytestmark = pytest.mark.usefixtures("double")
RULE = Linearised()


def covariance_by_jacobian(posterior, network, inputs):
    jacobian = brute_jacobian(network, network.layout, inputs)
    return jacobian @ posterior.covariance.matmat(torch.eye(network.layout.size)) @ jacobian.mT


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "recipe", [KFAC(), KFAC(corrected=False), DiagonalOnly(), Full()], ids=repr
)
def test_covariance_of_the_outputs(name, recipe, generator):
    module, inputs = build(name, 6)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, recipe)
    predictions = RULE(posterior, problem.network, Categorical(), inputs, generator=generator)
    expected = covariance_by_jacobian(posterior, problem.network, inputs)
    torch.testing.assert_close(predictions.covariance, expected)
    torch.testing.assert_close(predictions.variance, expected.diagonal(dim1=1, dim2=2))
    assert predictions.members.shape[0] == 1
    torch.testing.assert_close(predictions.mean.sum(1), torch.ones(6))


@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_one_precision_a_row(name, generator):
    module, inputs = build(name, 6)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, KFAC(), rows=True, cuts=Cuts(rows=frozenset({"0.weight"})))
    found = RULE(posterior, problem.network, Categorical(), inputs, generator=generator).covariance
    torch.testing.assert_close(found, covariance_by_jacobian(posterior, problem.network, inputs))


@pytest.mark.parametrize("size", [3, 12])  # fewer positions than columns, and more
@pytest.mark.parametrize("entries", [1, 1 << 19])
@pytest.mark.parametrize("rows", [False, True])
def test_positions_and_chunks(size, entries, rows, generator, monkeypatch):
    monkeypatch.setattr("coset.curvature.correction._CACHE", entries)
    monkeypatch.setattr(output_moments, "_KEPT", 1 if entries == 1 else 1 << 26)
    module = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 3, padding=1, bias=False),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    inputs = torch.randn(10, 3, size, size)
    problem = problem_of(module, inputs)
    posterior = posterior_of(
        problem, KFAC(), rows, Cuts(rows=frozenset({"0.weight"} if rows else ()))
    )
    found = RULE(posterior, problem.network, Categorical(), inputs, generator=generator).covariance
    torch.testing.assert_close(found, covariance_by_jacobian(posterior, problem.network, inputs))


def test_blocks_in_another_order_are_read_as_what_they_are(generator):
    """A record of an older version: weights of a convolution channel by channel."""
    module, inputs = build("convolutions", 6)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, KFAC())
    covariance = posterior.covariance
    first = covariance.blocks[0]
    mixed = torch.randperm(first.table.numel())
    matrix = first.matmat(torch.eye(first.table.numel()))[mixed][:, mixed]
    order = covariance.order.clone()
    order[: len(mixed)] = order[: len(mixed)][mixed]
    other = replace(covariance, blocks=(Dense(matrix), *covariance.blocks[1:]), order=order)
    expected = RULE(posterior, problem.network, Categorical(), inputs, generator=generator)
    found = RULE(
        replace(posterior, covariance=other), problem.network, Categorical(), inputs,
        generator=generator,
    )  # fmt: skip
    torch.testing.assert_close(found.covariance, expected.covariance)
    with pytest.raises(CosetError, match="another order"):
        add_data(replace(posterior, covariance=other), problem, mean="kept")


def test_blocks_that_keep_the_bias_apart(generator):
    module, inputs = build("mlp", 6)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, KFAC(), cuts=Cuts(separate=frozenset({"2.weight"})))
    found = RULE(posterior, problem.network, Categorical(), inputs, generator=generator).covariance
    torch.testing.assert_close(found, covariance_by_jacobian(posterior, problem.network, inputs))


@pytest.mark.parametrize("recipe", [KFAC(), DiagonalOnly(), Full()], ids=repr)
def test_covariances_from_samples(recipe, generator):
    """Pixels too; 2,000 samples, six standard errors: by chance once in some millions of seeds."""
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1)).eval()
    inputs = torch.randn(3, 1, 5, 5)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, recipe)
    exact, drawn = (
        rule(posterior, problem.network, Categorical(), inputs, generator=generator)
        for rule in (RULE, Linearised(samples=2000))
    )
    assert exact.covariance.shape == drawn.covariance.shape == (3, 2, 2, 3, 3)
    sizes = exact.variance.sqrt()
    errors = (sizes.unsqueeze(1) * sizes.unsqueeze(2)) * (2 / 2000) ** 0.5
    assert float(((drawn.covariance - exact.covariance).abs() / errors).max()) < 6
    with pytest.raises(CosetError, match="samples"):
        Linearised(samples=0)
    with pytest.raises(CosetError, match="gradients"):
        Linearised(samples=2)(
            posterior,
            problem.network,
            Categorical(),
            inputs.clone().requires_grad_(),
            generator=generator,
        )


PIXELS = {
    "classes": (Categorical(), 3),
    "labels": (Bernoulli(), 2),
    "values": (GaussianNoise(0.5), 2),
    "values with their own noise": (HeteroscedasticGaussian(), 4),
}


@pytest.mark.parametrize("kind", PIXELS)
@pytest.mark.parametrize("recipe", [KFAC(), DiagonalOnly(), Full()], ids=repr)
@pytest.mark.parametrize("entries", [1, 1 << 23])
def test_pixels(kind, recipe, entries, generator, monkeypatch):
    """Each pixel is an output of its own, in chunks of any size."""
    monkeypatch.setattr(output_moments, "_ENTRIES", entries)
    monkeypatch.setattr(output_moments, "_KEPT", entries)
    likelihood, channels = PIXELS[kind]
    module, inputs = pictures(channels)
    problem = problem_of(module, inputs, likelihood)
    posterior = posterior_of(problem, recipe)
    network, size = problem.network, problem.network.layout.size
    found = RULE(posterior, network, likelihood, inputs, generator=generator)
    rows = replace(network, apply=lambda w, x: network.apply(w, x).movedim(1, -1).flatten(1))
    jacobian = brute_jacobian(rows, network.layout, inputs).reshape(3, 6, channels, size)
    matrix = posterior.covariance.matmat(torch.eye(size))
    expected = jacobian @ matrix @ jacobian.mT  # n pixels c c
    covariance = found.covariance.flatten(3).permute(0, 3, 1, 2)
    torch.testing.assert_close(covariance, expected)
    outputs = network.apply(network.weights, inputs)
    flat = outputs.flatten(2).mT.flatten(0, 1)
    one = predict_from_moments(
        flat, expected.flatten(0, 1), likelihood, Probit(), generator
    )  # the same pixels as examples
    torch.testing.assert_close(found.mean.flatten(2).mT.flatten(0, 1), one.mean)
    torch.testing.assert_close(found.variance.flatten(2).mT.flatten(0, 1), one.variance)
