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
    below = torch.searchsorted(inliers, outliers, right=False)
    not_above = torch.searchsorted(inliers, outliers, right=True)
    wins = int((below + not_above).sum()) / 2
    return _as_scalar(wins / (len(inliers) * len(outliers)), inlier_scores)


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
