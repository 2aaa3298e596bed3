"""Samples, effective dimensions and predictions against the dense tangent posterior.

Statements about samples are tests at a fixed seed; each says how often it would fail by chance.
"""

import math

import pytest
import torch
from sampled_problems import EXACT, data, dense_of, likelihood, perceptron, problem_of, trained
from torch import nn

from coset import KFAC, DiagonalOnly, Full, GaussianNoise, GaussianPrior, Laplace, fit
from coset.curvature.matrix_free import ConjugateGradients, MatrixFree, StochasticDescent
from coset.inference.laplace.groups import Groups
from coset.inference.laplace.part import LastLayer
from coset.inference.matrix_free.model import Model, estimate_diagonal

pytestmark = pytest.mark.usefixtures("double")


def kept(samples, solver=EXACT, **options):
    return Laplace(curvature=MatrixFree(samples, solver, **options), tuning=None)


def sampled(kind, generator, samples=1000, solver=EXACT, **options):
    pair = data(kind)
    module = trained(perceptron(), pair, likelihood(kind))
    problem = problem_of(module, pair, likelihood(kind), prior=2.0)
    posterior = kept(samples, solver, **options).fit(problem, generator=generator)
    return problem, pair, posterior, posterior.layout.flatten(posterior.deviations)


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_samples_have_the_covariance_of_the_tangent_posterior(kind, generator):
    """Whitened, they are standard normal.

    Of the means and second moments of 22 weights (22 + 253 numbers, normal for many samples) none
    is further out than 5 standard errors: by chance once in some 6,000 seeds.
    """
    problem, (inputs, _), _, samples = sampled(kind, generator)
    covariance = dense_of(problem, inputs).covariance(2.0)
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), samples.mT, upper=False
    ).mT
    count, size = white.shape
    assert float((white.mean(0) * math.sqrt(count)).abs().max()) < 5
    error = torch.full((size, size), 1.0) + torch.eye(size)  # variance of a product of two normals
    moments = (white.mT @ white / count - torch.eye(size)) * (count / error).sqrt()
    assert float(moments.abs().max()) < 5


@pytest.mark.parametrize("near", [KFAC(), KFAC(corrected=False), DiagonalOnly(), None])
def test_whatever_the_preconditioner_the_samples_are_the_same(near, generator):
    solver = ConjugateGradients(near, tolerance=1e-8, iterations=2_000)
    _, _, _, samples = sampled("classes", generator, 3, solver)
    torch.manual_seed(0)
    _, _, _, expected = sampled("classes", torch.Generator().manual_seed(0), 3)
    torch.testing.assert_close(samples, expected, rtol=1e-5, atol=1e-6)


def test_a_solution_is_the_dense_one(generator):
    """``(H + Λ) z = b`` for the very right-hand sides that were drawn."""
    solver = ConjugateGradients(tolerance=1e-9, iterations=2_000)
    problem, (inputs, targets), posterior, samples = sampled("classes", generator, 4, solver)
    dense = dense_of(problem, inputs)
    model = model_of(problem, targets, dense, seed_of(torch.Generator().manual_seed(0)), 4)
    flat = torch.full((problem.network.layout.size,), 2.0)
    right = model.pulled_noise(model.tangent, model.tangent.outputs)
    right = right + flat[:, None] * model.prior_samples(flat)
    expected = torch.linalg.solve(dense.curvature + torch.diag(flat), right)
    torch.testing.assert_close(samples.mT, expected, rtol=1e-6, atol=1e-7)
    assert posterior.report.diagnostics["residual"] <= 1e-8


def seed_of(generator):
    return int(torch.randint(2**62, (), generator=generator))


def model_of(problem, targets, dense, seed, samples):
    from coset.curvature.tangent import tangent_of

    layout = problem.network.layout
    tangent = tangent_of(problem, problem.network.weights, layout)
    groups = Groups(layout, torch.zeros(layout.size, dtype=torch.long), ("all",))
    return Model(tangent, groups, torch.ones(layout.size), "full", False, seed, samples)


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_the_effective_dimension_is_the_trace(kind, generator):
    """Within 4 standard errors: by chance once in some 10,000 seeds."""
    problem, (inputs, _), posterior, _ = sampled(kind, generator, 200)
    dense = dense_of(problem, inputs)
    exact = float((dense.curvature @ dense.covariance(2.0)).trace())
    found = posterior.report.diagnostics
    error = found["effective_weights_error"]
    assert abs(found["effective_weights"] - exact) < 4 * error
    assert error < 0.2 * exact


@pytest.mark.parametrize("prior", [1.0, 100.0])
def test_few_data_of_a_wide_network_have_few_effective_weights(prior, generator):
    """``tr(H Σ)`` within 4 standard errors of 8 samples: by chance once in some 200 seeds.

    A residual that is measured against all 54,003 weights is small long before the eight
    directions that the data know of are found; thirteen weights then seemed known of three.
    """
    module = nn.Sequential(nn.Linear(50, 1000), nn.Tanh(), nn.Linear(1000, 3))
    pair = torch.randn(4, 50), torch.arange(4) % 3
    crude = MatrixFree(8, ConjugateGradients(DiagonalOnly(), tolerance=0.05))
    samples, exact = (
        fit(
            module,
            pair,
            method=Laplace(curvature, tuning=None),
            prior=GaussianPrior(prior),
            generator=generator,
        ).posterior.report.diagnostics
        for curvature in (crude, Full())
    )
    apart = abs(samples["effective_weights"] - exact["effective_weights"])
    assert apart < 4 * samples["effective_weights_error"]


def test_the_effective_dimensions_of_groups_are_blocks_of_the_trace(generator):
    """Eight numbers within 5 standard errors each."""
    problem, (inputs, targets), _, samples = sampled("regression", generator, 400)
    dense, layout = dense_of(problem, inputs), problem.network.layout
    model = model_of(problem, targets, dense, 0, 400)
    labels = torch.arange(layout.size) // 3
    groups = Groups(layout, labels, tuple(str(i) for i in range(int(labels.max()) + 1)))
    model = Model(model.tangent, groups, model.features, "full", False, 0, 400)
    gamma, error = model.effective(samples.mT, dense.curvature @ samples.mT)
    products = dense.curvature @ dense.covariance(2.0)
    exact = torch.zeros_like(gamma).index_add_(0, labels, products.diagonal())
    assert float(((gamma - exact) / error).abs().max()) < 5


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_predictions_are_those_of_the_dense_posterior(kind, generator):
    """Twenty variances of 1,000 samples, each within 5 standard errors (√(2 / 1,000))."""
    problem, (inputs, _), posterior, _ = sampled(kind, generator)
    new = torch.randn(10, 2)
    jacobian = dense_of(problem, new).jacobian
    covariance = dense_of(problem, inputs).covariance(2.0)
    exact = jacobian @ covariance @ jacobian.mT
    mean, found = posterior.output_moments(problem.network, new)
    torch.testing.assert_close(mean, problem.network.apply(problem.network.weights, new))
    ratio = found.diagonal(dim1=1, dim2=2) / exact.diagonal(dim1=1, dim2=2)
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / 1000)


def test_descent_comes_close_to_the_solution(generator):
    problem, _, posterior, samples = sampled(
        "regression", generator, 8, StochasticDescent(epochs=100, batch=12)
    )
    torch.manual_seed(0)
    _, _, _, exact = sampled("regression", torch.Generator().manual_seed(0), 8)
    new = torch.randn(20, 2)
    jacobian = dense_of(problem, new).jacobian
    off, size = jacobian @ (samples - exact).mT, jacobian @ exact.mT
    assert float(off.norm() / size.norm()) < 0.1
    assert posterior.report.diagnostics["residual"] < 0.1


def test_the_diagonal_is_estimated_without_bias(generator):
    """22 means of 4,000 squares, each within 5 standard errors, which √(2 / 4,000) bounds."""
    problem, (inputs, targets), _, _ = sampled("classes", generator, 2)
    dense = dense_of(problem, inputs)
    model = model_of(problem, targets, dense, 0, 2)
    found = estimate_diagonal(model.tangent, model.tangent.outputs, probes=4_000, seed=3)
    ratio = found / dense.curvature.diagonal()
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / 4_000)


def test_the_g_prior_is_the_diagonal_of_the_curvature(generator):
    """Its samples solve ``(H + λ diag H) z = b``; the variance of a whitened one is one."""
    problem, (inputs, targets), _, samples = sampled(
        "regression", generator, 500, features="normalised"
    )
    dense = dense_of(problem, inputs)
    seed = seed_of(torch.Generator().manual_seed(0))
    model = model_of(problem, targets, dense, seed, 500)
    scale = estimate_diagonal(model.tangent, model.tangent.outputs, probes=500, seed=seed)
    system = dense.curvature + torch.diag(2.0 * scale)
    white = torch.linalg.cholesky(system).mT @ samples.mT
    assert float((white.square().mean() - 1).abs()) < 5 * math.sqrt(2 / white.numel())


def test_a_part_of_the_network_alone_is_uncertain(generator):
    pair = data("classes")
    module = trained(perceptron(), pair, likelihood("classes"))
    method = Laplace(curvature=MatrixFree(5), subset=LastLayer())
    predictor = fit(module, pair, method=method, generator=generator)
    assert predictor.posterior.layout.names == ("2.weight", "2.bias")


def test_outputs_with_pixels(generator):
    module = nn.Conv2d(1, 2, 3, padding=1, bias=False)
    pair = torch.randn(4, 1, 5, 5), torch.randn(4, 2, 5, 5)
    problem = problem_of(module, pair, GaussianNoise(0.5), prior=3.0)
    posterior = kept(2_000).fit(problem, generator=generator)
    patches = nn.functional.unfold(pair[0], 3, padding=1)  # n 9 pixels
    gram = torch.einsum("nip,njp->ij", patches, patches) / 0.25 + 3 * torch.eye(9)
    exact = torch.einsum("nip,ij,njp->np", patches, torch.linalg.inv(gram), patches)
    _, found = posterior.output_moments(problem.network, pair[0])
    assert found.shape == (4, 2, 2, 5, 5)
    ratio = found[:, 0, 0].flatten(1) / exact
    assert float((ratio - 1).abs().max()) < 5.5 * math.sqrt(2 / 2_000)
