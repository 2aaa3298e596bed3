import numpy as np
import pytest
import torch
from metric_cases import predictions
from torchmetrics.functional.classification import multiclass_calibration_error

from coset.metrics import (
    accuracy,
    adaptive_calibration_error,
    adaptive_reliability,
    classwise_calibration_error,
    expected_calibration_error,
    reliability,
)


@pytest.fixture
def case(generator):
    return predictions(997, 4, generator=generator)


@pytest.mark.parametrize("bins", [1, 2, 15, 40])
def test_equal_width_is_that_of_torchmetrics(case, bins):
    p, y = case
    expected = multiclass_calibration_error(p, y, num_classes=4, n_bins=bins)
    assert float(expected_calibration_error(p, y, bins=bins)) == pytest.approx(
        float(expected),
        abs=1e-6,  # torchmetrics sums in float32
    )


def test_equal_width_by_hand(case):
    """The definition, bin by bin, in numpy."""
    p, y = (t.numpy() for t in case)
    confidence, right = p.max(1), p.argmax(1) == y
    expected = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            expected += abs(right[inside].mean() - confidence[inside].mean()) * inside.mean()
    assert float(expected_calibration_error(*case)) == pytest.approx(expected, abs=1e-14)


def test_the_upper_edge_belongs_to_the_bin():
    bins = reliability(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]), bins=2)
    assert bins.count.tolist() == [1, 1]


@pytest.mark.parametrize("bins", [1, 7, 15, 2000])
def test_equal_count_by_hand(case, bins):
    p, y = (t.numpy() for t in case)
    confidence, right = p.max(1), p.argmax(1) == y
    order = np.argsort(confidence)
    parts = [part for part in np.array_split(order, bins) if len(part)]
    expected = sum(
        len(part) / len(y) * abs(right[part].mean() - confidence[part].mean()) for part in parts
    )
    assert float(adaptive_calibration_error(*case, bins=bins)) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_classwise_adaptive_by_hand(case, bins):
    p, y = (t.numpy() for t in case)
    gaps = []
    for k in range(p.shape[1]):
        order = np.argsort(p[:, k])
        for part in np.array_split(order, bins):
            gaps.append(abs((y[part] == k).mean() - p[part, k].mean()))
    error = classwise_calibration_error(*case, bins=bins)
    assert float(error) == pytest.approx(np.mean(gaps), abs=1e-13)


def test_classwise_equal_width_by_hand(case):
    p, y = (t.numpy() for t in case)
    expected = 0.0
    for k in range(p.shape[1]):
        index = np.clip(np.ceil(p[:, k] * 15).astype(int) - 1, 0, 14)
        for b in range(15):
            inside = index == b
            if inside.any():
                gap = abs((y[inside] == k).mean() - p[inside, k].mean())
                expected += gap * inside.mean() / p.shape[1]
    error = classwise_calibration_error(*case, adaptive=False)
    assert float(error) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
    "metric",
    [
        lambda p, y: adaptive_calibration_error(p, y, bins=3),
        lambda p, y: classwise_calibration_error(p, y, bins=3),
    ],
)
def test_ties_do_not_depend_on_the_order_of_the_data(metric, generator):
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).repeat_interleave(10, 0)
    y = torch.randint(2, (20,), generator=generator)
    values = {
        round(float(metric(p[order], y[order])), 12)
        for order in (torch.randperm(20, generator=generator) for _ in range(20))
    }
    assert len(values) == 1


def test_ties_on_a_border_count_with_the_mean_over_their_orders():
    """Four equal inputs, three right, in two bins: 3/4 right in each."""
    p = torch.tensor([[0.9, 0.1]] * 4, dtype=torch.float64)
    bins = adaptive_reliability(p, torch.tensor([0, 0, 1, 0]), bins=2)
    assert bins.accuracy.tolist() == [0.75, 0.75]


def test_the_bins_hold_every_input_and_the_accuracy(case):
    p, y = case
    for bins in (reliability(p, y), adaptive_reliability(p, y)):
        assert int(bins.count.sum()) == len(y)
        total = (bins.count * bins.accuracy).sum() / len(y)
        assert float(total) == pytest.approx(float(accuracy(p, y)), abs=1e-12)
        assert len(bins.edges) == len(bins.count) + 1
        assert bool((bins.edges.diff() >= 0).all())
        assert bins.maximum_error >= bins.error


def test_calibrated_probabilities_have_a_small_error(generator):
    """Targets drawn from the probabilities: only noise is left, below 4 standard deviations."""
    p, _ = predictions(20_000, 4, generator=generator)
    y = p.multinomial(1, generator=generator).squeeze(1)
    assert float(expected_calibration_error(p, y)) < 0.02
    assert float(classwise_calibration_error(p, y)) < 0.02
