import math

import pytest
import torch
from tests.tomography.tomography_problems import fitted_problem, seeded

from coset.tomography.evidence import tune
from coset.tomography.posterior import exact_posterior
from coset.tomography.priors import TotalVariationInformed


@pytest.fixture(scope="module")
def setting():
    _, observed, features, pixels, rows, problem = fitted_problem()
    tuned = tune(problem, TotalVariationInformed(), level=observed.level)
    posterior = exact_posterior(
        features, [pixels], rows, observed.operator, problem, tuned.scales,
        samples=16_384, dense=True, generator=seeded(),
    )  # fmt: skip
    return features, pixels, rows, observed, problem, tuned.scales, posterior


def test_mean_and_covariance_in_weights(setting):
    """Bayesian linear regression on the weights, pushed to the pixels."""
    features, pixels, rows, _, problem, scales, posterior = setting
    prior = torch.block_diag(
        *[
            torch.kron(torch.eye(each.shape[1]).double(), c)
            for each, c in zip(rows, scales.covariances(), strict=True)
        ]
    )
    seen = torch.cat([each.flatten(1) for each in rows], 1)
    shown = torch.cat([each.flatten(1) for each in pixels], 1)
    gain = prior @ seen.T @ torch.linalg.inv(problem.covariance(scales))
    covariance = shown @ (prior - gain @ seen @ prior) @ shown.T
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(posterior.variance, covariance.diagonal(), rtol=1e-6, atol=1e-9)
    weights = torch.cat([w.flatten() for w in features.weights()]).double()
    image = features.fitted.image.flatten().double()
    mean = image + shown @ (gain @ problem.residual - weights)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-6, atol=1e-8)


def test_samples_have_the_exact_moments(setting):
    """16,384 draws: means within 5 standard errors, variances within 5 √(2/m) (1 in 10⁴ seeds)."""
    *_, posterior = setting
    many = len(posterior.samples)
    deviation = posterior.variance.sqrt()
    seen = deviation > 1e-3 * deviation.max()
    error = (posterior.samples.mean(0) - posterior.mean) / deviation
    assert float(error[seen].abs().max()) < 5 / math.sqrt(many)
    ratio = posterior.samples.var(0) / posterior.variance
    assert float((ratio[seen] - 1).abs().max()) < 5 * math.sqrt(2 / many)
    found = torch.cov(posterior.samples.T)
    gap = (found - posterior.covariance).norm() / posterior.covariance.norm()
    assert float(gap) < 0.1


def test_pixels_in_pieces_give_the_same_numbers(setting):
    features, _, rows, observed, problem, scales, posterior = setting
    again = exact_posterior(
        features, features.chunks(torch.eye(100)), rows, observed.operator, problem, scales,
        samples=16_384, dense=False, generator=seeded(),
    )  # fmt: skip
    torch.testing.assert_close(again.mean, posterior.mean)
    torch.testing.assert_close(again.variance, posterior.variance)
    torch.testing.assert_close(again.samples, posterior.samples)
    assert again.covariance is None
