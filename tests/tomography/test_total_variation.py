import math

import pytest
import torch
from tests.tomography.tomography_problems import fitted_problem, seeded

from coset.tomography.evidence import Scales
from coset.tomography.total_variation import (
    edges,
    expected_absolute,
    expected_absolute_slope,
    total_variation,
)


def test_total_variation_is_the_sum_over_edges():
    image = torch.randn(3, 5, 5, generator=seeded())
    pairs = edges(5)
    assert len(pairs) == 2 * 5 * 4
    flat = image.flatten(1)
    expected = (flat[:, pairs[:, 0]] - flat[:, pairs[:, 1]]).abs().sum(1)
    torch.testing.assert_close(total_variation(image), expected)


@pytest.mark.parametrize("mean", [0.0, 0.3, -2.0])
def test_the_folded_normal_against_quadrature(mean):
    deviation = 0.7
    points = torch.linspace(-12, 12, 200_001).double()
    density = (-points.square() / 2).exp() / math.sqrt(2 * math.pi)
    expected = torch.trapezoid((mean + deviation * points).abs() * density, points)
    found = expected_absolute(
        torch.tensor([mean], dtype=torch.float64), torch.tensor([deviation**2], dtype=torch.float64)
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-8)


def test_the_slope_is_the_derivative():
    mean = torch.tensor([0.0, 0.3, -2.0]).double()
    variance = torch.tensor([0.5, 0.2, 0.9]).double()
    step = 1e-6
    numeric = expected_absolute(mean, variance + step) - expected_absolute(mean, variance - step)
    found = expected_absolute_slope(mean, variance, torch.ones(3).double())
    torch.testing.assert_close(found, numeric / (2 * step), rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def setting():
    return fitted_problem()


def scales_of(problem, length=1.0):
    blocks = len(problem.grams)
    lengths = [length if len(each) > 1 else math.nan for each in problem.grams]
    return Scales(
        torch.full((blocks,), 0.05).double(),
        torch.tensor(lengths, dtype=torch.float64),
        torch.tensor(1e-3).double(),
    )


def test_expected_total_variation_against_samples(setting):
    """Closed form against 4,000 images, within 4 standard errors (1 in 16,000 seeds for each)."""
    _, _, features, pixels, _, problem = setting
    scales = scales_of(problem)
    for block, rows in enumerate(pixels):
        if rows.shape[2] != 9:
            continue
        half = torch.linalg.cholesky(scales.covariances()[block])
        noise = torch.randn(4000, rows.shape[1], 9, generator=seeded(block)).double()
        images = features.fitted.image.flatten() + (noise @ half.T).flatten(1) @ rows.flatten(1).T
        variation = total_variation(images.reshape(-1, 10, 10))
        kappa, _ = problem.expected_total_variation(scales, block)
        assert abs(float(kappa - variation.mean())) < 4 * float(variation.std()) / math.sqrt(4000)


def test_its_derivative_by_the_log_of_the_length(setting):
    *_, problem = setting
    for block, gram in enumerate(problem.grams):
        if len(gram) == 1:
            continue
        step = 1e-5
        up, down = (
            problem.expected_total_variation(scales_of(problem, math.exp(sign * step)), block)[0]
            for sign in (1, -1)
        )
        _, slope = problem.expected_total_variation(scales_of(problem), block)
        assert float(slope) == pytest.approx(float(up - down) / (2 * step), rel=1e-5)


def test_expected_total_variation_rises_with_the_length(setting):
    """Correlated taps raise the variance of the image, and with it its variation."""
    *_, problem = setting
    for block, gram in enumerate(problem.grams):
        if len(gram) > 1:
            lengths = [0.2, 0.5, 1.0, 3.0, 10.0]
            found = [
                float(problem.expected_total_variation(scales_of(problem, each), block)[0])
                for each in lengths
            ]
            assert found == sorted(found)


def test_variation_of_the_correlation_falls_with_the_length(setting):
    """With marginal variances of one, correlated taps make neighbouring pixels more alike."""
    _, _, _, pixels, _, problem = setting
    pairs = edges(10)
    for block, rows in enumerate(pixels):
        if rows.shape[2] != 9:
            continue
        found = []
        for length in (0.2, 0.5, 1.0, 3.0, 10.0):
            half = torch.linalg.cholesky(scales_of(problem, length).covariances()[block])
            unit = torch.nn.functional.normalize((rows.double() @ half).flatten(1), dim=1)
            spread = (unit[pairs[:, 0]] - unit[pairs[:, 1]]).square().sum(1)
            found.append(float(expected_absolute(torch.zeros_like(spread), spread).sum()))
        assert found == sorted(found, reverse=True)
