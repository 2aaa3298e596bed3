"""The posterior of the image: in closed form for each pixel, and samples by Matheron's rule.

``h ~ N(f - J θ~ + K_fy K⁻¹ r,  K_ff - K_fy K⁻¹ K_yf)``.  A sample of the prior becomes one of the
posterior by ``h = h₀ + K_fy K⁻¹ (r + noise - A h₀)``.

Its variance has two parts: what noise of the readings does to the mean, and what the readings do
not see, which the prior alone answers (Rodgers 2000).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.linalg.cholesky import cholesky
from coset.tomography.evidence import EvidenceProblem, Scales
from coset.tomography.features import Features
from coset.tomography.products import SparseOperator


@dataclass(frozen=True)
class ImagePosterior:
    """A Gaussian over images.

    Attributes:
        mean: The mean of every pixel.
        variance: Of every pixel.
        samples: Draws.
        covariance: Of all pixels, where there are few.
        from_noise: The part of the variance that noise of the readings makes, where it is known.
    """

    mean: Float[Tensor, " pixels"]
    variance: Float[Tensor, " pixels"]
    samples: Float[Tensor, "m pixels"]
    covariance: Float[Tensor, "pixels pixels"] | None
    from_noise: Float[Tensor, " pixels"] | None = None

    def scaled(self, unit: float) -> "ImagePosterior":
        """The same images in another unit."""
        covariance = None if self.covariance is None else unit**2 * self.covariance
        from_noise = None if self.from_noise is None else unit**2 * self.from_noise
        return ImagePosterior(
            unit * self.mean, unit**2 * self.variance, unit * self.samples, covariance, from_noise
        )


def exact_posterior(
    features: Features,
    pixel_rows: Iterable[Sequence[Float[Tensor, "j filters taps"]]],
    reading_rows: Sequence[Float[Tensor, "readings filters taps"]],
    operator: SparseOperator,
    problem: EvidenceProblem,
    scales: Scales,
    *,
    samples: int,
    dense: bool,
    generator: torch.Generator,
) -> ImagePosterior:
    """The closed form, in one pass over the pixels' derivatives.

    Args:
        features: The linearised network.
        pixel_rows: Derivatives of all pixels, a few at a time.
        reading_rows: Derivatives of all readings.
        operator: From pixels to readings.
        problem: The readings.
        scales: Of prior and noise.
        samples: How many are drawn.
        dense: Whether the covariance of all pixels is wanted.
        generator: Draws them.
    """
    factor = cholesky(problem.covariance(scales))
    halves = [_lower(each) for each in scales.covariances()]
    seen = _scaled(reading_rows, halves)
    weights = features.weights()
    noises = torch.randn(seen.shape[1], samples, generator=generator, dtype=torch.float64)
    cross, own, changes, draws, kept = [], [], [], [], []
    for rows in pixel_rows:
        part = _scaled(rows, halves)
        cross.append(part @ seen.mT)
        own.append(part.square().sum(1))
        draws.append(part @ noises)
        changes.append(_product(rows, weights))
        if dense:
            kept.append(part)
    between = torch.cat(cross)
    before = features.fitted.image.double().flatten() - torch.cat(changes)
    mean = before + between @ torch.cholesky_solve(problem.residual[:, None], factor)[:, 0]
    half = torch.linalg.solve_triangular(factor, between.mT, upper=False)
    noise = problem.noise_variances(scales)
    # with the gain G = K_fy K⁻¹ the covariance is (1 - G A) K_ff (1 - G A)ᵀ + G noise Gᵀ
    gain = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    from_noise = noise @ gain.square()
    variance = torch.cat(own) - half.square().sum(0)
    covariance = None
    if dense:
        whole = torch.cat(kept)
        covariance = whole @ whole.mT - half.mT @ half
    # Matheron's rule about the mean: the residual's own share is in the mean already
    prior = torch.cat(draws)
    errors = torch.randn(len(factor), samples, generator=generator, dtype=torch.float64)
    errors *= noise.sqrt()[:, None]
    gap = errors - operator.forward(prior.mT).mT
    drawn = mean[:, None] + prior + between @ torch.cholesky_solve(gap, factor)
    return ImagePosterior(mean, variance.clamp_min(0), drawn.mT, covariance, from_noise)


def _lower(covariance: Float[Tensor, "taps taps"]) -> Float[Tensor, "taps taps"]:
    return cholesky(covariance)


def _scaled(
    rows: Sequence[Float[Tensor, "k filters taps"]], halves: Sequence[Float[Tensor, "taps taps"]]
) -> Float[Tensor, "k weights"]:
    """Rows by weights that are independent and have variance one under the prior."""
    return torch.cat(
        [(row.double() @ half).flatten(1) for row, half in zip(rows, halves, strict=True)], dim=1
    )


def _product(
    rows: Sequence[Float[Tensor, "k filters taps"]],
    weights: Sequence[Float[Tensor, "filters taps"]],
) -> Float[Tensor, " k"]:
    parts = [
        row.flatten(1).double() @ weight.flatten().double()
        for row, weight in zip(rows, weights, strict=True)
    ]
    return torch.stack(parts).sum(0)
