import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from coset.metrics import aupr, auroc, fpr_at_95


def labelled(inliers, outliers):
    scores = torch.cat([inliers, outliers]).numpy()
    return np.r_[np.zeros(len(inliers)), np.ones(len(outliers))], scores


@pytest.fixture(params=["distinct", "tied"])
def sides(request, generator):
    inliers = torch.randn(301, generator=generator, dtype=torch.float64)
    outliers = torch.randn(157, generator=generator, dtype=torch.float64) + 0.8
    return (
        (inliers, outliers) if request.param == "distinct" else (inliers.round(), outliers.round())
    )


def test_auroc_is_that_of_scikit_learn(sides):
    assert float(auroc(*sides)) == pytest.approx(roc_auc_score(*labelled(*sides)), abs=1e-13)


def test_aupr_is_that_of_scikit_learn(sides):
    expected = average_precision_score(*labelled(*sides))
    assert float(aupr(*sides)) == pytest.approx(expected, abs=1e-13)


def test_fpr_is_the_first_point_of_the_curve_with_enough_recall(sides):
    false, true, _ = roc_curve(*labelled(*sides), drop_intermediate=False)
    assert float(fpr_at_95(*sides)) == pytest.approx(false[true >= 0.95].min(), abs=1e-15)


@pytest.mark.parametrize("outliers", [1, 19, 20, 21, 40, 100])
def test_fpr_needs_the_smallest_number_of_outliers(outliers):
    """Scores 1 … k: the threshold is the ⌈0.95 k⌉-th from the top."""
    scores = torch.arange(1, outliers + 1).double()
    threshold = outliers - int(np.ceil(round(0.95 * outliers, 9))) + 1
    inliers = torch.arange(0, outliers).double()
    expected = float((inliers >= threshold).double().mean())
    assert float(fpr_at_95(inliers, scores)) == pytest.approx(expected)


def test_perfect_and_reversed_scores():
    low, high = torch.zeros(3), torch.ones(4)
    assert (auroc(low, high), aupr(low, high), fpr_at_95(low, high)) == (1, 1, 0)
    assert (auroc(high[:3], torch.zeros(4)), fpr_at_95(high[:3], torch.zeros(4))) == (0, 1)


def test_infinite_scores_can_be_ranked():
    assert auroc(torch.tensor([0.0, float("-inf")]), torch.tensor([float("inf")])) == 1
