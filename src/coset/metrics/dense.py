"""Metrics of dense prediction: segmentation, images and depth."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from coset.bayes.likelihood import Missing
from coset.errors import CosetError
from coset.metrics.calibration import expected_calibration_error
from coset.metrics.checks import (
    check_at_least,
    check_finite,
    check_floating,
    check_pixels,
    check_same_shape,
    check_tensor,
    present,
)

WINDOW, DEVIATION = 11, 1.5
"""Side and standard deviation of the Gaussian window of structural similarity (Wang 2004)."""


def mean_intersection_over_union(
    predictions: Tensor, targets: Int[Tensor, "n ..."], *, ignore: int | None = None
) -> Float[Tensor, ""]:
    """Σ_k |P_k ∩ T_k| / |P_k ∪ T_k|, averaged over the classes present in either map.

    ``predictions`` are class indices like the targets, or probabilities with a class axis after the
    first.

    >>> truth = torch.tensor([[0, 0, 1, 1]])
    >>> float(mean_intersection_over_union(torch.tensor([[0, 1, 1, 1]]), truth))  # (1/2 + 2/3) / 2
    0.583...
    """
    dtype, counts = _counted_pairs(predictions, targets, ignore)
    return intersection_over_union(counts).to(dtype)


def class_intersection_over_union(
    predictions: Tensor, targets: Int[Tensor, "n ..."], *, ignore: int | None = None
) -> Float[Tensor, " c"]:
    """|P_k ∩ T_k| / |P_k ∪ T_k| of each class, NaN for one that is in neither map.

    Arguments as of :func:`mean_intersection_over_union`, which is the mean of what is not NaN.

    >>> truth = torch.tensor([[0, 0, 2, 2]])
    >>> class_intersection_over_union(torch.tensor([[0, 2, 2, 2]]), truth).tolist()
    [0.5, nan, 0.666...]
    """
    dtype, counts = _counted_pairs(predictions, targets, ignore)
    return _overlap(counts).to(dtype)


def _counted_pairs(
    predictions: Tensor, targets: Tensor, ignore: int | None
) -> tuple[torch.dtype, Int[Tensor, "c c"]]:
    """The confusion of what counts, and the type of the answer."""
    for name, values in (("predictions", predictions), ("targets", targets)):
        check_tensor(name, values)
    dtype, classes = torch.get_default_dtype(), None
    if predictions.is_floating_point():
        check_pixels(predictions, targets)
        check_floating("predictions", predictions)
        check_finite("predictions", predictions)
        dtype, classes = predictions.dtype, predictions.shape[1]
        predictions = predictions.max(1).indices
    if ignore is not None:
        check_same_shape("predictions", predictions, "targets", targets)
        known = targets != ignore
        predictions, targets = predictions[known], targets[known]
    return dtype, confusion(predictions, targets, classes)


def boundary_band(
    labels: Int[Tensor, "n h w"], *, width: int = 2, ignore: int | None = None
) -> Bool[Tensor, "n h w"]:
    """Pixels with another class at most ``width`` pixels away, in rows and in columns.

    Metrics of the band alone: ``targets = torch.where(band, labels, ignore)``; of the interior:
    ``~band``.  Pixels to ignore are neither in the band nor another class.

    >>> boundary_band(torch.tensor([[[0, 0, 0, 1, 1]]]), width=1).tolist()
    [[[False, False, True, True, False]]]
    """
    check_at_least("width", width, 1)
    check_tensor("labels", labels)
    if labels.is_floating_point() or labels.ndim != 3:
        raise CosetError(
            f"labels have shape {tuple(labels.shape)} and type {labels.dtype}",
            "needed whole numbers (n, h, w)",
            "take argmax over the classes, or call .long()",
        )
    void = torch.zeros_like(labels, dtype=torch.bool) if ignore is None else labels == ignore
    values = labels.double()

    def largest(of: Tensor) -> Tensor:
        return torch.nn.functional.max_pool2d(of.unsqueeze(1), 2 * width + 1, 1, width)[:, 0]

    high = largest(values.masked_fill(void, -math.inf))
    low = -largest((-values).masked_fill(void, -math.inf))
    return (high != low) & ~void


def confusion(
    predictions: Int[Tensor, "*pixels"],
    targets: Int[Tensor, "*pixels"],
    classes: int | None = None,
) -> Int[Tensor, "c c"]:
    """How often each class (row) is predicted as each class (column); counts of parts add up.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])).tolist()
    [[1, 1], [0, 1]]
    """
    check_same_shape("predictions", predictions, "targets", targets)
    for name, labels in (("predictions", predictions), ("targets", targets)):
        if labels.is_floating_point() or labels.numel() == 0 or int(labels.amin()) < 0:
            raise CosetError(
                f"{name} are {labels.dtype} of shape {tuple(labels.shape)}"
                + (f", smallest {int(labels.amin())}" if labels.numel() else ""),
                "needed class indices from zero",
                "drop ignored pixels first, or take argmax over the classes",
            )
    largest = 1 + max(int(predictions.amax()), int(targets.amax()))
    classes = largest if classes is None else classes
    if largest > classes:
        raise CosetError(
            f"found class {largest - 1}",
            f"needed indices from 0 to {classes - 1}",
            "check the labels, and drop pixels that a label marks as ignored",
        )
    flat = targets.long().flatten() * classes + predictions.long().flatten()
    return torch.bincount(flat, minlength=classes * classes).view(classes, classes)


def intersection_over_union(counts: Shaped[Tensor, "c c"]) -> Float[Tensor, ""]:
    """The mean over the classes present of intersection by union, from a confusion matrix.

    >>> float(intersection_over_union(torch.tensor([[1, 1], [0, 2]])))
    0.583...
    """
    return _overlap(counts).nanmean()


def _overlap(counts: Shaped[Tensor, "c c"]) -> Float[Tensor, " c"]:
    """Intersection by union of each class, 0 / 0 for those that are absent."""
    both = counts.diagonal().double()
    return both / (counts.sum(0) + counts.sum(1) - both)


def pixel_calibration_error(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    bins: int = 15,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The expected calibration error with every pixel as an input.

    >>> sure = torch.tensor([[0.9, 0.9], [0.1, 0.1]]).view(1, 2, 1, 2)
    >>> error = pixel_calibration_error(sure, torch.tensor([[[0, 1]]]))  # |1/2 − 0.9|
    >>> round(float(error), 4)
    0.4
    """
    return expected_calibration_error(probabilities, targets, bins=bins, ignore=ignore)


def peak_signal_to_noise(
    image: Float[Tensor, "*pixels"], reference: Float[Tensor, "*pixels"]
) -> Float[Tensor, ""]:
    """10 log₁₀(range² / mean squared error) in decibels; range: max − min of the reference.

    >>> reference = torch.tensor([[0.0, 1.0]])
    >>> round(float(peak_signal_to_noise(reference + 0.1, reference)), 4)  # 10 log₁₀(1 / 0.01)
    20.0
    """
    span = _check_images(image, reference)
    error = (image.double() - reference.double()).square().mean()
    return (10 * torch.log10(span**2 / error)).to(image.dtype)


def structural_similarity(
    image: Float[Tensor, "*batch height width"], reference: Float[Tensor, "*batch height width"]
) -> Float[Tensor, ""]:
    """Structural similarity (Wang et al. 2004), averaged over the windows inside the image.

    (2μ_a μ_b + C₁)(2σ_ab + C₂) / ((μ_a² + μ_b² + C₁)(σ_a² + σ_b² + C₂)) in Gaussian windows of 11 ×
    11 with deviation 1.5, C = (0.01 L)², (0.03 L)², L = max − min of the reference.

    >>> image = torch.eye(16)
    >>> float(structural_similarity(image, image))
    1.0
    """
    span = _check_images(image, reference)
    if image.ndim < 2 or min(image.shape[-2:]) < WINDOW:
        raise CosetError(
            f"the image has shape {tuple(image.shape)}",
            f"needed at least {WINDOW} × {WINDOW} pixels in the last two axes",
            "use peak_signal_to_noise for smaller ones",
        )
    a, b = (values.double().reshape(-1, 1, *values.shape[-2:]) for values in (image, reference))
    place = torch.arange(WINDOW, dtype=a.dtype, device=a.device) - WINDOW // 2
    window = torch.softmax(-(place**2) / (2 * DEVIATION**2), 0)

    def blur(values: Tensor) -> Tensor:
        rows = torch.nn.functional.conv2d(values, window.view(1, 1, -1, 1))
        return torch.nn.functional.conv2d(rows, window.view(1, 1, 1, -1))

    mean_a, mean_b = blur(a), blur(b)
    variances = blur(a * a) - mean_a**2 + blur(b * b) - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    bottom = (mean_a**2 + mean_b**2 + c1) * (variances + c2)
    return (top / bottom).mean().to(image.dtype)


def _check_images(image: Tensor, reference: Tensor) -> float:
    """The range of the reference, after the checks."""
    for name, values in (("image", image), ("reference", reference)):
        check_floating(name, values)
        check_finite(name, values)
    check_same_shape("image", image, "reference", reference)
    span = float(reference.amax()) - float(reference.amin())  # half precision may overflow
    if span == 0:
        raise CosetError(
            "the reference is constant",
            "needed a reference with a range: max − min is the scale of the metric",
            "check that image and reference were not swapped",
        )
    return span


@dataclass(frozen=True)
class DepthErrors:
    """The eleven usual errors of depth estimation, over the pixels whose true depth d is known.

    The field's libraries name a few of them otherwise: its RSRE is the root of
    ``squared_relative``, its SILog is ``scale_invariant_log``.

    Attributes:
        absolute_relative: mean |e − d| / d.
        squared_relative: mean (e − d)² / d.
        root_mean_squared: √ mean (e − d)².
        root_mean_squared_log: √ mean (log e − log d)².
        log10: mean |log₁₀ e − log₁₀ d|.
        within: share of pixels with max(e/d, d/e) below 1.25, 1.25², 1.25³.
        scale_invariant_log: the variance of log e − log d, which one factor on all depths leaves.
        inverse_absolute: mean |1/e − 1/d|.
        inverse_root_mean_squared: √ mean (1/e − 1/d)².
    """

    absolute_relative: float
    squared_relative: float
    root_mean_squared: float
    root_mean_squared_log: float
    log10: float
    within: tuple[float, float, float]
    scale_invariant_log: float
    inverse_absolute: float
    inverse_root_mean_squared: float


def depth_errors(
    depth: Float[Tensor, "*pixels"],
    targets: Float[Tensor, "*pixels"],
    *,
    missing: Missing = "refuse",
) -> DepthErrors:
    """Errors of estimated depths e against true ones d; d ≤ 0 marks pixels without a reading.

    >>> errors = depth_errors(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([2.0, 2.0, 0.0]))
    >>> errors.absolute_relative, errors.root_mean_squared, errors.within
    (0.5, 1.0, (0.0, 0.5, 0.5))

    Args:
        depth: Estimated, positive.
        targets: True.
        missing: ``"nan"``: NaN marks pixels without a reading, too.
    """
    check_same_shape("depth", depth, "targets", targets)
    depth, targets = present(targets, depth, missing=missing)
    for name, values in (("depth", depth), ("targets", targets)):
        check_floating(name, values)
        check_finite(name, values)
    known = targets > 0
    if not bool(known.any()):
        raise CosetError("no target depth is positive", "needed one or more", "check the readings")
    e, d = depth[known].double(), targets[known].double()
    if float(e.amin()) <= 0:
        raise CosetError(
            f"an estimated depth is {float(e.amin()):.4g}", "needed positive depths", "clamp them"
        )
    logs, inverses = e.log() - d.log(), 1 / e - 1 / d
    ratio = logs.abs().exp()
    first, second, third = (float((ratio < 1.25**k).double().mean()) for k in (1, 2, 3))
    return DepthErrors(
        float(((e - d).abs() / d).mean()),
        float(((e - d).square() / d).mean()),
        float((e - d).square().mean().sqrt()),
        float(logs.square().mean().sqrt()),
        float(logs.abs().mean() / math.log(10)),
        (first, second, third),
        float(logs.var(correction=0)),
        float(inverses.abs().mean()),
        float(inverses.square().mean().sqrt()),
    )
