import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import root_mean_squared_error as sklearn_error

from coset.metrics import (
    continuous_ranked_probability_score,
    gaussian_negative_log_likelihood,
    interval_coverage,
    interval_coverages,
    quantile_calibration,
    quantile_calibration_error,
    root_mean_squared_error,
)


@pytest.fixture
def case(generator):
    mean, noise = torch.randn(2, 40, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(40, 2, generator=generator, dtype=torch.float64) + 0.1
    return mean, variance, mean + 1.3 * variance.sqrt() * noise


def test_error_is_that_of_scikit_learn(case):
    mean, _, y = case
    expected = sklearn_error(y.flatten(), mean.flatten())
    assert float(root_mean_squared_error(mean, y)) == pytest.approx(expected, abs=1e-14)


def test_log_likelihood_is_that_of_scipy(case):
    mean, variance, y = case
    expected = -norm.logpdf(y, mean, variance.sqrt()).mean()
    value = gaussian_negative_log_likelihood(mean, variance, y)
    assert float(value) == pytest.approx(expected, abs=1e-13)


def test_ranked_score_is_the_integral(case):
    def integral(mean, deviation, y):
        low, _ = quad(lambda x: norm.cdf(x, mean, deviation) ** 2, mean - 12 * deviation, y)
        high, _ = quad(lambda x: norm.sf(x, mean, deviation) ** 2, y, mean + 12 * deviation)
        return low + high

    mean, variance, y = (t[:6].flatten() for t in case)
    expected = np.mean([integral(*row) for row in zip(mean, variance.sqrt(), y, strict=True)])
    value = continuous_ranked_probability_score(mean, variance, y)
    assert float(value) == pytest.approx(expected, abs=1e-8)


def test_ranked_score_tends_to_the_absolute_error(case):
    mean, variance, y = case
    value = continuous_ranked_probability_score(mean, 1e-18 * variance, y)
    assert float(value) == pytest.approx(float((y - mean).abs().mean()), rel=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_coverage_by_scipys_interval(case, level):
    mean, variance, y = case
    low, high = norm.interval(level, mean, variance.sqrt())
    expected = ((y.numpy() >= low) & (y.numpy() <= high)).mean()
    assert float(interval_coverage(mean, variance, y, level=level)) == expected


def test_quantiles_by_scipy(case):
    mean, variance, y = case
    curve = quantile_calibration(mean, variance, y)
    expected = [(y.numpy() <= norm.ppf(q, mean, variance.sqrt())).mean() for q in curve.level]
    np.testing.assert_allclose(curve.frequency, expected, atol=1e-14)
    error = np.mean(np.abs(np.array(expected) - np.arange(1, 20) / 20))
    assert float(quantile_calibration_error(mean, variance, y)) == pytest.approx(error, abs=1e-14)


def test_true_laws_are_calibrated(generator):
    """100,000 targets from the predicted law: frequencies within five standard deviations."""
    zero = torch.zeros(100_000)
    y = torch.randn(100_000, generator=generator)
    assert float(interval_coverage(zero, zero + 1, y)) == pytest.approx(0.95, abs=0.004)
    assert float(quantile_calibration_error(zero, zero + 1, y)) < 0.008


def test_coverages_at_several_levels(generator):
    mean, y = torch.randn(2, 500, generator=generator, dtype=torch.float64)
    variance = torch.full_like(mean, 2.0)
    found = interval_coverages(mean, variance, y)
    for level, share in zip((0.5, 0.9, 0.95), found, strict=True):
        assert share == interval_coverage(mean, variance, y, level=level)
