import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from tests.tomography.tomography_problems import fitted_problem, seeded

from coset.linalg.cholesky import cholesky
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


def test_the_variance_is_of_noise_and_of_what_is_not_seen(setting):
    """The part of the noise is the spread of the mean when readings are drawn again."""
    _, pixels, rows, observed, problem, scales, posterior = setting
    halves = [cholesky(each) for each in scales.covariances()]
    shown = torch.cat(
        [(p.double() @ half).flatten(1) for p, half in zip(pixels, halves, strict=True)], 1
    )
    seen = torch.cat(
        [(r.double() @ half).flatten(1) for r, half in zip(rows, halves, strict=True)], 1
    )
    gain = shown @ seen.T @ torch.linalg.inv(problem.covariance(scales))
    projector = torch.from_numpy(observed.operator.matrix.toarray())
    left = torch.eye(100).double() - gain @ projector
    unseen = (left @ shown @ shown.T @ left.T).diagonal()
    noise = (gain * problem.noise_variances(scales) @ gain.T).diagonal()
    torch.testing.assert_close(posterior.from_noise, noise, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(posterior.variance, noise + unseen, rtol=1e-5, atol=1e-8)


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


def test_images_from_the_models_own_prior_have_uniform_ranks(setting):
    """Simulation-based calibration (Talts et al. 2018): a false alarm in 1 of 50 seeds.

    200 images are drawn from the prior of the linear model, readings made of each, and the rank of
    the truth found among 99 posterior samples, for a pixel and for the mean of a region.
    """
    features, pixels, rows, observed, problem, scales, _ = setting
    random = seeded(11)
    noises = problem.noise_variances(scales).sqrt()
    weights = features.weights()
    region = torch.zeros(100, dtype=torch.float64)
    region[22:27] = region[32:37] = 0.1
    quantities = torch.stack([torch.eye(100).double()[45], region])
    ranks = []
    for _ in range(200):
        drawn = [
            torch.randn(len(w), len(c), generator=random).double() @ cholesky(c).mT
            for w, c in zip(weights, scales.covariances(), strict=True)
        ]
        # in the model's terms: residual = y - A (f - J θ~), image = f - J θ~ + J θ
        image, seen = _moved(pixels, drawn), _moved(rows, drawn)
        noise = torch.randn(len(noises), generator=random).double() * noises
        posterior = exact_posterior(
            features, [pixels], rows, observed.operator,
            replace(problem, residual=seen + noise), scales,
            samples=99, dense=False, generator=random,
        )  # fmt: skip
        centre = features.fitted.image.double().flatten() - _moved(pixels, weights)
        truth = quantities @ (centre + image)
        ranks.append((posterior.samples @ quantities.mT < truth).sum(0))
    for column in torch.stack(ranks).unbind(1):
        counts = torch.bincount(column // 10, minlength=10).double()
        assert chisquare(counts).pvalue > 0.01


def _moved(rows, weights):
    parts = [
        r.flatten(1).double() @ w.flatten().double() for r, w in zip(rows, weights, strict=True)
    ]
    return torch.stack(parts).sum(0)


def test_evidence_at_the_network_gives_wider_error_bars(setting):
    """The known overstatement: the network's weights are no mode, so variances grow for them."""
    features, pixels, rows, observed, problem, *_ = setting
    deviations = {}
    for mean in ("network", "tangent"):
        tuned = tune(problem, TotalVariationInformed(mean=mean), level=observed.level)
        found = exact_posterior(
            features, [pixels], rows, observed.operator, problem, tuned.scales,
            samples=0, dense=False, generator=seeded(),
        )  # fmt: skip
        deviations[mean] = float(found.variance.mean().sqrt())
    assert deviations["network"] > deviations["tangent"]
