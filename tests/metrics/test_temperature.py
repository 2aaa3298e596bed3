import numpy as np
import pytest
import torch
from metric_cases import predictions
from scipy.optimize import minimize, minimize_scalar

from coset import CosetError
from coset.metrics import (
    expected_calibration_error,
    fit_temperature,
    fit_variance_factor,
    fit_vector_scaling,
    gaussian_negative_log_likelihood,
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


def members(generator, m=3, n=300, c=4):
    logits = 2 * torch.randn(m, n, c, generator=generator, dtype=torch.float64)
    logits = logits + 2 * torch.randn(n, c, generator=generator, dtype=torch.float64)
    weights = torch.randn(m, generator=generator, dtype=torch.float64).log_softmax(0)
    y = torch.randint(c, (n,), generator=generator)
    return logits, y, weights


def pooled_loss(scaled, y, weights):
    mean = torch.einsum("m,mnc->nc", weights.exp(), scaled.softmax(-1))
    return float(-mean.gather(1, y[:, None]).log().mean())


def test_the_temperature_of_members_is_that_of_their_mean(generator):
    logits, y, weights = members(generator)
    found = fit_temperature(logits, y, log_weights=weights)
    best = minimize_scalar(
        lambda t: pooled_loss(logits / t, y, weights), bounds=(0.1, 50), method="bounded"
    )
    assert pooled_loss(logits / found, y, weights) <= best.fun + 1e-9
    same = logits[:1].expand(3, -1, -1)
    assert fit_temperature(same, y) == pytest.approx(fit_temperature(logits[0], y), rel=1e-9)


def test_vector_scaling_is_the_minimum_found_by_scipy(generator):
    """Also of members: the penalised loss of the mean of their probabilities."""
    for logits, y, weights in [members(generator), members(generator, m=1)]:
        factors, offsets = fit_vector_scaling(logits, y, log_weights=weights)

        def loss(x, logits=logits, y=y, weights=weights):
            scaled = torch.tensor(x[:4]) * logits + torch.tensor(x[4:])
            penalty = ((x[:4] - 1) ** 2).sum() / 2 + (x[4:] ** 2).sum() / 2
            return len(y) * pooled_loss(scaled, y, weights) + penalty

        start = np.concatenate([factors.numpy(), offsets.numpy()])
        best = minimize(loss, start, method="BFGS", options={"gtol": 1e-5})
        assert loss(start) <= best.fun + 1e-6
        assert np.abs(best.x - start).max() < 1e-3


def test_a_class_without_examples_keeps_finite_numbers(generator):
    logits = torch.randn(50, 3, generator=generator)
    factors, offsets = fit_vector_scaling(logits, torch.arange(50) % 2)
    assert bool(torch.stack([factors, offsets]).isfinite().all())
    assert float(offsets[2]) < float(offsets[:2].min())


def test_the_factor_of_variances_has_the_highest_density(generator):
    mean, variance = (
        torch.rand(2, 200, 3, generator=generator, dtype=torch.float64) + 0.1
    ).unbind()
    y = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    best = minimize_scalar(
        lambda s: float(gaussian_negative_log_likelihood(mean, s * variance, y)),
        bounds=(0.01, 100),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fit_variance_factor(mean, variance, y) == pytest.approx(best.x, rel=1e-5)


def test_weights_of_other_members_are_refused(generator):
    logits, y, weights = members(generator)
    with pytest.raises(CosetError, match="for 3 members"):
        fit_temperature(logits, y, log_weights=weights[:2])
