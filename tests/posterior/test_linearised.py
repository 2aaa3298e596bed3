"""Linearised prediction: the factor space against the Jacobian."""

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
    Gaussian,
    GaussianNoise,
    GaussianPrior,
    HeteroscedasticGaussian,
    Laplace,
    Linearised,
    Mixture,
    MonteCarlo,
    PointMass,
    Probit,
    SampledSoftmax,
    fit,
)
from coset.curvature.measure import UNCUT, Cuts
from coset.inference.updating import add_data
from coset.linalg import Dense, inverse, shift
from coset.posterior import output_moments
from coset.posterior.linearised import predict_from_moments

sys.path.insert(0, str(Path(__file__).parents[1] / "curvature"))
from curvature_networks import NETWORKS, brute_jacobian, build, problem_of

pytestmark = pytest.mark.usefixtures("double")
RULE = Linearised()


def posterior_of(problem, recipe, rows=False, cuts=UNCUT):
    network = problem.network
    found = recipe.build(problem, network.weights, network.layout, cuts=cuts)
    precision = torch.full((network.layout.size,), 0.3)
    if rows:  # one precision a row of the first layer
        first = found.operator.order[: found.operator.sizes[0]]
        shape = found.operator.blocks[0].table.shape
        each = torch.rand(shape[0] * shape[1]).repeat_interleave(shape[2]) + 0.1
        precision[first] = each
    covariance = inverse(shift(found.operator, precision))
    return Gaussian(network.layout.restrict(network.weights), covariance, found.layers)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "recipe", [KFAC(), KFAC(corrected=False), DiagonalOnly(), Full()], ids=repr
)
def test_covariance_of_the_outputs(name, recipe, generator):
    module, inputs = build(name, 6)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, recipe)
    predictions = RULE(posterior, problem.network, Categorical(), inputs, generator=generator)
    jacobian = brute_jacobian(problem.network, problem.network.layout, inputs)
    size = problem.network.layout.size
    matrix = posterior.covariance.matmat(torch.eye(size))
    expected = jacobian @ matrix @ jacobian.mT
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
    jacobian = brute_jacobian(problem.network, problem.network.layout, inputs)
    matrix = posterior.covariance.matmat(torch.eye(problem.network.layout.size))
    torch.testing.assert_close(found, jacobian @ matrix @ jacobian.mT)


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
    jacobian = brute_jacobian(problem.network, problem.network.layout, inputs)
    matrix = posterior.covariance.matmat(torch.eye(problem.network.layout.size))
    torch.testing.assert_close(found, jacobian @ matrix @ jacobian.mT)


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
    jacobian = brute_jacobian(problem.network, problem.network.layout, inputs)
    matrix = posterior.covariance.matmat(torch.eye(problem.network.layout.size))
    torch.testing.assert_close(found, jacobian @ matrix @ jacobian.mT)


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


def pictures(channels):
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, channels, 3)
    ), torch.randn(3, 1, 5, 4)


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
