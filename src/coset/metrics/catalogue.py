"""The table of metrics: what each one is called, what it reads, and which values are good.

A row with ``per_input`` is a mean over inputs; one with ``sums`` is a function of statistics that
add up over batches, exact or from histograms with a bound (:mod:`coset.metrics.histograms`).  Both
can be computed from a set that does not fit in memory; the others need the whole set at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.agreement import agreement, total_variation
from coset.metrics.calibration import (
    adaptive_calibration_error,
    bins_from_sums,
    classwise_calibration_error,
    equal_width_sums,
    expected_calibration_error,
)
from coset.metrics.dense import (
    confusion,
    intersection_over_union,
    mean_intersection_over_union,
    peak_signal_to_noise,
    structural_similarity,
)
from coset.metrics.detection import aupr, auroc, fpr_at_95
from coset.metrics.discrepancy import maximum_mean_discrepancy
from coset.metrics.diversity import (
    disagreement,
    disagreement_inputs,
    entropy,
    entropy_unchecked,
    mutual_information,
)
from coset.metrics.histograms import (
    adaptive_error_of,
    aupr_of,
    auroc_of,
    confidence_sums,
    detection_counts,
    fpr_at_95_of,
    risk_area_of,
)
from coset.metrics.pairwise import pairwise_mutual_information
from coset.metrics.regression import (
    continuous_ranked_probability_score,
    covered_entries,
    default_levels,
    deviation,
    gaussian_loss_entries,
    gaussian_negative_log_likelihood,
    interval_coverage,
    quantile_calibration_error,
    quantile_counts,
    ranked_probability_entries,
    root_mean_squared_error,
)
from coset.metrics.scores import (
    accuracy,
    brier,
    brier_inputs,
    confident_answers,
    correct_inputs,
    log_loss_inputs,
    negative_log_likelihood,
)
from coset.metrics.selective import area_under_risk_coverage

Reading = Literal[
    "probabilities",  # (n, c) of the mean prediction; every pixel is an input of a dense task
    "labels",  # (n,) class indices
    "pixel_probabilities",  # the probabilities, in dense tasks only
    "members",  # (m, n, c) probabilities of each member
    "several_members",  # the same, if there are two or more
    "log_weights",  # (m,) of the members, normalised
    "inlier_scores",  # (n,) out-of-distribution scores
    "outlier_scores",
    "outlier_members",  # (m, o, c) probabilities of each member for the outliers
    "outlier_log_weights",
    "mean",  # (n, …) of regression
    "variance",  # (n, …) predictive variance of regression
    "targets",  # (n, …) of regression
    "image",  # one image and the true one, and so on: not read by evaluate
    "reference_image",
    "reference",
    "all_members",
    "samples",
    "reference_samples",
]
"""What a metric may ask for."""


@dataclass(frozen=True)
class Sums:
    """A metric as a function of sums.

    Attributes:
        update: From the readings of a batch to statistics that add up over batches.
        compute: From the summed statistics to the metric.
        bound: How far it may be from the exact one; ``None``: it is exact.
    """

    update: Callable[..., Tensor]
    compute: Callable[[Tensor], Tensor]
    bound: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Metric:
    """A row of the catalogue.

    Attributes:
        name: The name of the function, and its key in the result of ``evaluate``.
        function: The public function.
        reads: Its positional arguments.
        best: Whether small or large values are good; None where neither is.
        per_input: From the readings to one value an input, if the metric is the mean of these.
        sums: The metric as a function of sums, if it is one.
    """

    name: str
    function: Callable[..., Tensor]
    reads: tuple[Reading, ...]
    best: Literal["low", "high"] | None
    per_input: Callable[..., Tensor] | None = None
    sums: Sums | None = None


def _mean_entries(entries: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The mean over all axes but the first."""
    return lambda *readings: entries(*readings).flatten(1).mean(1)


def _squares(mean: Tensor, targets: Tensor) -> Tensor:
    square = deviation(mean, targets).square()
    return torch.stack([square.sum(), torch.full_like(square.sum(), square.numel())])


def _below(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    counts = quantile_counts(mean, variance, targets, levels=default_levels())
    return torch.cat([counts, counts.new_tensor([targets.numel()])])


def _binned(update: Callable[..., Tensor], of: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Sums:
    """A metric from a histogram, with its bound."""
    return Sums(update, lambda sums: of(sums)[0], lambda sums: of(sums)[1])


def _top_label_sums(probabilities: Tensor, labels: Tensor) -> Tensor:
    return confidence_sums(*confident_answers(probabilities, labels))


def _class_sums(probabilities: Tensor, labels: Tensor) -> Tensor:
    classes = torch.arange(probabilities.shape[1], device=labels.device)
    return confidence_sums(probabilities.mT, labels == classes.unsqueeze(1))


CALIBRATION_SUMS = Sums(
    lambda probabilities, labels: equal_width_sums(*confident_answers(probabilities, labels), 15),
    lambda sums: bins_from_sums(sums).error,
)
OVERLAP_SUMS = Sums(
    lambda probabilities, labels: confusion(
        probabilities.max(-1).indices, labels, probabilities.shape[-1]
    ),
    intersection_over_union,
)
SQUARE_SUMS = Sums(_squares, lambda sums: (sums[0] / sums[1]).sqrt())
QUANTILE_SUMS = Sums(
    _below, lambda sums: (sums[:-1] / sums[-1] - default_levels().to(sums)).abs().mean()
)

OF_LABELS: tuple[Reading, ...] = ("probabilities", "labels")
OF_MEMBERS: tuple[Reading, ...] = ("members", "log_weights")
OF_SCORES: tuple[Reading, ...] = ("inlier_scores", "outlier_scores")
OF_GAUSSIANS: tuple[Reading, ...] = ("mean", "variance", "targets")
OF_REFERENCE: tuple[Reading, ...] = ("probabilities", "reference")
OF_IMAGES: tuple[Reading, ...] = ("image", "reference_image")
OF_WEIGHTS: tuple[Reading, ...] = ("samples", "reference_samples")

CATALOGUE = (
    Metric("accuracy", accuracy, OF_LABELS, "high", correct_inputs),
    Metric("negative_log_likelihood", negative_log_likelihood, OF_LABELS, "low", log_loss_inputs),
    Metric("brier", brier, OF_LABELS, "low", brier_inputs),
    Metric(
        "expected_calibration_error",
        expected_calibration_error,
        OF_LABELS,
        "low",
        sums=CALIBRATION_SUMS,
    ),
    Metric(
        "adaptive_calibration_error",
        adaptive_calibration_error,
        OF_LABELS,
        "low",
        sums=_binned(_top_label_sums, adaptive_error_of),
    ),
    Metric(
        "classwise_calibration_error",
        classwise_calibration_error,
        OF_LABELS,
        "low",
        sums=_binned(_class_sums, adaptive_error_of),
    ),
    Metric(
        "area_under_risk_coverage",
        area_under_risk_coverage,
        OF_LABELS,
        "low",
        sums=_binned(_top_label_sums, risk_area_of),
    ),
    Metric("entropy", entropy, ("probabilities",), None, entropy_unchecked),
    Metric("mutual_information", mutual_information, OF_MEMBERS, None, mutual_information),
    Metric(
        "disagreement", disagreement, ("several_members", "log_weights"), None, disagreement_inputs
    ),
    Metric("pairwise_mutual_information", pairwise_mutual_information, ("all_members",), None),
    Metric("auroc", auroc, OF_SCORES, "high", sums=_binned(detection_counts, auroc_of)),
    Metric("aupr", aupr, OF_SCORES, "high", sums=_binned(detection_counts, aupr_of)),
    Metric("fpr_at_95", fpr_at_95, OF_SCORES, "low", sums=_binned(detection_counts, fpr_at_95_of)),
    Metric("agreement", agreement, OF_REFERENCE, "high"),
    Metric("total_variation", total_variation, OF_REFERENCE, "low"),
    Metric("maximum_mean_discrepancy", maximum_mean_discrepancy, OF_WEIGHTS, "low"),
    Metric(
        "mean_intersection_over_union",
        mean_intersection_over_union,
        ("pixel_probabilities", "labels"),
        "high",
        sums=OVERLAP_SUMS,
    ),
    Metric(
        "root_mean_squared_error",
        root_mean_squared_error,
        ("mean", "targets"),
        "low",
        sums=SQUARE_SUMS,
    ),
    Metric(
        "gaussian_negative_log_likelihood",
        gaussian_negative_log_likelihood,
        OF_GAUSSIANS,
        "low",
        _mean_entries(gaussian_loss_entries),
    ),
    Metric(
        "continuous_ranked_probability_score",
        continuous_ranked_probability_score,
        OF_GAUSSIANS,
        "low",
        _mean_entries(ranked_probability_entries),
    ),
    Metric(
        "interval_coverage",
        interval_coverage,
        OF_GAUSSIANS,
        None,
        _mean_entries(covered_entries),
    ),
    Metric(
        "quantile_calibration_error",
        quantile_calibration_error,
        OF_GAUSSIANS,
        "low",
        sums=QUANTILE_SUMS,
    ),
    Metric("peak_signal_to_noise", peak_signal_to_noise, OF_IMAGES, "high"),
    Metric("structural_similarity", structural_similarity, OF_IMAGES, "high"),
)


def metric_named(name: str) -> Metric:
    """The row of the catalogue with this name.

    >>> metric_named("brier").best
    'low'
    """
    for metric in CATALOGUE:
        if metric.name == name:
            return metric
    known = ", ".join(metric.name for metric in CATALOGUE)
    raise CosetError(f"there is no metric {name!r}", f"needed one of {known}", "check the name")
