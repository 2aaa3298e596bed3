"""Every method on a linear model with Gaussian noise, whose posterior is known.

What each owes: points lie at the mean, Laplace is exact, samplers have the moments of the
posterior (more of them in ``test_kernel_laws``), a factored Gaussian has the known optimum, SWAG
the mean (its stationary law is in ``test_swag``), dropout the ridge regression that it is.

False alarms: means and variances of ``E`` effective draws are allowed five standard errors,
``1 / √E`` and ``√(2 / E)``, beyond which one of nine numbers lies once in 190,000 seeds; seeds are
fixed.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from coset import (
    HMC,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    Adam,
    DeepEnsemble,
    Full,
    Laplace,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    RebasedGaussian,
)
from coset.bayes import GaussianNoise, GaussianPrior, Problem, as_batches
from coset.weights import functionalise
from problems import deviations, linear_gaussian

BASE = MaximumAPosteriori(optimiser=Adam(0.05), epochs=600)
EXACT = Laplace(curvature=Full(), tuning=None)
POINTS = {
    "map": BASE,
    "ensemble": DeepEnsemble(3, BASE),
    "multi-map": MultiMode(BASE, 2),
    "multi-ensemble": MultiMode(DeepEnsemble(2, BASE), 2),
}
FIELD = MeanField(optimiser=Adam(2e-2), epochs=1000)
FACTORED = {
    "mean field": FIELD,
    "mean field, flipout": replace(FIELD, estimator="flipout"),
    "mean field, shared": replace(FIELD, estimator="shared"),
    "multi-mean-field": MultiMode(FIELD, 2),
}
LONG = HMC(warmup=120, draws=200)
TREES = NUTS(warmup=100, draws=150)
MOMENTUM = SGHMC(burn_in=200, draws=150, thinning=10)
LANGEVIN = SGLD(burn_in=200, draws=150, thinning=15)
SAMPLED = {  # with what discretisation may add to a variance
    "HMC": (LONG, 0.0),
    "NUTS": (TREES, 0.0),
    "SGHMC": (MOMENTUM, 0.0),
    "SGLD": (LANGEVIN, 0.08),
    "multi-HMC": (MultiMode(LONG, 2), 0.0),
    "multi-NUTS": (MultiMode(TREES, 2), 0.0),
    "multi-SGHMC": (MultiMode(MOMENTUM, 2), 0.0),
    "multi-SGLD": (MultiMode(LANGEVIN, 2), 0.08),
    "rebased": (RebasedGaussian(LONG, rank=3), 0.0),
    "rebased by outputs": (RebasedGaussian(LONG, rank=3, by_outputs=True), 0.0),
    "rebased for density": (RebasedGaussian(LONG, rank=3, reference="gaussian"), 0.0),
    "not rebased": (RebasedGaussian(LONG, rank=3, align=None), 0.0),
    "multi-rebased": (MultiMode(RebasedGaussian(LONG, rank=3), 2), 0.0),
}


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def drawn(problem, posterior, draws=20_000):
    return problem.network.layout.flatten(posterior.sample(draws, generator=seeded(2)))


@pytest.mark.parametrize("name", POINTS)
def test_points_lie_at_the_mean(name):
    problem, mean, covariance = linear_gaussian()
    posterior = POINTS[name].fit(problem, generator=seeded())
    off = (drawn(problem, posterior, 12) - mean) / covariance.diagonal().sqrt()
    assert float(off.abs().max()) < 0.05


@pytest.mark.parametrize("name", ["Laplace", "multi-Laplace"])
def test_laplace_is_exact(name):
    problem, mean, covariance = linear_gaussian()
    start = problem.network.layout.unflatten(mean)
    method = EXACT if name == "Laplace" else MultiMode(EXACT, 2, base=BASE)
    posterior = method.fit(problem, start=start, generator=seeded())
    for part in getattr(posterior, "components", (posterior,)):
        samples = drawn(problem, part)
        off_mean, off_covariance = deviations(samples, mean, covariance)
        # the modes of the mixture are trained, to a twentieth of a standard deviation
        assert off_mean < 5 / math.sqrt(len(samples)) + (0.05 if name != "Laplace" else 0)
        assert off_covariance < 5 * math.sqrt(2 / len(samples))


@pytest.mark.parametrize("name", SAMPLED)
def test_samplers_have_the_moments_of_the_posterior(name):
    method, bias = SAMPLED[name]
    problem, mean, covariance = linear_gaussian()
    posterior = method.fit(problem, generator=seeded())
    parts = getattr(posterior, "components", (posterior,))
    for part in parts:
        effective = part.report.diagnostics["effective_draws_weights"]
        assert effective > 60
        stack = getattr(part, "stack", None)
        samples = drawn(problem, part) if stack is None else problem.network.layout.flatten(stack)
        spare = 5 / math.sqrt(len(samples)) if stack is None else 0.0  # of the draws themselves
        off_mean, off_covariance = deviations(samples, mean, covariance)
        assert off_mean < 5 / math.sqrt(effective) + spare
        assert off_covariance < bias + 5 * math.sqrt(2 / effective) + 1.5 * spare


@pytest.mark.parametrize("name", FACTORED)
def test_the_best_factored_gaussian_is_found(name):
    """It has the mean, and the inverse diagonal of the precision."""
    problem, mean, covariance = linear_gaussian()
    posterior = FACTORED[name].fit(problem, generator=seeded())
    wanted = torch.linalg.inv(covariance).diagonal().rsqrt()
    layout = problem.network.layout
    for part in getattr(posterior, "components", (posterior,)):
        off = (layout.flatten(part.mean) - mean) / wanted
        assert float(off.abs().max()) < 0.15
        torch.testing.assert_close(layout.flatten(part.std), wanted, rtol=0.07, atol=0)


@pytest.mark.parametrize("modes", [None, 2])
def test_swag_has_the_mean(modes):
    problem, mean, covariance = linear_gaussian()
    method = SWAG(rank=5, base=BASE, epochs=150)
    posterior = (method if modes is None else MultiMode(method, modes)).fit(
        problem, generator=seeded()
    )
    for part in getattr(posterior, "components", (posterior,)):
        error = problem.network.layout.flatten(part.mean) - mean
        # SGD's noise is about as large as the posterior: its mean is known to a few tenths
        assert float((error / covariance.diagonal().sqrt()).abs().max()) < 0.5


@pytest.mark.parametrize("modes", [None, 2])
def test_dropout_of_inputs_is_ridge_regression(modes):
    """``E |y - X (m ∘ w)|² = |y - X w|² + p / (1 - p) Σ_j |x_j|² w_j²`` over masks ``m``.

    They are ``1 / (1 - p)`` with probability ``1 - p``, else zero.  And the variance of the outputs
    over masks is ``p / (1 - p) Σ_j x_j² w_j²``.
    """
    rate, noise, precision = 0.3, 0.5, 1.0
    given, _, _ = linear_gaussian(noise=noise, precision=precision)
    inputs, targets = given.train.inputs, given.train.targets
    module = nn.Sequential(nn.Dropout(rate), nn.Linear(2, 1, bias=False)).double()
    problem = Problem(
        functionalise(module),
        GaussianNoise(noise),
        GaussianPrior(precision),
        as_batches((inputs, targets)),
    )
    odds, squares = rate / (1 - rate), inputs.T @ inputs
    ridge = squares + odds * squares.diagonal().diag()
    ridge = ridge + noise**2 * precision * torch.eye(2, dtype=torch.float64)
    wanted = torch.linalg.solve(ridge, inputs.T @ targets)[:, 0]
    base = MaximumAPosteriori(optimiser=Adam(0.02), epochs=1500)
    method = MCDropout(base)
    posterior = (method if modes is None else MultiMode(method, modes)).fit(
        problem, generator=seeded()
    )
    for part in getattr(posterior, "components", (posterior,)):
        # what the noise of 1,500 epochs of random masks leaves of the optimum, at a falling rate
        torch.testing.assert_close(part.weights["1.weight"][0], wanted, rtol=0.03, atol=0)
        draws = part.sample(8000, generator=seeded(3))
        outputs = torch.func.vmap(problem.network.apply, in_dims=(0, None))(draws, inputs[:6])
        spread = odds * (inputs[:6].square() @ part.weights["1.weight"][0].square())
        # two masks: kurtosis is below three, standard error of a variance below 1.6 %, five of them
        torch.testing.assert_close(outputs.var(0)[:, 0], spread, rtol=0.08, atol=0)
