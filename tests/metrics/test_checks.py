"""Bad input is refused with a message that names the fault."""

import pytest
import torch

from coset.errors import CosetError
from coset.metrics import (
    accuracy,
    area_under_risk_coverage,
    aupr,
    auroc,
    brier,
    classwise_calibration_error,
    continuous_ranked_probability_score,
    disagreement,
    energy_score,
    entropy,
    exchangeability,
    expected_calibration_error,
    fit_temperature,
    fpr_at_95,
    gaussian_negative_log_likelihood,
    interval_coverage,
    maximum_mean_discrepancy,
    mean_intersection_over_union,
    mutual_information,
    negative_log_likelihood,
    pairwise_mutual_information,
    peak_signal_to_noise,
    structural_similarity,
    total_variation,
)

GOOD = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
TARGETS = torch.tensor([0, 1])

LABELLED = [
    accuracy,
    negative_log_likelihood,
    brier,
    expected_calibration_error,
    classwise_calibration_error,
    area_under_risk_coverage,
]


@pytest.mark.parametrize("metric", LABELLED)
@pytest.mark.parametrize(
    ("probabilities", "targets", "says"),
    [
        (GOOD * 0.9, TARGETS, "sums to 0.9"),
        (torch.tensor([[0.5, -1.0], [2.0, 0.1]]), TARGETS, "look like logits"),
        (torch.tensor([[3.0, 1.0], [2.0, 0.1]]), TARGETS, "look like logits"),
        (torch.tensor([[float("nan"), 0.5], [0.5, 0.5]]), TARGETS, "NaN"),
        (torch.tensor([[float("inf"), 0.5], [0.5, 0.5]]), TARGETS, "infinite"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "empty"),
        (GOOD, torch.tensor([0, 2]), "needed class indices from 0 to 1"),
        (GOOD, torch.tensor([-1, 0]), "run from -1"),
        (GOOD, torch.tensor([0, 1, 1]), r"shape \(3,\) for 2 inputs"),
        (GOOD, torch.tensor([0.0, 1.0]), "integer class indices"),
        (GOOD, GOOD.long(), r"shape \(2, 2\)"),
        (GOOD[0], TARGETS, "2 axes"),
        (GOOD.long(), TARGETS, "floating-point"),
        ([[0.5, 0.5]], TARGETS, "list"),
    ],
)
def test_classification_says_which(metric, probabilities, targets, says):
    with pytest.raises(CosetError, match=says):
        metric(probabilities, targets)


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_95])
@pytest.mark.parametrize(
    ("inliers", "outliers", "says"),
    [
        (torch.zeros(0), torch.ones(2), "inlier_scores is empty, so there is one class only"),
        (torch.ones(2), torch.zeros(0), "outlier_scores is empty"),
        (torch.tensor([0.0, float("nan")]), torch.ones(2), "inlier_scores contains NaN"),
        (torch.ones(2, 2), torch.ones(2), "1 axes"),
        (torch.ones(2), torch.ones(2).double(), "one dtype"),
        (torch.ones(2).long(), torch.ones(2), "floating-point"),
    ],
)
def test_detection_says_which(metric, inliers, outliers, says):
    with pytest.raises(CosetError, match=says):
        metric(inliers, outliers)


@pytest.mark.parametrize("metric", [mutual_information, pairwise_mutual_information, disagreement])
@pytest.mark.parametrize(
    ("members", "says"),
    [
        (GOOD, "3 axes"),
        (torch.stack([GOOD, GOOD * 2]), "sums to 2"),
        (torch.stack([GOOD, GOOD - 1]), "logits"),
        (torch.stack([GOOD, GOOD * float("nan")]), "NaN"),
        (torch.zeros(2, 0, 2), "empty"),
    ],
)
def test_members_say_which(metric, members, says):
    with pytest.raises(CosetError, match=says):
        metric(members)


@pytest.mark.parametrize("metric", [pairwise_mutual_information, disagreement])
def test_one_member_has_no_pair(metric):
    with pytest.raises(CosetError, match="at least two"):
        metric(GOOD.unsqueeze(0))


@pytest.mark.parametrize(
    "metric",
    [
        gaussian_negative_log_likelihood,
        continuous_ranked_probability_score,
        interval_coverage,
    ],
)
@pytest.mark.parametrize(
    ("mean", "variance", "targets", "says"),
    [
        (torch.ones(2), torch.tensor([1.0, 0.0]), torch.ones(2), "positive variances"),
        (torch.ones(2), torch.tensor([1.0, -1.0]), torch.ones(2), "positive variances"),
        (torch.ones(2, 1), torch.ones(2, 1), torch.ones(2), "equal shapes"),
        (torch.ones(2), torch.ones(1), torch.ones(2), "equal shapes"),
        (torch.ones(2), torch.ones(2), torch.tensor([1.0, float("inf")]), "targets contains inf"),
        (torch.ones(0), torch.ones(0), torch.ones(0), "empty"),
    ],
)
def test_regression_says_which(metric, mean, variance, targets, says):
    with pytest.raises(CosetError, match=says):
        metric(mean, variance, targets)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: expected_calibration_error(GOOD, TARGETS, bins=0), "bins is 0"),
        (lambda: interval_coverage(*[torch.ones(2)] * 3, level=95), "between 0 and 1"),
        (lambda: interval_coverage(*[torch.ones(2)] * 3, level="95 %"), "level is '95 %'"),
        (lambda: total_variation(GOOD, GOOD[:1]), "equal shapes"),
        (lambda: total_variation(GOOD, GOOD * 2), "reference sums to 2"),
        (lambda: entropy(GOOD * 2), "sums to 2"),
        (lambda: energy_score(GOOD, temperature=0), "positive"),
        (lambda: fit_temperature(GOOD, torch.tensor([0, 7])), "run from 0 to 7"),
        (lambda: maximum_mean_discrepancy(GOOD[:1], GOOD), "samples has one vector"),
        (lambda: maximum_mean_discrepancy(GOOD, GOOD[:, :1]), "equally many parameters"),
        (lambda: maximum_mean_discrepancy(GOOD, GOOD.double()), "one dtype"),
        (lambda: maximum_mean_discrepancy(GOOD, GOOD, kernels=[]), "kernels is empty"),
        (lambda: exchangeability({"w": torch.ones(3, 4)}, "v"), "no tensor 'v'"),
        (lambda: exchangeability({"w": torch.ones(3)}, "w"), "member axis first"),
        (lambda: exchangeability(torch.ones(3, 4), "w"), "the stack is a Tensor"),
        (lambda: exchangeability({"w": torch.ones(3, 4, 2)}, "w", position=2), "position is 2"),
        (lambda: mean_intersection_over_union(TARGETS, TARGETS[:1]), "equal shapes"),
        (lambda: mean_intersection_over_union(TARGETS, TARGETS - 1), "smallest -1"),
        (lambda: mean_intersection_over_union([0, 1], TARGETS), "predictions is a list"),
        (lambda: mean_intersection_over_union(GOOD[0], TARGETS), "needed \\(n, c, …\\)"),
        (lambda: mean_intersection_over_union(GOOD / 0, TARGETS), "infinite numbers"),
        (lambda: mean_intersection_over_union(GOOD, TARGETS + 254), "found class 25"),
        (lambda: peak_signal_to_noise(GOOD, torch.ones(2, 2)), "constant"),
        (lambda: structural_similarity(GOOD, GOOD), "11 × 11"),
    ],
)
def test_arguments_say_which(call, says):
    with pytest.raises(CosetError, match=says):
        call()


def test_half_precision_and_its_copy_in_single_pass(generator):
    probabilities = torch.softmax(torch.randn(50, 100, generator=generator), -1)
    targets = torch.zeros(50, dtype=torch.long)
    for dtype in (torch.float16, torch.bfloat16):
        half = probabilities.to(dtype)
        assert brier(half, targets).dtype == dtype
    assert float(brier(probabilities.half().float(), targets)) == pytest.approx(
        float(brier(probabilities, targets)), abs=1e-3
    )
