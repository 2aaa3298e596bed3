"""Linearised prediction: closed forms, mixtures of modes and gradients."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from coset import (
    KFAC,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    HeteroscedasticGaussian,
    Laplace,
    Linearised,
    Mixture,
    MonteCarlo,
    PointMass,
    SampledSoftmax,
    fit,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "curvature"))
from curvature_networks import build, problem_of
from structured_gaussians import pictures, posterior_of

pytestmark = pytest.mark.usefixtures("double")
RULE = Linearised()


def test_regression_is_closed_form(generator):
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs, GaussianNoise(0.5))
    posterior = posterior_of(problem, Full())
    network = problem.network
    found = RULE(posterior, network, GaussianNoise(0.5), inputs, generator=generator)
    torch.testing.assert_close(found.mean, network.apply(network.weights, inputs))
    spread = found.covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.variance, spread + 0.25)
    unknown = RULE(posterior, network, GaussianNoise(), inputs, generator=generator)
    assert unknown.variance is None


def test_two_outputs_a_target(generator):
    module, inputs = build("convolution over time", 5)
    likelihood = HeteroscedasticGaussian()
    problem = problem_of(module, inputs, likelihood)
    found = RULE(posterior_of(problem, Full()), problem.network, likelihood, inputs,
                 generator=generator)  # fmt: skip
    outputs = problem.network.apply(problem.network.weights, inputs)
    spread = found.covariance.diagonal(dim1=1, dim2=2)
    expected = spread[:, :1] + (outputs[:, 1:] + spread[:, 1:] / 2).exp()
    torch.testing.assert_close(found.variance, expected)
    assert found.mean.shape == (5, 1)


def test_it_agrees_with_draws_of_a_linear_network(generator):
    module, inputs = torch.nn.Linear(4, 2), torch.randn(3, 4)
    problem = problem_of(module, inputs, GaussianNoise(0.5))
    posterior = posterior_of(problem, Full())
    exact = RULE(posterior, problem.network, GaussianNoise(0.5), inputs, generator=generator)
    drawn = MonteCarlo(20_000)(
        posterior, problem.network, GaussianNoise(0.5), inputs, generator=generator
    )
    assert ((drawn.variance - exact.variance).abs() < 0.06 * exact.variance).all()


def test_sampled_links_give_members(generator):
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs)
    rule = Linearised(SampledSoftmax(9))
    found = rule(posterior_of(problem, KFAC()), problem.network, Categorical(), inputs,
                 generator=generator)  # fmt: skip
    assert found.members.shape == (9, 5, 3)


def test_a_mixture_of_modes(generator):
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs)
    one = posterior_of(problem, KFAC())
    two = posterior_of(problem, DiagonalOnly())
    arguments = (problem.network, Categorical(), inputs)
    parts = [RULE(part, *arguments, generator=generator).mean for part in (one, two)]
    mixture = Mixture((one, two), torch.tensor([0.25, 0.75]).log())
    found = RULE(mixture, *arguments, generator=generator)
    torch.testing.assert_close(found.mean, 0.25 * parts[0] + 0.75 * parts[1])
    assert found.variance is not None


def test_a_mixture_of_regressions_is_as_wide_as_its_modes_lie_apart(generator):
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs)
    one = posterior_of(problem, KFAC())
    two = replace(one, mean={name: 1.5 * tensor for name, tensor in one.mean.items()})
    arguments = (problem.network, GaussianNoise(0.5), inputs)
    first, second = (RULE(part, *arguments, generator=generator) for part in (one, two))
    mixture = Mixture((one, two), torch.tensor([0.25, 0.75]).log())
    found = RULE(mixture, *arguments, generator=generator)
    squares = 0.25 * (first.variance + first.mean**2) + 0.75 * (second.variance + second.mean**2)
    torch.testing.assert_close(found.variance, squares - found.mean**2)


@pytest.mark.parametrize("likelihood", [Categorical(), GaussianNoise(0.5)], ids=repr)
def test_the_covariance_of_a_mixture_counts_how_far_its_modes_lie_apart(generator, likelihood):
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs)
    one = posterior_of(problem, KFAC())
    two = replace(one, mean={name: 1.5 * tensor for name, tensor in one.mean.items()})
    arguments = (problem.network, likelihood, inputs)
    inner = Mixture((one, two))  # of equal weights; the outer one has another of the second
    mixture = Mixture((inner, two), torch.tensor([0.5, 0.5]).log())
    found = RULE(mixture, *arguments, generator=generator)
    outputs = [problem.network.apply(part.mean, inputs) for part in (one, two)]
    own = [RULE(part, *arguments, generator=generator).covariance for part in (one, two)]
    second = sum(
        weight * (covariance + torch.einsum("nc,nd->ncd", mean, mean))
        for weight, covariance, mean in zip((0.25, 0.75), own, outputs, strict=True)
    )
    mean = 0.25 * outputs[0] + 0.75 * outputs[1]
    expected = second - torch.einsum("nc,nd->ncd", mean, mean)
    torch.testing.assert_close(found.covariance, expected)
    noise = 0.25 if isinstance(likelihood, GaussianNoise) else 0.0
    torch.testing.assert_close(found.variance, expected.diagonal(dim1=1, dim2=2) + noise)


def test_a_mixture_of_pictures_has_one_covariance_a_pixel(generator):
    module, inputs = pictures(3)
    problem = problem_of(module, inputs)
    one = posterior_of(problem, DiagonalOnly())
    two = replace(one, mean={name: 1.5 * tensor for name, tensor in one.mean.items()})
    arguments = (problem.network, Categorical(), inputs)
    found = RULE(Mixture((one, two)), *arguments, generator=generator)
    assert found.variance.shape == found.mean.shape
    outputs = torch.stack([problem.network.apply(part.mean, inputs) for part in (one, two)])
    own = [RULE(part, *arguments, generator=generator).variance for part in (one, two)]
    expected = (own[0] + own[1]) / 2 + outputs.var(0, correction=0)
    torch.testing.assert_close(found.variance, expected)


def test_refusals(generator):
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs)
    with pytest.raises(CosetError, match="needed a Gaussian"):
        RULE(PointMass(problem.network.weights), problem.network, Categorical(), inputs,
             generator=generator)  # fmt: skip


@pytest.mark.parametrize("name", ["mlp", "convolutions", "attention"])
@pytest.mark.parametrize("recipe", [KFAC(), DiagonalOnly(), Full()], ids=repr)
def test_gradients_in_the_inputs(name, recipe, generator):
    module, inputs = build(name, 2)
    for layer in module.modules():
        if isinstance(layer, nn.ReLU):  # a kink has no gradient to check
            layer.forward = torch.tanh
    problem = problem_of(module, inputs)
    posterior, network = posterior_of(problem, recipe), problem.network
    plain = RULE(posterior, network, Categorical(), inputs, generator=generator)

    def predict(x):
        found = RULE(posterior, network, Categorical(), x, generator=generator)
        return found.mean, found.variance

    leaf = inputs.clone().requires_grad_()
    mean, variance = predict(leaf)
    torch.testing.assert_close(mean, plain.mean)
    torch.testing.assert_close(variance, plain.variance)
    assert torch.autograd.gradcheck(predict, leaf, fast_mode=True)


def test_gradients_in_the_precisions(generator):
    """A prior that wants gradients gets them from the predictive variance."""
    module, inputs = build("mlp", 6)
    data = inputs, torch.randn(6, 3)

    for recipe in (KFAC(), DiagonalOnly(), Full()):

        def spread(log_precision, recipe=recipe):
            prior = GaussianPrior(log_precision.exp())
            predictor = fit(module, data, method=Laplace(recipe, tuning=None), prior=prior,
                            likelihood=GaussianNoise(0.5))  # fmt: skip
            return predictor(inputs).variance

        assert torch.autograd.gradcheck(spread, torch.tensor(0.3, requires_grad=True))
