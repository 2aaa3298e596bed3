"""Detection of outliers by a score: ranking metrics, outliers are the positives.

Scores are larger for outliers.  All three metrics need only the order of the scores, so they are
computed from one sort of each side and treat equal scores alike.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_scores


def auroc(
    inlier_scores: Float[Tensor, " n"], outlier_scores: Float[Tensor, " o"]
) -> Float[Tensor, ""]:
    """Area under the receiver operating characteristic: P(outlier > inlier) + ½ P(equal).

    >>> float(auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.4])))  # 5 of 6 pairs
    0.833...
    """
    _check_sides(inlier_scores, outlier_scores)
    inliers, outliers = inlier_scores.sort().values, outlier_scores.sort().values
    below = torch.searchsorted(inliers, outliers)
    # The next inlier tells whether there are equal ones: only these are worth a second search.
    equal = outliers[inliers[below.clamp_max(len(inliers) - 1)] == outliers]
    ties = torch.searchsorted(inliers, equal, right=True) - torch.searchsorted(inliers, equal)
    wins = int(below.sum()) + int(ties.sum()) / 2
    return _as_scalar(wins / (len(inliers) * len(outliers)), inlier_scores)


def aupr(
    inlier_scores: Float[Tensor, " n"], outlier_scores: Float[Tensor, " o"]
) -> Float[Tensor, ""]:
    """Area under the precision-recall curve as average precision, the outliers being positives.

    Σ_k (recall_k − recall_{k−1}) · precision_k over the distinct thresholds, which is the mean over
    the outliers of the precision at their own score.

    >>> float(aupr(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.4])))  # (2/3 + 1) / 2
    0.833...
    """
    _check_sides(inlier_scores, outlier_scores)
    inliers = inlier_scores.sort().values
    thresholds, found = outlier_scores.sort().values.unique_consecutive(return_counts=True)
    true_positives = len(outlier_scores) - found.cumsum(0) + found
    false_positives = len(inliers) - torch.searchsorted(inliers, thresholds, right=False)
    precision = true_positives.double() / (true_positives + false_positives)
    area = float((found * precision).sum()) / len(outlier_scores)
    return _as_scalar(area, inlier_scores)


def fpr_at_95(
    inlier_scores: Float[Tensor, " n"], outlier_scores: Float[Tensor, " o"]
) -> Float[Tensor, ""]:
    """The smallest share of inliers taken for outliers with at least 95 % of the outliers found.

    The threshold is the score of an outlier: no interpolation.

    >>> float(fpr_at_95(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.4])))  # at 0.25
    0.333...
    """
    _check_sides(inlier_scores, outlier_scores)
    outliers = len(outlier_scores)
    # Whole numbers: 0.95 · n in floating point may fall on the wrong side of an integer.
    needed = -(-19 * outliers // 20)
    threshold = outlier_scores.kthvalue(outliers - needed + 1).values
    return (inlier_scores >= threshold).double().mean().to(inlier_scores.dtype)


def _as_scalar(value: float, like: Tensor) -> Float[Tensor, ""]:
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def _check_sides(inlier_scores: Tensor, outlier_scores: Tensor) -> None:
    for name, scores in (("inlier_scores", inlier_scores), ("outlier_scores", outlier_scores)):
        if isinstance(scores, Tensor) and scores.numel() == 0:
            raise CosetError(
                f"{name} is empty, so there is one class only",
                "needed scores of inliers and of outliers",
                "give at least one score for each side",
            )
        check_scores(name, scores)
    if inlier_scores.dtype != outlier_scores.dtype:
        raise CosetError(
            f"inlier_scores are {inlier_scores.dtype}, outlier_scores {outlier_scores.dtype}",
            "needed one dtype, so that equal scores compare equal",
            "convert one of them",
        )
