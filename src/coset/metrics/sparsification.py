"""Whether predicted variances order pixels by their errors (Ilg et al. 2018)."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Missing
from coset.errors import CosetError
from coset.metrics.checks import check_same_shape, present
from coset.metrics.regression import check_gaussian, deviation

ErrorKind = Literal["rmse", "mae"]


@dataclass(frozen=True)
class Sparsification:
    """The error of what remains, over the error of all, when the most uncertain are removed.

    Attributes:
        removed: k/n for k = 0 … n − 1: the share that is removed.
        by_variance: The largest variances are removed first.
        oracle: The largest errors are removed first: the best any order can do.
    """

    removed: Float[Tensor, " n"]
    by_variance: Float[Tensor, " n"]
    oracle: Float[Tensor, " n"]

    @property
    def area(self) -> Float[Tensor, ""]:
        """The mean of ``by_variance − oracle`` over the shares removed."""
        return (self.by_variance - self.oracle).mean()


def sparsification(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    error: ErrorKind = "rmse",
    missing: Missing = "refuse",
) -> Sparsification:
    """The curves of both orders; equal variances count with the mean over all their orders.

    >>> mean, variance = torch.zeros(2), torch.tensor([1.0, 4.0])
    >>> found = sparsification(mean, variance, torch.tensor([2.0, 1.0]), error="mae")
    >>> found.by_variance.tolist(), found.oracle.tolist()  # 1.5, then 2 or 1 is left
    ([1.0, 1.333...], [1.0, 0.666...])

    Args:
        mean: Predicted.
        variance: Predicted.
        targets: True values.
        error: ``"rmse"``: the root of the mean square of what remains; ``"mae"``: the mean of its
            absolute values.
        missing: ``"nan"``: targets that are NaN have no say.

    Raises:
        CosetError: There is no error to order: every prediction is exact.
    """
    if error not in ("rmse", "mae"):
        raise CosetError(f"got error={error!r}", "needed 'rmse' or 'mae'", "choose one of the two")
    check_same_shape("mean", mean, "targets", targets)
    mean, variance, targets = present(targets, mean, variance, missing=missing)
    check_gaussian(mean, variance, targets)
    off = deviation(mean, targets).abs().flatten()
    size = off.square() if error == "rmse" else off
    if not bool(size.any()):
        raise CosetError(
            "every prediction is exact",
            "needed errors that variances can order",
            "check that targets were not given as predictions",
        )
    by_variance = _remaining(size, variance.double().flatten())
    oracle = _remaining(size, size)
    if error == "rmse":
        by_variance, oracle = by_variance.sqrt(), oracle.sqrt()
    removed = torch.arange(len(size), dtype=size.dtype, device=size.device) / len(size)
    return Sparsification(removed, by_variance / by_variance[0], oracle / oracle[0])


def area_under_sparsification(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    error: ErrorKind = "rmse",
    missing: Missing = "refuse",
) -> Float[Tensor, ""]:
    """The error of what remains minus the oracle's, over the error of all, averaged over shares.

    Zero where larger variances always go with larger errors.

    >>> mean, variance = torch.zeros(2), torch.tensor([1.0, 4.0])
    >>> targets = torch.tensor([2.0, 1.0])
    >>> float(area_under_sparsification(mean, variance, targets, error="mae"))  # (0 + 2/3) / 2
    0.333...
    """
    curves = sparsification(mean, variance, targets, error=error, missing=missing)
    return curves.area.to(mean.dtype)


def _remaining(size: Float[Tensor, " n"], order: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The mean of ``size`` over what is left when 0 … n − 1 with the largest ``order`` are gone."""
    ranked = order.sort()
    _, group, count = ranked.values.unique_consecutive(return_inverse=True, return_counts=True)
    total = torch.zeros(len(count), dtype=size.dtype, device=size.device)
    shared = (total.index_add_(0, group, size[ranked.indices]) / count)[group]
    left = torch.arange(1, len(size) + 1, dtype=size.dtype, device=size.device)
    remaining: Tensor = (shared.cumsum(0) / left).flip(0)
    return remaining
