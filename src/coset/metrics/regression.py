"""Metrics of regression with Gaussian predictions, averaged over every predicted number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Missing
from coset.errors import CosetError
from coset.metrics.checks import check_finite, check_floating, check_same_shape, present


def root_mean_squared_error(
    mean: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    missing: Missing = "refuse",
) -> Float[Tensor, ""]:
    """√(mean of (y − μ)²).

    >>> float(root_mean_squared_error(torch.tensor([1.0, 2.0]), torch.tensor([4.0, -2.0])))
    3.535...
    """
    mean, targets = _known(mean, targets=targets, missing=missing)
    check_points(mean, targets)
    return deviation(mean, targets).square().mean().sqrt().to(mean.dtype)


def gaussian_negative_log_likelihood(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    missing: Missing = "refuse",
) -> Float[Tensor, ""]:
    """The mean surprise in nats: ½ log(2π v) + (y − μ)² / 2v.

    >>> one = torch.ones(1)
    >>> float(gaussian_negative_log_likelihood(one, one, one))  # ½ log 2π
    0.918...
    """
    mean, variance, targets = _known(mean, variance, targets=targets, missing=missing)
    check_gaussian(mean, variance, targets)
    return gaussian_loss_entries(mean, variance, targets).mean().to(mean.dtype)


def gaussian_loss_entries(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """½ log(2π v) + (y − μ)² / 2v of each entry, in float64."""
    wide = variance.double()
    return ((2 * math.pi * wide).log() + deviation(mean, targets).square() / wide) / 2


def continuous_ranked_probability_score(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    missing: Missing = "refuse",
) -> Float[Tensor, ""]:
    """∫ (F(x) − 1[y ≤ x])² dx, for a Gaussian σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − μ)/σ.

    In the units of the targets.

    >>> one = torch.ones(1)
    >>> float(continuous_ranked_probability_score(one, one, one))  # (√2 − 1) / √π
    0.233...
    """
    mean, variance, targets = _known(mean, variance, targets=targets, missing=missing)
    check_gaussian(mean, variance, targets)
    return ranked_probability_entries(mean, variance, targets).mean().to(mean.dtype)


def ranked_probability_entries(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """The continuous ranked probability score of each entry, in float64."""
    scale = variance.double().sqrt()
    z = deviation(mean, targets) / scale
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    # 2Φ(z) − 1 = erf(z / √2), without the cancellation.
    score = z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)
    return scale * score


def interval_coverage(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    level: float = 0.95,
    missing: Missing = "refuse",
) -> Float[Tensor, ""]:
    """The share of targets inside the central interval that should hold ``level`` of them.

    >>> mean, variance = torch.zeros(4), torch.ones(4)
    >>> float(interval_coverage(mean, variance, torch.tensor([0.0, 1.9, -1.9, 2.0])))  # ±1.96
    0.75
    """
    mean, variance, targets = _known(mean, variance, targets=targets, missing=missing)
    check_gaussian(mean, variance, targets)
    if not isinstance(level, int | float):
        raise CosetError(f"level is {level!r}", "needed a number between 0 and 1", "give 0.95")
    _check_levels(torch.tensor([level]))
    return covered_entries(mean, variance, targets, level=level).mean().to(mean.dtype)


def interval_coverages(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    missing: Missing = "refuse",
) -> Float[Tensor, " levels"]:
    """``interval_coverage`` at several levels.

    >>> mean, variance = torch.zeros(4), torch.ones(4)
    >>> interval_coverages(mean, variance, torch.tensor([0.5, 1.0, 1.8, 3.0])).tolist()
    [0.25, 0.5, 0.75]
    """
    found = [
        interval_coverage(mean, variance, targets, level=level, missing=missing) for level in levels
    ]
    return torch.stack(found)


def covered_entries(
    mean: Tensor, variance: Tensor, targets: Tensor, *, level: float = 0.95
) -> Tensor:
    """One for each entry inside its central interval, zero for the others, in float64."""
    half_width = math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64))
    inside = deviation(mean, targets).abs() <= half_width.to(mean.device) * variance.double().sqrt()
    return inside.double()


@dataclass(frozen=True)
class QuantileCalibration:
    """How often the targets fall below each predicted quantile.

    Attributes:
        level: The quantiles' levels: what the frequency should be.
        frequency: The share of targets below the predicted quantile.
    """

    level: Float[Tensor, " q"]
    frequency: Float[Tensor, " q"]

    @property
    def error(self) -> Float[Tensor, ""]:
        """The mean of |frequency − level|."""
        return (self.frequency - self.level).abs().mean()


def quantile_calibration(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    levels: Float[Tensor, " q"] | None = None,
    missing: Missing = "refuse",
) -> QuantileCalibration:
    """The curve of Kuleshov et al. 2018, at 0.05, 0.10, …, 0.95 unless told otherwise.

    >>> zero, half = torch.zeros(4), torch.tensor([0.5])
    >>> targets = torch.tensor([-2.0, -1.0, -0.5, 1.0])
    >>> quantile_calibration(zero, zero + 1, targets, levels=half).frequency.tolist()
    [0.75]
    """
    mean, variance, targets = _known(mean, variance, targets=targets, missing=missing)
    check_gaussian(mean, variance, targets)
    levels = default_levels() if levels is None else levels
    _check_levels(levels)
    below = quantile_counts(mean, variance, targets, levels=levels)
    return QuantileCalibration(levels.to(below), below / targets.numel())


def default_levels() -> Float[Tensor, " q"]:
    """0.05, 0.10, …, 0.95."""
    return torch.arange(1, 20, dtype=torch.float64) / 20


def quantile_counts(
    mean: Tensor, variance: Tensor, targets: Tensor, *, levels: Float[Tensor, " q"]
) -> Float[Tensor, " q"]:
    """How many targets fall below each predicted quantile; counts of parts of the data add up."""
    z = deviation(mean, targets) / variance.double().sqrt()
    place = torch.special.ndtr(z).flatten().sort().values
    return torch.searchsorted(place, levels.to(place), right=True).double()


def quantile_calibration_error(
    mean: Float[Tensor, "*axes"],
    variance: Float[Tensor, "*axes"],
    targets: Float[Tensor, "*axes"],
    *,
    missing: Missing = "refuse",
) -> Float[Tensor, ""]:
    """The mean over the levels 0.05, 0.10, …, 0.95 of |frequency − level|.

    >>> zero = torch.zeros(2)  # both targets far below every quantile: mean of 1 − level
    >>> round(float(quantile_calibration_error(zero, zero + 1, zero - 9)), 4)
    0.5
    """
    found = quantile_calibration(mean, variance, targets, missing=missing)
    return found.error.to(mean.dtype)


def deviation(mean: Tensor, targets: Tensor) -> Tensor:
    """Y − μ in float64."""
    return targets.double() - mean.double()


def _known(*predictions: Tensor, targets: Tensor, missing: Missing) -> tuple[Tensor, ...]:
    """Predictions and, last, targets, without entries whose targets are missing."""
    if missing == "nan":
        for values in predictions:
            check_same_shape("a prediction", values, "targets", targets)
    return present(targets, *predictions, missing=missing)


def check_points(mean: Tensor, targets: Tensor) -> None:
    """Refuse predictions and targets that are not finite numbers of one shape."""
    for name, values in (("mean", mean), ("targets", targets)):
        check_floating(name, values)
        check_finite(name, values)
    check_same_shape("mean", mean, "targets", targets)


def check_gaussian(mean: Tensor, variance: Tensor, targets: Tensor) -> None:
    """Refuse Gaussian predictions with a bad mean or target, or a variance that is not positive."""
    check_points(mean, targets)
    check_floating("variance", variance)
    check_finite("variance", variance)
    check_same_shape("mean", mean, "variance", variance)
    smallest = float(variance.amin())
    if smallest <= 0:
        raise CosetError(
            f"variance has an entry of {smallest:.4g}",
            "needed positive variances",
            "add the noise variance, or check that no standard deviation's logarithm was passed",
        )


def _check_levels(levels: Tensor) -> None:
    if levels.numel() == 0 or not bool(((levels > 0) & (levels < 1)).all()):
        raise CosetError(
            f"levels are {levels.tolist()}", "needed numbers between 0 and 1", "give 0.95 for 95 %"
        )
