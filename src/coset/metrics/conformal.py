"""Conformal prediction: how far to go so that a share of new truths is held, for any network."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_finite, check_floating, check_shape

_ROUNDING = 1e-9
"""Whole numbers stay whole: 10 · 0.9 is 9."""


def check_level(level: float) -> None:
    """Refuse levels that are not shares."""
    if not (isinstance(level, float) and 0 < level < 1):
        raise CosetError(f"got level={level!r}", "needed a number between 0 and 1", "give 0.9")


def conformal_quantile(
    scores: Float[Tensor, " r"],
    *,
    level: float = 0.9,
    groups: Int[Tensor, " r"] | None = None,
) -> float:
    """The smallest score q with Σ_i share of group i's scores above q ≤ (n + 1)(1 − level) − 1.

    A group is a picture with a score for each pixel.  Pixels of one picture are not exchangeable
    with those of another, but pictures are: for a new one the expected share of its scores that
    are at most q is at least ``level``, whatever made the scores (conformal risk control,
    Angelopoulos et al. 2024).  Without groups each score is one of its own, q is the
    ⌈(n + 1) level⌉-th smallest, and this is split conformal prediction.

    Args:
        scores: Of held-out truths, large where a prediction is bad.
        level: The share to be held.
        groups: The number of each score's group; ``None``: each is one by itself.

    >>> conformal_quantile(torch.arange(1.0, 10.0), level=0.8)  # the 8th of 9
    8.0
    >>> pictures = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    >>> conformal_quantile(torch.arange(8.0), level=0.6, groups=pictures)  # 3 of 4 pictures' pixels
    5.0
    """
    check_level(level)
    check_floating("scores", scores)
    check_shape("scores", scores, ("r",))
    check_finite("scores", scores)
    values, order = scores.detach().double().sort()
    if groups is None:
        count, shares = len(scores), torch.ones_like(values)
    else:
        _, number = groups.unique(return_inverse=True)
        sizes = number.bincount()
        count, shares = len(sizes), 1 / sizes.double()[number][order]
    needed = (count + 1) * level - _ROUNDING
    if needed > count:
        raise CosetError(
            f"got {count} held-out {'examples' if groups is None else 'pictures'} "
            f"for a level of {level:.0%}",
            f"needed at least {math.ceil(level / (1 - level) - _ROUNDING)}",
            "hold out more, or ask for a lower level",
        )
    reached = int(torch.searchsorted(shares.cumsum(0), needed))
    return float(values[min(reached, len(values) - 1)])


def set_coverage(
    sets: Bool[Tensor, "n c ..."],
    labels: Int[Tensor, "n ..."],
    *,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The share of labels that are in their sets.

    Args:
        sets: The classes of each input or pixel that are held possible.
        labels: The true ones.
        ignore: A label that has no say.

    >>> sets = torch.tensor([[True, True, False], [False, True, False]])
    >>> float(set_coverage(sets, torch.tensor([1, 2])))
    0.5
    """
    counts = torch.ones_like(labels, dtype=torch.bool) if ignore is None else labels != ignore
    if labels.shape != (sets.shape[0], *sets.shape[2:]) or not bool(counts.any()):
        raise CosetError(
            f"got labels of shape {tuple(labels.shape)}, {int(counts.sum())} of which count, for "
            f"sets of shape {tuple(sets.shape)}",
            "needed one for each set, and one that counts",
        )
    inside = sets.gather(1, torch.where(counts, labels, 0).unsqueeze(1)).squeeze(1)
    return inside[counts].to(torch.get_default_dtype()).mean()
