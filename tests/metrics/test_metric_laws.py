"""Every metric of the catalogue against the same laws: range, order, dtype, perfect score."""

import math
from dataclasses import dataclass

import pytest
import torch
from metric_cases import ensemble, predictions

from coset.metrics import CATALOGUE

METRICS = {metric.name: metric for metric in CATALOGUE}
N, C, M = 120, 4, 5


def labelled(generator):
    return predictions(N, C, generator=generator)


def mean_prediction(generator):
    return (predictions(N, C, generator=generator)[0],)


def members(generator):
    return (ensemble(M, N, C, generator=generator),)


def scores(generator):
    return tuple(torch.randn(2, N, generator=generator, dtype=torch.float64))


def pair(generator):
    return mean_prediction(generator) + mean_prediction(generator)


def points(generator):
    return tuple(torch.randn(2, N, 2, generator=generator, dtype=torch.float64))


def gaussians(generator):
    mean, targets = points(generator)
    return mean, torch.ones_like(mean), targets


def samples(generator):
    return tuple(torch.randn(2, 30, 6, generator=generator, dtype=torch.float64))


def images(generator):
    return tuple(torch.rand(2, 16, 16, generator=generator, dtype=torch.float64))


def perfect_labels():
    targets = torch.arange(8) % C
    return torch.eye(C, dtype=torch.float64)[targets], targets


def separated():
    return torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)


def same(make):
    first = make(torch.Generator().manual_seed(3))[0]
    return first, first


def equal_members():
    return (ensemble(1, N, C, generator=torch.Generator().manual_seed(3)).expand(3, -1, -1),)


@dataclass(frozen=True)
class Law:
    make: object
    low: float
    high: float
    perfect: object = None
    best: float = 0.0
    data_axis: int | None = 0
    apart: bool = False  # each argument has an order of its own
    member_axis: int | None = None


LAWS = {
    "accuracy": Law(labelled, 0, 1, perfect_labels, 1),
    "negative_log_likelihood": Law(labelled, 0, math.inf, perfect_labels, 0),
    "brier": Law(labelled, 0, 2, perfect_labels, 0),
    "expected_calibration_error": Law(labelled, 0, 1, perfect_labels, 0),
    "adaptive_calibration_error": Law(labelled, 0, 1, perfect_labels, 0),
    "classwise_calibration_error": Law(labelled, 0, 1, perfect_labels, 0),
    "area_under_risk_coverage": Law(labelled, 0, 1, perfect_labels, 0),
    "entropy": Law(mean_prediction, 0, math.log(C)),
    "mutual_information": Law(members, 0, math.log(C), equal_members, data_axis=1, member_axis=0),
    "disagreement": Law(members, 0, 1, equal_members, data_axis=1, member_axis=0),
    "pairwise_mutual_information": Law(members, 0, math.log(2), equal_members, data_axis=1),
    "auroc": Law(scores, 0, 1, separated, 1, apart=True),
    "aupr": Law(scores, 0, 1, separated, 1, apart=True),
    "fpr_at_95": Law(scores, 0, 1, separated, 0, apart=True),
    "agreement": Law(pair, 0, 1, lambda: same(mean_prediction), 1),
    "total_variation": Law(pair, 0, 1, lambda: same(mean_prediction), 0),
    "maximum_mean_discrepancy": Law(samples, -1, 2, apart=True),
    "mean_intersection_over_union": Law(labelled, 0, 1, perfect_labels, 1),
    "root_mean_squared_error": Law(points, 0, math.inf, lambda: same(points), 0),
    "gaussian_negative_log_likelihood": Law(gaussians, -math.inf, math.inf),
    "continuous_ranked_probability_score": Law(gaussians, 0, math.inf),
    "interval_coverage": Law(gaussians, 0, 1),
    "quantile_calibration_error": Law(gaussians, 0, 1),
    "peak_signal_to_noise": Law(images, -math.inf, math.inf, lambda: same(images), math.inf),
    "structural_similarity": Law(images, -1, 1, lambda: same(images), 1, data_axis=None),
}


def test_every_metric_has_laws():
    assert set(LAWS) == set(METRICS)


def laws(*, needing=None):
    """The metrics whose laws have the given entry."""
    return pytest.mark.parametrize(
        ("function", "rule"),
        [
            pytest.param(METRICS[name].function, rule, id=name)
            for name, rule in LAWS.items()
            if needing is None or getattr(rule, needing) is not None
        ],
    )


@laws()
def test_range(function, rule, generator):
    for _ in range(5):
        value = function(*rule.make(generator))
        assert bool(((value >= rule.low - 1e-12) & (value <= rule.high + 1e-12)).all())


@laws(needing="data_axis")
def test_the_order_of_the_data_does_not_matter(function, rule, generator):
    readings = rule.make(generator)
    size = readings[0].shape[rule.data_axis]
    order = torch.randperm(size, generator=generator)
    moved = []
    for reading in readings:
        order = torch.randperm(size, generator=generator) if rule.apart else order
        moved.append(reading.index_select(rule.data_axis, order))
    value, after = function(*readings), function(*moved)
    if value.shape == (size,):
        value = value[order]
    torch.testing.assert_close(after, value, atol=1e-12, rtol=0)


@laws(needing="member_axis")
def test_the_order_of_the_members_does_not_matter(function, rule, generator):
    (stack,) = rule.make(generator)
    torch.testing.assert_close(function(stack.flip(0)), function(stack), atol=1e-12, rtol=0)


@laws()
def test_the_dtype_of_the_inputs_comes_out(function, rule, generator):
    readings = rule.make(generator)
    single = [r.float() if r.is_floating_point() else r for r in readings]
    value, rounded = function(*readings), function(*single)
    assert value.dtype == torch.float64
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.double(), value, atol=2e-5, rtol=2e-5)


@laws(needing="perfect")
def test_perfect_scores(function, rule):
    value = function(*rule.perfect())
    torch.testing.assert_close(value, torch.full_like(value, rule.best), atol=1e-12, rtol=0)


@laws()
def test_arguments_are_not_changed(function, rule, generator):
    readings = rule.make(generator)
    before = [reading.clone() for reading in readings]
    function(*readings)
    assert all(a.equal(b) for a, b in zip(readings, before, strict=True))
