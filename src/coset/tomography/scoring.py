"""How well error bars hold where the truth is known: densities, coverage, calibration."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError, require_counts
from coset.linalg.cholesky import cholesky
from coset.metrics import (
    continuous_ranked_probability_score,
    interval_coverage,
    peak_signal_to_noise,
    quantile_calibration_error,
)
from coset.tomography.posterior import ImagePosterior
from coset.tomography.products import SparseOperator

LEVELS = (0.5, 0.9, 0.95)
"""Intervals whose coverage is counted."""

_STRONGEST = 100
"""Directions that the readings determine best: so many, or a seventh of the pixels."""

_JITTER = 1e-6
"""Of the mean variance of a patch, added to each pixel: rounding makes covariances singular."""


def patches(size: int, side: int) -> Iterator[Int[Tensor, " pixels"]]:
    """Pixels of disjoint square patches; what is left at the rims joins the last ones.

    >>> [patch.tolist() for patch in patches(3, 2)]
    [[0, 1, 2, 3, 4, 5, 6, 7, 8]]
    >>> [patch.tolist() for patch in patches(2, 1)]
    [[0], [1], [2], [3]]
    """
    require_counts(size=size, side=side)
    starts = list(range(0, max(size - size % side, side), side))
    ends = [*starts[1:], size]
    grid = torch.arange(size**2).reshape(size, size)
    for top, bottom in zip(starts, ends, strict=True):
        for left, right in zip(starts, ends, strict=True):
            yield grid[top:bottom, left:right].flatten()


def patch_log_density(
    posterior: ImagePosterior,
    truth: Float[Tensor, "size size"],
    *,
    side: int,
    floor: float = 0.0,
) -> float:
    """The log density of the truth, patch by patch, divided by the number of pixels.

    ``Σ_patches log N(x; m, C + floor · 1) / pixels`` over disjoint square patches; with the image's
    own side it is the joint density.  Without a covariance, that of the samples is taken, its
    entries off the diagonal halved (Maddox et al. 2019).

    Args:
        posterior: Over the image.
        truth: The image.
        side: Of a patch, in pixels.
        floor: Variance that is added to every pixel.
    """
    size = truth.shape[-1]
    if truth.shape != (size, size) or size**2 != len(posterior.mean):
        raise CosetError(
            f"got a truth of shape {tuple(truth.shape)} and {len(posterior.mean)} pixels",
            "needed the same square image",
        )
    error = truth.double().flatten() - posterior.mean.double()
    total = 0.0
    for pixels in patches(size, side):
        part = _covariance(posterior, pixels)
        part.diagonal().add_(floor + _JITTER * float(part.diagonal().mean()))
        factor = cholesky(part)
        white = torch.linalg.solve_triangular(factor, error[pixels, None], upper=False)
        logdet = 2 * float(factor.diagonal().log().sum())
        total -= (float(white.square().sum()) + logdet + len(pixels) * math.log(2 * math.pi)) / 2
    return total / size**2


def _covariance(posterior: ImagePosterior, pixels: Tensor) -> Float[Tensor, "k k"]:
    if posterior.covariance is not None:
        return posterior.covariance[pixels][:, pixels].double().clone()
    if len(pixels) == 1:
        return posterior.variance[pixels, None].double().clone()
    if len(posterior.samples) < 2:
        raise CosetError(
            f"got {len(posterior.samples)} samples and no covariance",
            "needed one of them for patches of several pixels",
            "draw samples, or take patches of one pixel",
        )
    found = torch.cov(posterior.samples[:, pixels].double().mT)
    return (found + found.diagonal().diag()) / 2


def image_floor(operator: SparseOperator, noise: float) -> float:
    """What noise of readings does to a pixel along the directions that are seen best.

    ``noise² · Σ 1 / s² / pixels`` over the largest singular values ``s`` of the scan; the
    published study adds it to the variance of every method before densities are compared.

    Args:
        operator: From pixels to readings.
        noise: Standard deviation of a reading's noise.
    """
    from scipy.sparse.linalg import svds

    matrix = operator.matrix
    count = min(_STRONGEST, matrix.shape[1] // 7, matrix.shape[0] - 1)
    start = np.ones(min(matrix.shape))
    values = np.asarray(svds(matrix, k=count, return_singular_vectors=False, v0=start))
    seen = values[values > 1e-9 * values.max()]
    return float(noise**2 * (1 / seen**2).sum() / matrix.shape[1])


def image_scores(
    posterior: ImagePosterior,
    truth: Float[Tensor, "size size"],
    *,
    floor: float = 0.0,
    sides: tuple[int, ...] = (1,),
) -> Mapping[str, float]:
    """Numbers on image and error bars.

    ``psnr``; ``density_k``: log density per pixel over patches of side k; ``coverage_50``, …: share
    of pixels inside their interval; ``calibration``: mean distance of observed from predicted
    quantiles; ``spread``: standard deviation of standardised errors, one if error bars are right
    and less if they are too wide; ``crps``: the continuous ranked probability score.

    Args:
        posterior: Over the image.
        truth: The image.
        floor: Variance added to every pixel for the densities; marginals are taken as they are.
        sides: Of the patches.
    """
    size = truth.shape[-1]
    flat = truth.double().flatten()
    mean, variance = posterior.mean.double(), posterior.variance.double()
    variance = variance.clamp_min(1e-12 * max(float(variance.max()), 1e-300))
    scores = {
        "psnr": float(peak_signal_to_noise(mean.reshape(size, size), truth.double())),
        "calibration": float(quantile_calibration_error(mean, variance, flat)),
        "spread": float(((flat - mean) / variance.sqrt()).square().mean().sqrt()),
        "crps": float(continuous_ranked_probability_score(mean, variance, flat)),
    }
    for level in LEVELS:
        found = interval_coverage(mean, variance, flat, level=level)
        scores[f"coverage_{100 * level:g}"] = float(found)
    for side in sides:
        density = patch_log_density(posterior, truth, side=side, floor=floor)
        scores[f"density_{side}"] = density
    return scores
