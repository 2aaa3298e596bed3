"""A Gaussian process on pixels: the start of a reconstruction, and what to beat.

``x ~ N(0, v K)`` with ``K = exp(-distance / length)`` and ``y = A x + noise``; amplitude, length
and noise maximise the evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from coset.linalg.cholesky import cholesky
from coset.tomography.products import SparseOperator

LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Lengths tried, in pixels."""

_READINGS = 800
"""Readings that amplitude, length and noise are tuned on, at most."""

_TOGETHER = 64
"""Images whose Fourier transforms are in memory at one time."""


@dataclass(frozen=True)
class PixelProcess:
    """The fitted process.

    Attributes:
        mean: The posterior mean of the image.
        variance: Of a pixel before the readings.
        length: Of the correlation, in pixels.
        noise: Variance of the noise, of each reading.
        factor: Cholesky factor of the covariance of the readings that it is conditioned on.
        cross: Covariance of these readings and pixels.
        log_evidence: Of the readings that it was tuned on.
    """

    mean: Float[Tensor, " pixels"]
    variance: float
    length: float
    noise: Float[Tensor, " readings"]
    factor: Float[Tensor, "readings readings"]
    cross: Float[Tensor, "readings pixels"]
    log_evidence: float

    def covariance(self) -> Float[Tensor, "pixels pixels"]:
        """The posterior covariance."""
        size = round(len(self.mean) ** 0.5)
        prior = self.variance * correlate(torch.eye(size**2).double(), size, self.length)
        half = torch.linalg.solve_triangular(self.factor, self.cross, upper=False)
        found: Tensor = prior - half.mT @ half
        return found


def fit_pixel_process(
    operator: SparseOperator,
    readings: Float[Tensor, " readings"],
    size: int,
    *,
    noise: Float[Tensor, " readings"] | None = None,
    lengths: Sequence[float] = LENGTHS,
    memory: int = 4 << 30,
) -> PixelProcess:
    """Tunes the process by its evidence and conditions it on the readings.

    Where there are more readings than memory holds covariances with pixels for, it is conditioned
    on a random part of them.

    Args:
        operator: From pixels to readings.
        readings: Line integrals.
        size: Pixels along a side.
        noise: Known variance of each reading; ``None``: one variance, learnt.
        lengths: Which are tried.
        memory: Bytes that may be taken.
    """
    values = readings.double()
    weight = torch.ones_like(values) if noise is None else noise.double().rsqrt()
    random = torch.Generator().manual_seed(0)
    order = torch.randperm(len(values), generator=random)
    chosen = order[:_READINGS]
    part = _rows(operator, chosen) * weight[chosen, None]
    tuned = (
        _tuned(part, (values * weight)[chosen], size, length, known=noise is not None)
        for length in lengths
    )
    evidence, variance, scale, length = max(tuned)
    variances = torch.full_like(values, scale) if noise is None else noise.double()
    most = memory // (8 * (2 * size**2 + 3 * len(values)))  # cross, its pieces and factors
    used = order[: max(most, 1)].sort().values
    pieces = [
        variance * correlate(_rows(operator, some), size, length) for some in used.split(_TOGETHER)
    ]
    cross = torch.cat(pieces)
    between = torch.cat([operator.forward(piece)[:, used] for piece in pieces])
    factor = cholesky(between + variances[used].diag())
    mean = cross.mT @ torch.cholesky_solve(values[used, None], factor)[:, 0]
    return PixelProcess(mean, variance, length, variances, factor, cross, evidence)


def _rows(operator: SparseOperator, chosen: Int[Tensor, " k"]) -> Float[Tensor, "k pixels"]:
    """What these readings see of each pixel."""
    ones = torch.zeros(len(chosen), operator.matrix.shape[0], dtype=torch.float64)
    ones[torch.arange(len(chosen)), chosen] = 1.0
    return operator.adjoint(ones)


def _tuned(
    rows: Float[Tensor, "k pixels"],
    values: Float[Tensor, " k"],
    size: int,
    length: float,
    *,
    known: bool,
) -> tuple[float, float, float, float]:
    """The evidence at the best amplitude and noise, both, and the length."""
    spread, axes = torch.linalg.eigh(rows @ correlate(rows, size, length).mT)
    spread, squares = spread.clamp_min(0), (axes.mT @ values).square()
    typical = float(spread.mean())

    def parts(logarithm: float) -> tuple[float, float, float]:
        """Negative evidence, amplitude and noise at this log ratio of the two."""
        ratio = typical * 10**logarithm  # noise over amplitude
        amplitude = 1 / ratio if known else float((squares / (spread + ratio)).mean())
        total = amplitude * (spread + ratio)
        cost = 0.5 * float((squares / total + (2 * torch.pi * total).log()).sum())
        return cost, amplitude, amplitude * ratio

    # the cost may have two valleys: look at all decades, then inside the best
    grid = [parts(step / 2)[0] for step in range(-16, 9)]
    best = (grid.index(min(grid)) - 16) / 2
    found = minimize_scalar(lambda step: parts(step)[0], (best - 0.5, best, best + 0.5)).x
    cost, amplitude, noise = parts(float(found))
    return -cost, amplitude, noise, length


def correlate(
    images: Float[Tensor, "k pixels"], size: int, length: float
) -> Float[Tensor, "k pixels"]:
    """Each image times the correlation ``exp(-distance / length)``, by Fourier transforms.

    >>> found = correlate(torch.eye(4, dtype=torch.float64), 2, 1.0)
    >>> [round(value, 4) for value in found[0].tolist()]  # 1, e⁻¹, e⁻¹, e^(-√2)
    [1.0, 0.3679, 0.3679, 0.2431]
    """
    places = torch.arange(2 * size)
    apart = torch.minimum(places, 2 * size - places).to(images)
    kernel = torch.exp(-(apart[:, None].square() + apart.square()).sqrt() / length)
    around = torch.fft.rfft2(kernel)
    found = []
    for grid in images.reshape(-1, size, size).split(_TOGETHER):
        spectrum = torch.fft.rfft2(grid, s=(2 * size, 2 * size)) * around
        found.append(torch.fft.irfft2(spectrum, s=(2 * size, 2 * size))[:, :size, :size])
    return torch.cat(found).reshape(images.shape)
