"""Readings made ready: dead bins left out, in units in which the image is about one."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.tomography.noise import Poisson
from coset.tomography.pixel_process import PixelProcess, fit_pixel_process
from coset.tomography.products import SparseOperator
from coset.tomography.scans import Scan, as_grid

Noise = str | float | Poisson
"""``"gaussian"`` with a size that is learnt, a standard deviation, or counted photons."""


@dataclass(frozen=True)
class Observed:
    """The readings of one image.

    All numbers but counts are in units of ``unit``, so that the image's largest value is about one.

    Attributes:
        operator: The rows of the scan that have a reading.
        size: Pixels along a side.
        unit: What one stands for.
        values: Line integrals; for counts, their first estimate.
        variance: Known variance of each reading; ``None``: one variance, to be learnt.
        counts: Photons counted, if readings are counts.
        photons: Counted where nothing is in the way.
        start: A Gaussian process on pixels, fitted to the readings.
        dispersion: What variances of counts are multiplied with; ``None``: to be learnt.
    """

    operator: SparseOperator
    size: int
    unit: float
    values: Float[Tensor, " readings"]
    variance: Float[Tensor, " readings"] | None
    counts: Float[Tensor, " readings"] | None
    photons: float
    start: PixelProcess
    dispersion: float | None = None

    @property
    def level(self) -> float:
        """The typical variance of a reading, as far as is known before the image is."""
        return float(self.start.noise.median())

    def some(self, count: int) -> "Observed":
        """So many readings, drawn by seed 0; itself if these are all."""
        every = len(self.values)
        if count >= every:
            return self
        random = torch.Generator().manual_seed(0)
        chosen = torch.randperm(every, generator=random)[:count].sort().values
        part = lambda values: None if values is None else values[chosen]  # noqa: E731
        return replace(
            self,
            operator=SparseOperator(self.operator.matrix[chosen.numpy()]),
            values=self.values[chosen],
            variance=part(self.variance),
            counts=part(self.counts),
        )

    def misfit(self, projected: Float[Tensor, "*k readings"]) -> Float[Tensor, "*k"]:
        """Mean squared residual; for counts, what it is for the deviance in the same units."""
        values = self.values.to(projected)
        if self.counts is not None:
            counts, expected = self.counts.to(projected), self._expected(projected)
            positive = counts.clamp_min(0.5)
            deviance = 2 * (expected - counts + counts * (positive / expected).log())
            return self.level * deviance.mean(-1)
        if self.variance is None:
            return (projected - values).square().mean(-1)
        weights = self.level / self.variance.to(projected)
        return (weights * (projected - values).square()).mean(-1)

    def gaussian(
        self, projected: Float[Tensor, " readings"]
    ) -> tuple[Float[Tensor, " readings"], Float[Tensor, " readings"] | None]:
        """Readings and noise variances of the Gaussian model around projections of an image.

        Counts ``N`` of mean ``μ = photons · exp(-p)`` act like readings ``p + (μ - N)/μ`` of
        variance ``1/μ`` (one step of Gauss and Newton).
        """
        if self.counts is None:
            return self.values, self.variance
        expected = self._expected(projected)
        change = (expected - self.counts.to(projected)) / expected
        variance = (self.dispersion or 1.0) / (expected * self.unit**2)
        return projected + change / self.unit, variance

    def _expected(self, projected: Tensor) -> Tensor:
        # nothing that is seen takes away more than e^-30 of the photons
        return self.photons * (-(self.unit * projected).clamp(-5, 30)).exp()


def observe(readings: Tensor, scan: Scan, noise: Noise, *, memory: int = 4 << 30) -> Observed:
    """Leaves out readings that are NaN, and finds unit and start; input has been checked.

    Args:
        readings: Line integrals or counts.
        scan: How they were made.
        noise: Its kind.
        memory: Bytes that the start may take.
    """
    flat = as_grid(scan, readings).reshape(-1).double()
    seen = flat.isfinite()
    operator = scan.operator
    if not bool(seen.all()):
        operator = SparseOperator(operator.matrix[seen.nonzero().flatten().numpy()])
    flat = flat[seen]
    counts, photons, variance, values = None, math.inf, None, flat
    dispersion = None
    if isinstance(noise, Poisson):
        counts, photons, dispersion = flat, float(noise.photons), noise.dispersion
        values = -((counts + 0.5) / photons).log()
        variance = 1 / (counts + 0.5)
    elif not isinstance(noise, str):
        variance = torch.full_like(flat, float(noise) ** 2)
    start = fit_pixel_process(operator, values, scan.size, noise=variance, memory=memory)
    unit = max(float(start.mean.max()), 1e-12)
    scaled = variance / unit**2 if variance is not None else None
    again = PixelProcess(
        start.mean / unit,
        start.variance / unit**2,
        start.length,
        start.noise / unit**2,
        start.factor / unit,
        start.cross / unit**2,
        start.log_evidence,
    )
    return Observed(
        operator, scan.size, unit, values / unit, scaled, counts, photons, again, dispersion
    )
