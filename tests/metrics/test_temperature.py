import pytest
import torch
from metric_cases import predictions
from scipy.optimize import minimize_scalar

from coset.metrics import (
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    scale_temperature,
)


def test_the_temperature_is_the_minimum_found_by_scipy(generator):
    p, y = predictions(500, 6, generator=generator)
    logits = p.log()

    def loss(t):
        return float(negative_log_likelihood(scale_temperature(logits, t), y))

    expected = minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(logits, y) == pytest.approx(expected.x, rel=1e-5)


def test_targets_drawn_at_a_temperature_give_it_back(generator):
    """100,000 inputs: the estimate's relative deviation is about 0.3 %, the bound is 2 %."""
    logits = 3 * torch.randn(100_000, 4, generator=generator, dtype=torch.float64)
    y = torch.softmax(logits / 2.5, -1).multinomial(1, generator=generator).squeeze(1)
    assert fit_temperature(logits, y) == pytest.approx(2.5, rel=0.02)


def test_scaling_improves_calibration(generator):
    p, y = predictions(5_000, 6, generator=generator)
    scaled = scale_temperature(p.log(), fit_temperature(p.log(), y))
    assert expected_calibration_error(scaled, y) < expected_calibration_error(p, y) / 2


@pytest.mark.parametrize("targets", [[0, 0], [1, 1]])
def test_no_errors_and_only_errors_end_at_the_bounds(targets):
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    assert 1e-3 <= fit_temperature(logits, torch.tensor(targets)) <= 1e3
