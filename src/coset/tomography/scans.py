"""Scans: how an image becomes readings, as a sparse matrix with an exact adjoint.

An image has pixels of side 1 around the origin; its first row is the top one.  The ray of angle
``t`` and offset ``s`` is ``{u : u₁ cos t + u₂ sin t = s}``.  Seen along the ray, a pixel is a
trapezoid: its height at ``s`` is the length of the ray in the pixel, and its area over a detector
bin is the area that bin and pixel share, so both are exact in closed form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from coset.errors import CosetError, require_counts
from coset.tomography.products import SparseOperator

Angles: TypeAlias = int | Sequence[float] | Float[Tensor, " angles"]
"""How many, equally spaced from zero, or each in radians."""

Numbers: TypeAlias = NDArray[np.float64]

_FAN_RAYS = 4
"""Rays that a bin of a fan beam is the mean of."""


@runtime_checkable
class Scan(Protocol):
    """What reconstruction needs to know of a scan."""

    @property
    def size(self) -> int:
        """Pixels along a side of the image."""
        ...

    @property
    def directions(self) -> tuple[float, ...]:
        """The angles in radians."""
        ...

    @property
    def bins(self) -> int:
        """Detector bins for each angle."""
        ...

    @property
    def operator(self) -> SparseOperator:
        """Readings, angle by angle, from pixels, row by row."""
        ...

    def rays(self, parts: int) -> tuple[Numbers, Numbers]:
        """Angle and offset of so many rays spread over each bin, angles × bins × parts."""
        ...

    def forward(self, image: Tensor) -> Tensor:
        """The readings of an image."""
        ...

    def filtered_back_projection(self, readings: Tensor) -> Tensor:
        """The image by filtering and projecting back."""
        ...


@dataclass(frozen=True)
class ParallelBeam:
    """Parallel rays: a reading is the integral over a detector bin, divided by its width.

    ``y = A x`` with ``A[(t, k), pixel] = area(bin k of angle t ∩ pixel) / width``.

    Args:
        size: Pixels along a side of the image.
        angles: How many, equally spaced on [0, π) from 0, or each in radians.
        detectors: Bins, centred, equal, together as wide as the image's diagonal;
            ``None``: about one a pixel.

    >>> scan = ParallelBeam(2, 2, detectors=3)
    >>> scan.forward(torch.ones(2, 2)).shape
    torch.Size([2, 3])
    >>> round(float(scan.forward(torch.ones(2, 2))[0].sum() * scan.width), 4)  # the area
    4.0
    """

    size: int
    angles: Angles = field(compare=False)
    detectors: int | None = None
    directions: tuple[float, ...] = field(init=False)
    bins: int = field(init=False)

    def __post_init__(self) -> None:
        require_counts(2, size=self.size)
        object.__setattr__(self, "directions", _directions(self.angles, math.pi))
        object.__setattr__(self, "bins", _bins(self.size, self.detectors))

    @property
    def width(self) -> float:
        """The width of a bin."""
        return self.size * math.sqrt(2) / self.bins

    @cached_property
    def operator(self) -> SparseOperator:
        """Readings, angle by angle, from pixels, row by row."""
        edges = (np.arange(self.bins + 1) - self.bins / 2) * self.width
        x, y = _centres(self.size)
        blocks = []
        for angle in self.directions:
            offset = x * math.cos(angle) + y * math.sin(angle)
            reach = (abs(math.cos(angle)) + abs(math.sin(angle))) / 2
            first = np.floor((offset - reach) / self.width + self.bins / 2).astype(int)
            bins = first[:, None] + np.arange(math.ceil(2 * reach / self.width) + 1)
            kept = np.clip(bins, 0, self.bins - 1)
            upper = _shadow_area(edges[kept + 1] - offset[:, None], angle)
            lower = _shadow_area(edges[kept] - offset[:, None], angle)
            blocks.append((kept, np.where(bins == kept, upper - lower, 0.0) / self.width))
        return SparseOperator(_assemble(blocks, self.bins, self.size))

    def rays(self, parts: int) -> tuple[Numbers, Numbers]:
        """Angle and offset of so many rays spread over each bin, angles × bins × parts."""
        places = _places(self.bins, parts) * self.width
        angles = np.asarray(self.directions)[:, None, None] + np.zeros_like(places)
        return angles, np.broadcast_to(places, angles.shape)

    @property
    def matrix(self) -> Any:
        """The sparse matrix, in SciPy's compressed rows."""
        return self.operator.matrix

    def forward(self, image: Float[Tensor, "*k size size"]) -> Float[Tensor, "*k angles bins"]:
        """The readings of an image; a flat image gives flat readings."""
        return _forward(self, image)

    def adjoint(self, readings: Float[Tensor, "*k angles bins"]) -> Float[Tensor, "*k size size"]:
        """The transpose of :meth:`forward`: readings spread back over the image."""
        return _adjoint(self, readings)

    def filtered_back_projection(
        self, readings: Float[Tensor, "*k angles bins"]
    ) -> Float[Tensor, "*k size size"]:
        """The ramp filter along the detector, then the mean over angles of what a pixel casts on.

        ``x = Σ_t Δt · (h * y_t)(s)``, with the band-limited ramp ``h`` of Ramachandran and
        Lakshminarayanan and ``s`` the offset of the pixel.
        """
        grid = as_grid(self, readings)
        filtered = _ramp(grid, self.width)
        x, y = (torch.from_numpy(axis).to(grid) for axis in _centres(self.size))
        total = grid.new_zeros(*grid.shape[:-2], self.size**2)
        for index, (angle, share) in enumerate(
            zip(self.directions, _shares(self.directions, math.pi), strict=True)
        ):
            offset = x * math.cos(angle) + y * math.sin(angle)
            total = total + share * _read(filtered[..., index, :], offset / self.width)
        return total.reshape(*grid.shape[:-2], self.size, self.size)


@dataclass(frozen=True)
class FanBeam:
    """Rays from a point source to a flat detector, both turning around the image's centre.

    A reading is the mean of line integrals from the source to points of a detector bin.  At angle
    ``t`` the source is at ``source_distance · (sin t, -cos t)``, so that far sources give the
    readings of :class:`ParallelBeam`.

    Args:
        size: Pixels along a side of the image.
        angles: How many, equally spaced on [0, 2π) from 0, or each in radians.
        detectors: Bins; together they cover the whole image.  ``None``: about one a pixel.
        source_distance: From source to centre; ``None``: twice the size.
        detector_distance: From centre to detector; ``None``: as far as the source.

    >>> FanBeam(2, 4, detectors=3).forward(torch.ones(2, 2)).shape
    torch.Size([4, 3])
    """

    size: int
    angles: Angles = field(compare=False)
    detectors: int | None = None
    source_distance: float | None = None
    detector_distance: float | None = None
    directions: tuple[float, ...] = field(init=False)
    bins: int = field(init=False)

    def __post_init__(self) -> None:
        require_counts(2, size=self.size)
        object.__setattr__(self, "directions", _directions(self.angles, 2 * math.pi))
        object.__setattr__(self, "bins", _bins(self.size, self.detectors))
        for name, distance in zip(
            ("source_distance", "detector_distance"), self.distances, strict=True
        ):
            if not distance >= self.size / math.sqrt(2):
                raise CosetError(
                    f"got {name}={distance} for an image of size {self.size}",
                    f"needed at least {self.size / math.sqrt(2):.1f}, outside the image",
                    "give distances in pixels",
                )

    @property
    def distances(self) -> tuple[float, float]:
        """From the source and from the detector to the centre."""
        source = 2.0 * self.size if self.source_distance is None else float(self.source_distance)
        far = source if self.detector_distance is None else float(self.detector_distance)
        return source, far

    @property
    def width(self) -> float:
        """The width of a bin."""
        source, far = self.distances
        radius = self.size / math.sqrt(2)
        tangent = radius / math.sqrt(max(source**2 - radius**2, 1e-6 * source**2))
        return 2 * (source + far) * tangent / self.bins

    @cached_property
    def operator(self) -> SparseOperator:
        """Readings, angle by angle, from pixels, row by row."""
        source, far = self.distances
        x, y = _centres(self.size)
        blocks = []
        for angle, rays, offsets in zip(self.directions, *self.rays(_FAN_RAYS), strict=True):
            cosine, sine = math.cos(angle), math.sin(angle)
            across, along = x * cosine + y * sine, source - x * sine + y * cosine
            # corners are at most 1/√2 away, across as well as along
            spot = (source + far) * across / along / self.width + self.bins / 2
            spread = (source + far) / self.width * (1 + np.abs(across / along))
            reach = spread / (along - 0.71) * 0.71
            first = np.floor(spot - reach).astype(int)
            bins = first[:, None] + np.arange(math.ceil(2 * reach.max()) + 1)
            kept = np.clip(bins, 0, self.bins - 1)
            lengths = np.zeros(bins.shape)
            for part in range(_FAN_RAYS):
                ray, offset = rays[kept, part], offsets[kept, part]
                cast = x[:, None] * np.cos(ray) + y[:, None] * np.sin(ray)
                lengths += _chord(offset - cast, ray) / _FAN_RAYS
            blocks.append((kept, np.where(bins == kept, lengths, 0.0)))
        return SparseOperator(_assemble(blocks, self.bins, self.size))

    def rays(self, parts: int) -> tuple[Numbers, Numbers]:
        """Angle and offset of so many rays spread over each bin, angles × bins × parts."""
        source, far = self.distances
        tilt = np.arctan(_places(self.bins, parts) * self.width / (source + far))
        angles = np.asarray(self.directions)[:, None, None] - tilt
        return angles, np.broadcast_to(source * np.sin(tilt), angles.shape)

    @property
    def matrix(self) -> Any:
        """The sparse matrix, in SciPy's compressed rows."""
        return self.operator.matrix

    def forward(self, image: Float[Tensor, "*k size size"]) -> Float[Tensor, "*k angles bins"]:
        """The readings of an image; a flat image gives flat readings."""
        return _forward(self, image)

    def adjoint(self, readings: Float[Tensor, "*k angles bins"]) -> Float[Tensor, "*k size size"]:
        """The transpose of :meth:`forward`: readings spread back over the image."""
        return _adjoint(self, readings)

    def filtered_back_projection(
        self, readings: Float[Tensor, "*k angles bins"]
    ) -> Float[Tensor, "*k size size"]:
        """Weighted readings, ramp-filtered, back along the rays with the inverse square distance.

        With ``s`` on a detector through the centre and ``D`` the source's distance,
        ``x = ½ Σ_t Δt (D / L)² (h * (y · D / √(D² + s²)))(s)``, ``L`` the distance along the
        central ray from the source.
        """
        grid = as_grid(self, readings)
        source, far = self.distances
        spacing = self.width * source / (source + far)
        places = (torch.arange(self.bins).to(grid) - (self.bins - 1) / 2) * spacing
        filtered = _ramp(grid * source / (source**2 + places.square()).sqrt(), spacing)
        x, y = (torch.from_numpy(axis).to(grid) for axis in _centres(self.size))
        total = grid.new_zeros(*grid.shape[:-2], self.size**2)
        for index, (angle, share) in enumerate(
            zip(self.directions, _shares(self.directions, 2 * math.pi), strict=True)
        ):
            cosine, sine = math.cos(angle), math.sin(angle)
            nearness = source / (source - x * sine + y * cosine)
            offset = (x * cosine + y * sine) * nearness
            seen = _read(filtered[..., index, :], offset / spacing)
            total = total + share / 2 * nearness.square() * seen
        return total.reshape(*grid.shape[:-2], self.size, self.size)


def as_grid(scan: Scan, readings: Tensor) -> Float[Tensor, "*k angles bins"]:
    """Readings by angle and bin; flat ones are cut, and what does not fit is refused.

    >>> as_grid(ParallelBeam(2, 2, 3), torch.zeros(6)).shape
    torch.Size([2, 3])
    """
    shape = (len(scan.directions), scan.bins)
    if tuple(readings.shape[-2:]) == shape:
        return readings
    if readings.shape[-1:] == (shape[0] * shape[1],):
        return readings.reshape(*readings.shape[:-1], *shape)
    advice = "give the angles and detectors of the scan that was made"
    if tuple(readings.shape[-2:]) == shape[::-1]:
        advice = "they are transposed: give readings.mT"
    raise CosetError(
        f"got readings of shape {tuple(readings.shape)}",
        f"needed (…, {shape[0]}, {shape[1]}): angles by detectors",
        advice,
    )


def _forward(scan: Scan, image: Tensor) -> Tensor:
    if tuple(image.shape[-2:]) == (scan.size, scan.size):
        readings = scan.operator.forward(image.flatten(-2))
        return readings.reshape(*image.shape[:-2], len(scan.directions), scan.bins)
    if image.shape[-1:] == (scan.size**2,):
        return scan.operator.forward(image)
    raise CosetError(
        f"got an image of shape {tuple(image.shape)}",
        f"needed (…, {scan.size}, {scan.size})",
        "give the scan the size of the image",
    )


def _adjoint(scan: Scan, readings: Tensor) -> Tensor:
    grid = as_grid(scan, readings)
    image = scan.operator.adjoint(grid.flatten(-2))
    return image.reshape(*grid.shape[:-2], scan.size, scan.size)


def _directions(angles: Angles, turn: float) -> tuple[float, ...]:
    if isinstance(angles, int) and not isinstance(angles, bool):
        require_counts(angles=angles)
        return tuple(turn * index / angles for index in range(angles))
    try:
        found = tuple(float(angle) for angle in angles)  # type: ignore[union-attr]
    except TypeError:
        raise CosetError(
            f"got angles={angles!r}", "needed a whole number, or a list of angles in radians"
        ) from None
    if not found or not all(map(math.isfinite, found)):
        raise CosetError("got angles that are missing or not finite", "needed angles in radians")
    if max(map(abs, found)) > 2 * math.pi + 1e-6:
        raise CosetError(
            f"got an angle of {max(found, key=abs):g}",
            "needed radians, between 0 and 2π",
            "multiply degrees by π / 180",
        )
    if len({round(angle, 9) for angle in found}) < len(found):
        raise CosetError(
            "got the same angle twice", "needed angles that differ", "average their readings"
        )
    return found


def _bins(size: int, detectors: int | None) -> int:
    if detectors is None:
        return 2 * math.ceil(size / math.sqrt(2)) + 1
    require_counts(2, detectors=detectors)
    return int(detectors)


def _places(bins: int, parts: int) -> Numbers:
    """Places on the detector, in bins from its middle."""
    found: Numbers = (np.arange(bins * parts) + 0.5).reshape(bins, parts) / parts - bins / 2
    return found


def _centres(size: int) -> tuple[Numbers, Numbers]:
    """Where the pixels are, row by row, the first row on top."""
    places = np.arange(size) - (size - 1) / 2
    return np.tile(places, size), np.repeat(-places, size)


def _shadow_area(offsets: Numbers, angle: float) -> Numbers:
    """The area of the unit pixel on the near side of lines at these offsets from its centre."""
    large, small = sorted((abs(math.cos(angle)), abs(math.sin(angle))), reverse=True)
    outer, inner = (large + small) / 2, (large - small) / 2
    side = np.clip(np.abs(offsets), 0.0, outer)
    area = np.minimum(side, inner) / large
    slope = np.maximum(side - inner, 0.0)
    area = area + slope / large - slope**2 / (2 * large * max(small, 1e-300))
    found: Numbers = 0.5 + np.sign(offsets) * area
    return found


def _chord(offsets: Numbers, angles: Numbers) -> Numbers:
    """The length of lines at these offsets and angles inside the unit pixel."""
    cosine, sine = np.abs(np.cos(angles)), np.abs(np.sin(angles))
    large, small = np.maximum(cosine, sine), np.minimum(cosine, sine)
    rest = (large + small) / 2 - np.abs(offsets)
    return np.clip(rest / np.maximum(small, 1e-12), 0.0, 1.0) / large


def _assemble(blocks: list[tuple[Any, Numbers]], bins: int, size: int) -> Any:
    rows = np.concatenate([index * bins + kept.ravel() for index, (kept, _) in enumerate(blocks)])
    columns = np.concatenate([np.repeat(np.arange(size**2), kept.shape[1]) for kept, _ in blocks])
    weights = np.concatenate([weight.ravel() for _, weight in blocks])
    used = weights > 1e-14
    shape = (len(blocks) * bins, size**2)
    return csr_array(coo_array((weights[used], (rows[used], columns[used])), shape=shape))


def _shares(directions: tuple[float, ...], turn: float) -> list[float]:
    """The part of the turn that each angle stands for: half the way to both neighbours.

    >>> [round(share / math.pi, 2) for share in _shares((0.0, math.pi / 2), math.pi)]
    [0.5, 0.5]
    """
    inside = [angle % turn for angle in directions]
    order = sorted(range(len(inside)), key=inside.__getitem__)
    shares = [0.0] * len(inside)
    for before, place, after in zip(
        order[-1:] + order[:-1], order, order[1:] + order[:1], strict=True
    ):
        gap = (inside[place] - inside[before]) % turn + (inside[after] - inside[place]) % turn
        shares[place] = gap / 2 if len(inside) > 1 else turn
    if len(inside) > 1 and len(set(inside)) == 1:
        shares = [turn / len(inside)] * len(inside)
    return shares


def _ramp(readings: Float[Tensor, "*k bins"], width: float) -> Float[Tensor, "*k bins"]:
    """Convolution with ``h₀ = 1/4``, ``h_n = -1/(π n)²`` for odd ``n``, over the width."""
    bins = readings.shape[-1]
    places = torch.arange(-bins, bins).to(readings)
    odd = places.remainder(2) == 1
    kernel = torch.where(odd, -1 / (math.pi * places).square(), torch.zeros_like(places))
    kernel[bins] = 0.25
    spectrum = torch.fft.rfft(kernel.roll(-bins) / width)
    product = torch.fft.rfft(readings, n=2 * bins) * spectrum
    filtered: Tensor = torch.fft.irfft(product, n=2 * bins)
    return filtered[..., :bins]


def _read(values: Float[Tensor, "*k bins"], places: Float[Tensor, " p"]) -> Float[Tensor, "*k p"]:
    """Values between bins, linearly; places are in bins from the detector's middle."""
    bins = values.shape[-1]
    spot = (places + (bins - 1) / 2).clamp(0, bins - 1)
    left = spot.floor().clamp(max=bins - 2).long()
    share = spot - left
    return values[..., left] * (1 - share) + values[..., left + 1] * share
