import pytest
import torch
from metric_cases import ensemble, predictions

from coset.errors import CosetError
from coset.metrics import CATALOGUE, Running

CLASSIFICATION = ["accuracy", "negative_log_likelihood", "brier", "expected_calibration_error"]
REGRESSION = [
    "gaussian_negative_log_likelihood",
    "continuous_ranked_probability_score",
    "interval_coverage",
    "quantile_calibration_error",
]


def whole_and_parts(name, readings, axis=0):
    """The metric's function on everything, and the running one on three uneven parts."""
    running = Running(name)
    size = readings[0].shape[axis]
    for part in zip(*(r.split([1, 7, size - 8], axis) for r in readings), strict=True):
        running.update(*part)
    return running.metric.function(*readings).double().mean(), running.compute()


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classification(name, generator):
    whole, parts = whole_and_parts(name, predictions(generator=generator))
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", REGRESSION)
def test_regression(name, generator):
    mean, y = torch.randn(2, 30, 3, generator=generator, dtype=torch.float64)
    whole, parts = whole_and_parts(name, (mean, torch.ones_like(mean), y))
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


def test_error_of_points(generator):
    readings = tuple(torch.randn(2, 30, 3, generator=generator, dtype=torch.float64))
    whole, parts = whole_and_parts("root_mean_squared_error", readings)
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["mutual_information", "disagreement"])
def test_members(name, generator):
    whole, parts = whole_and_parts(name, (ensemble(generator=generator),), axis=1)
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


def test_overlap_takes_probabilities_of_pixels(generator):
    whole, parts = whole_and_parts("mean_intersection_over_union", predictions(generator=generator))
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


def test_every_metric_runs_or_says_why_not():
    for metric in CATALOGUE:
        if metric.per_input is None and metric.sums is None:
            with pytest.raises(CosetError, match="whole set"):
                Running(metric.name)
        else:
            with pytest.raises(CosetError, match="no batch"):
                Running(metric.name).compute()


def test_a_refused_batch_adds_nothing(generator):
    p, y = predictions(generator=generator)
    running = Running("accuracy")
    running.update(p, y)
    before = running.compute()
    with pytest.raises(CosetError):
        running.update(2 * p, y)
    assert running.compute() == before
