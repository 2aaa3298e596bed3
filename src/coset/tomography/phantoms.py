"""Phantoms, and readings simulated on a finer grid by another projector than reconstruction uses.

Readings made by the very matrix that reconstruction inverts would make error bars look better than
they are.  :func:`simulate` therefore interpolates a finer image along rays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coset.errors import CosetError, require_counts
from coset.tomography.noise import Poisson
from coset.tomography.scans import Scan

_FINE = 8
"""Points along a side of a pixel at which shapes are sampled."""

_RAYS, _STEP = 5, 0.5
"""Rays that a simulated bin is the mean of, and their step in pixels of the finer image."""

Shape = tuple[float, ...]
"""Value, half-axes, centre and angle in radians; the image is [-1, 1]², ``y`` up."""

_SHEPP_LOGAN: Sequence[Shape] = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, math.radians(-18)),
    (-0.2, 0.16, 0.41, -0.22, 0.0, math.radians(18)),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
    (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
    (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
    (0.1, 0.023, 0.023, 0.0, -0.606, 0.0),
    (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
)


def shepp_logan(size: int) -> Float[Tensor, "size size"]:
    """The head of Shepp and Logan with Toft's contrasts, between 0 and 1.

    >>> round(float(shepp_logan(64).max()), 2), round(float(shepp_logan(65)[32, 32]), 2)
    (1.0, 0.2)
    """
    return _painted(size, _SHEPP_LOGAN, _in_ellipse).clamp(0, 1)


def ellipses(size: int, *, generator: torch.Generator) -> Float[Tensor, "size size"]:
    """Random ellipses in the inner disc, scaled to [0, 1] (as Barbano et al. 2021 draw them)."""
    many = min(int(torch.poisson(torch.tensor(40.0), generator=generator)), 70)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    shapes = []
    for _ in range(max(many, 1)):
        axes = [-0.2 * math.log(1 - uniform(0, 1)) for _ in range(2)]
        # the radius has a triangular density that rises to the rim
        radius, turn = 0.9 * math.sqrt(uniform(0, 1)), uniform(0, 2 * math.pi)
        centre = radius * math.cos(turn), radius * math.sin(turn)
        shapes.append((uniform(-0.4, 1.0), *axes, *centre, uniform(0, math.pi)))
    image = _painted(size, shapes, _in_ellipse) * _painted(
        size, [(1.0, 0.95, 0.95, 0.0, 0.0, 0.0)], _in_ellipse
    )
    image = image - image.min()
    return image / image.max().clamp_min(1e-12)


def rectangles(size: int, *, generator: torch.Generator) -> Float[Tensor, "size size"]:
    """Three rectangles that add up, nearly parallel: an image with preferred directions."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    mode = uniform(0, math.pi)
    shapes = []
    for _ in range(3):
        turn = mode + 0.05 * float(torch.randn((), generator=generator))
        sides = uniform(0.12, 0.5), uniform(0.12, 0.5)
        centre = uniform(-0.45, 0.45), uniform(-0.45, 0.45)
        shapes.append((uniform(0.5, 1.0), *sides, *centre, turn))
    image = _painted(size, shapes, _in_rectangle)
    return image / image.max()


def discs(size: int, *, generator: torch.Generator) -> Float[Tensor, "size size"]:
    """Three discs that add up: an image without preferred directions."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    shapes = []
    for _ in range(3):
        radius = uniform(0.12, 0.5)
        centre = uniform(-0.45, 0.45), uniform(-0.45, 0.45)
        shapes.append((uniform(0.5, 1.0), radius, radius, *centre, 0.0))
    image = _painted(size, shapes, _in_ellipse)
    return image / image.max()


def walnut(size: int, *, generator: torch.Generator) -> Float[Tensor, "size size"]:
    """A nut: a shell, a lobed kernel with air between its halves, and a septum."""
    turn = float(torch.rand((), generator=generator)) * math.pi
    waves = torch.rand(8, generator=generator).tolist()
    x, y = _grid(size, turn)
    radius, around = (x.square() + (1.15 * y).square()).sqrt(), torch.atan2(y, x)
    rim = 0.8 + sum(0.012 * waves[k] * torch.cos((k + 2) * around + 6 * waves[k]) for k in range(4))
    shell = ((radius < rim) & (radius > rim - 0.09)).double()
    lobes = 0.55 + sum(
        (0.05 + 0.05 * waves[4 + k]) * torch.cos((3 + 2 * k) * around + 6 * waves[4 + k])
        for k in range(4)
    )
    kernel = ((radius < lobes) & (x.abs() > 0.07 + 0.05 * torch.cos(6 * y))).double()
    septum = ((x.abs() < 0.025) & (radius < rim)).double()
    image = torch.maximum(torch.maximum(shell, 0.6 * kernel), 0.35 * septum)
    return _averaged(image, size)


@dataclass(frozen=True)
class Simulated:
    """Readings, the image they are of at the scan's resolution, and the noise's true size.

    Attributes:
        readings: Line integrals with noise, or counts.
        truth: The finer image, averaged over the scan's pixels.
        noise: Standard deviation of the noise of line integrals; ``None`` for counts.
    """

    readings: Float[Tensor, "angles bins"]
    truth: Float[Tensor, "size size"]
    noise: float | None


def simulate(
    image: Float[Tensor, "side side"],
    scan: Scan,
    *,
    level: float = 0.05,
    photons: float | None = None,
    generator: torch.Generator,
) -> Simulated:
    """Noisy readings of an image, by interpolation along rays through a finer grid.

    Args:
        image: A whole multiple of the scan's size, at least twice; one of the scan's own size is
            interpolated to twice as many pixels first, and the truth is what that averages to.
        scan: Where the rays go.
        level: Standard deviation of Gaussian noise, as a share of the mean reading.
        photons: If given, readings are Poisson counts instead, with so many without an object.
        generator: Draws the noise.

    >>> from coset.tomography import ParallelBeam
    >>> found = simulate(
    ...     torch.ones(4, 4), ParallelBeam(2, 3), generator=torch.Generator().manual_seed(0)
    ... )
    >>> found.readings.shape, found.truth.shape
    (torch.Size([3, 5]), torch.Size([2, 2]))
    """
    side = image.shape[-1]
    if image.shape != (side, side) or side % scan.size:
        raise CosetError(
            f"got an image of shape {tuple(image.shape)}",
            f"needed a square of a whole multiple of {scan.size} pixels",
        )
    fine = image
    if side == scan.size:
        fine = functional.interpolate(image[None, None], scale_factor=2, mode="bilinear")[0, 0]
    factor = fine.shape[-1] // scan.size
    truth = functional.avg_pool2d(fine[None, None], factor)[0, 0]
    readings = _interpolated(fine, scan, factor)
    if photons is not None:
        counts = torch.poisson(Poisson(photons).photons * (-readings).exp(), generator=generator)
        return Simulated(counts, truth, None)
    noise = level * float(readings.abs().mean())
    drawn = torch.randn(readings.shape, generator=generator, dtype=readings.dtype)
    return Simulated(readings + noise * drawn, truth, noise)


def _interpolated(fine: Tensor, scan: Scan, factor: int) -> Tensor:
    """Line integrals of a bilinearly interpolated image, in pixels of the scan."""
    angles, offsets = (torch.from_numpy(np.array(each)).to(fine) for each in scan.rays(_RAYS))
    steps = math.ceil(scan.size * math.sqrt(2) * factor / _STEP)
    along = (torch.arange(steps).to(fine) - (steps - 1) / 2) * _STEP / factor
    found = []
    for angle, offset in zip(angles, offsets, strict=True):
        cosine, sine = angle.cos().flatten()[:, None], angle.sin().flatten()[:, None]
        spot = offset.flatten()[:, None]
        x, y = spot * cosine - along * sine, spot * sine + along * cosine
        grid = torch.stack([x, -y], dim=-1) * (2 / scan.size)
        seen = functional.grid_sample(
            fine[None, None], grid[None], align_corners=False, padding_mode="zeros"
        )
        found.append(seen[0, 0].sum(-1).mul(_STEP / factor).unflatten(0, offset.shape).mean(-1))
    return torch.stack(found)


def _grid(size: int, turn: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sampling points in [-1, 1]², turned, ``y`` up."""
    require_counts(2, size=size)
    many = size * _FINE
    places = (2 * torch.arange(many, dtype=torch.float64) + 1) / many - 1
    x, y = places[None, :], -places[:, None]
    return x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)


def _averaged(points: Tensor, size: int) -> Tensor:
    return points.reshape(size, _FINE, size, _FINE).mean((1, 3))


def _in_ellipse(x: Tensor, y: Tensor) -> Tensor:
    return x.square() + y.square() < 1


def _in_rectangle(x: Tensor, y: Tensor) -> Tensor:
    return (x.abs() < 1) & (y.abs() < 1)


def _painted(size: int, shapes: Sequence[Shape], inside: object) -> Tensor:
    assert callable(inside)
    x, y = _grid(size)
    total = torch.zeros(size * _FINE, size * _FINE, dtype=torch.float64)
    for value, across, up, right, above, turn in shapes:
        cosine, sine = math.cos(turn), math.sin(turn)
        u = ((x - right) * cosine + (y - above) * sine) / max(across, 1e-9)
        v = ((y - above) * cosine - (x - right) * sine) / max(up, 1e-9)
        total += value * inside(u, v).double()
    return _averaged(total, size)
