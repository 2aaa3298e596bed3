"""Streaming forms against the exact ones, within the bound they state; the bounds are not idle."""

import pytest
import torch
from metric_cases import predictions

from coset.metrics import Running
from coset.metrics.histograms import HALF, UNIT, _chance_edges, chance_bin, score_bin

OF_LABELS = [
    "adaptive_calibration_error",
    "classwise_calibration_error",
    "area_under_risk_coverage",
]
OF_SCORES = ["auroc", "aupr", "fpr_at_95"]


def streamed(name, readings):
    running = Running(name)
    for part in zip(*(r.split(max(1, len(r) // 3)) for r in readings), strict=False):
        running.update(*part)
    return running


def test_bins_keep_the_order(generator):
    scores = torch.randn(5000, generator=generator).mul(8).exp2() * torch.randn(
        5000, generator=generator
    )
    ordered = score_bin(scores.sort().values)
    assert (ordered.diff() >= 0).all()
    assert 0 <= int(ordered.min()) <= int(ordered.max()) < 2 * HALF + 1
    chances = torch.rand(5000, generator=generator, dtype=torch.float64)
    chances = torch.cat([chances, chances**9, 1 - chances**9, torch.tensor([0.0, 0.5, 1.0])])
    place, edges = chance_bin(chances), _chance_edges()
    assert len(edges) == UNIT + 1
    assert (edges.diff() > 0).all()
    assert (chances >= edges[place] - 2**-25).all()
    assert (chances <= edges[place + 1] + 2**-25).all()


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("name", OF_LABELS)
def test_labels(name, sharpness, generator):
    readings = predictions(20_000, 5, sharpness=sharpness, generator=generator, dtype=torch.float32)
    running = streamed(name, readings)
    exact = running.metric.function(*readings)
    bound = float(running.bound())
    assert abs(float(running.compute() - exact)) <= min(bound, 3e-4) + 1e-7
    assert bound < 0.05


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("name", OF_SCORES)
def test_scores(name, scale, generator):
    inliers = scale * torch.randn(15_000, generator=generator, dtype=torch.float64)
    outliers = scale * (torch.randn(9_000, generator=generator, dtype=torch.float64) + 1)
    running = streamed(name, (inliers, outliers))
    exact = running.metric.function(inliers, outliers)
    bound = float(running.bound())
    assert abs(float(running.compute() - exact)) <= bound + 1e-12
    assert bound < 4e-3


@pytest.mark.parametrize("name", OF_SCORES)
def test_bounds_are_reached_by_some_order(name):
    """All scores within one bin: any value is possible, and the bound says so."""
    close = 1 + 1e-9 * torch.arange(20, dtype=torch.float64)
    off = []
    for inliers, outliers in ((close[:10], close[10:]), (close[10:], close[:10])):
        running = streamed(name, (inliers, outliers))
        exact = float(running.metric.function(inliers, outliers))
        off.append(abs(float(running.compute()) - exact))
    assert max(off) == pytest.approx(float(running.bound()), abs=1e-12)


def test_a_bound_of_zero_for_what_is_exact(generator):
    running = streamed("accuracy", predictions(generator=generator))
    assert float(running.bound()) == 0
