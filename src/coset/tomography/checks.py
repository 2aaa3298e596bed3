"""What is wrong with readings before any work is done, and what seems wrong afterwards."""

import copy
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import CosetError, require_kind
from coset.tomography.noise import Poisson
from coset.tomography.observed import Noise
from coset.tomography.scans import ParallelBeam, Scan, as_grid

_LARGEST_INTEGRAL = 50.0
"""Line integrals beyond this let no photon through."""

_UNFITTED = 2.0
"""Residuals of a network that was stopped early, in units of the noise."""

_ENTRY = 48
"""Bytes that a pixel seen from an angle takes while a scan's matrix is made, about."""


def checked_noise(noise: Noise) -> Noise:
    """A kind of noise that there is."""
    if isinstance(noise, Poisson):
        return noise
    if isinstance(noise, str):
        if noise == "gaussian":
            return noise
        raise CosetError(
            f"got noise={noise!r}", "needed 'gaussian', a standard deviation or Poisson(photons)"
        )
    require_kind(float, noise=noise)
    if not 0 < float(noise) < math.inf:
        raise CosetError(f"got noise={noise}", "needed a positive standard deviation")
    return float(noise)


def check_scan(scan: Scan, memory: int) -> None:
    """Refuses a scan whose matrix does not fit into memory."""
    needed = _ENTRY * len(scan.directions) * scan.size**2
    if needed > memory:
        raise CosetError(
            f"got {len(scan.directions)} angles of an image of {scan.size} × {scan.size} pixels, "
            f"whose matrix takes {needed / 2**30:.1f} GiB",
            f"needed at most memory={memory / 2**30:.2g} GiB",
            "give a smaller size, or more memory",
        )


def check_network(network: nn.Module, size: int) -> None:
    """Refuses what does not map an image to an image of the same size."""
    require_kind(nn.Module, network=network)
    shape = (1, 1, size, size)
    like = next(iter(network.parameters()), torch.zeros(()))
    needed = f"needed a network from images of shape {shape} to the same"
    try:
        with torch.no_grad():
            found = copy.deepcopy(network)(torch.zeros(shape).to(like))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = str(error).splitlines()[0]
        raise CosetError(f"got a network that fails on an image ({said})", needed) from error
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise CosetError(f"got a network whose output is of {what}", needed)


def checked_readings(readings: Tensor, scan: Scan, noise: Noise, missing: str) -> Tensor:
    """Readings as angles by bins, or a refusal that says what to do."""
    if missing not in ("refuse", "nan"):
        raise CosetError(f"got missing={missing!r}", "needed 'refuse' or 'nan'")
    if not isinstance(readings, Tensor):
        raise CosetError(
            f"got readings of type {type(readings).__name__}",
            "needed a tensor",
            "write torch.from_numpy(readings)",
        )
    if not readings.is_floating_point():
        if (
            isinstance(noise, Poisson)
            and not readings.is_complex()
            and readings.dtype != torch.bool
        ):
            readings = readings.to(torch.get_default_dtype())
        else:
            raise CosetError(f"got readings of type {readings.dtype}", "needed floating numbers")
    grid = as_grid(scan, readings.detach())
    if grid.ndim != 2:
        raise CosetError(
            f"got readings of shape {tuple(readings.shape)}", "needed those of one image"
        )
    if bool(grid.isinf().any()):
        raise CosetError("got readings that are infinite", "needed finite readings")
    empty = grid.isnan()
    if bool(empty.any()) and missing == "refuse":
        columns = int(empty.all(0).sum())
        what = f" ({columns} whole detector columns)" if columns else ""
        raise CosetError(
            f"got {int(empty.sum())} readings that are NaN{what}",
            "needed a number for each",
            "give missing='nan' (--missing nan) to leave them out",
        )
    seen = grid[~empty]
    if len(seen) < 2 or float(seen.abs().max()) == 0.0:
        raise CosetError("got readings that are all zero or missing", "needed an image's readings")
    # photons may all be lost where few are counted beside
    _check_dead_bins(grid, least=30.0 if isinstance(noise, Poisson) else 0.0)
    if isinstance(noise, Poisson):
        _check_counts(seen, noise)
    else:
        _check_integrals(grid, empty)
    return grid


def _check_dead_bins(grid: Tensor, *, least: float) -> None:
    """Refuses bins that read zero from every angle between others that read more than this."""
    totals = grid.nan_to_num(0.0).abs().sum(0)
    (loud,) = (totals > least).nonzero(as_tuple=True)
    if len(loud) < 2:
        return
    dead = totals[loud[0] : loud[-1]] == 0
    dead &= ~grid[:, loud[0] : loud[-1]].isnan().any(0)
    if bool(dead.any()):
        raise CosetError(
            f"got detector bin {int(loud[0]) + int(dead.int().argmax())} of {grid.shape[1]} at "
            "zero from every angle, between others that are not",
            "needed readings of bins that work",
            "set readings of dead bins to NaN, and leave them out by missing='nan' (--missing nan)",
        )


def _check_counts(seen: Tensor, noise: Poisson) -> None:
    if float(seen.min()) < 0:
        raise CosetError(
            f"got a count of {float(seen.min()):g}",
            "needed photon counts, which are not negative",
            "leave photons out if these are line integrals",
        )
    if float(seen.max()) > 2 * noise.photons + 100:
        raise CosetError(
            f"got a count of {float(seen.max()):g} with photons={noise.photons:g}",
            "needed counts of at most about the photons without an object",
            "give the count of a bin with nothing in the way as photons",
        )
    if float(seen.max()) < min(50.0, 0.05 * noise.photons) and bool((seen != seen.round()).any()):
        raise CosetError(
            f"got counts of at most {float(seen.max()):g} with photons={noise.photons:g}",
            "needed photon counts, and these look like line integrals",
            "leave photons out for line integrals",
        )


def _check_integrals(grid: Tensor, empty: Tensor) -> None:
    seen = grid[~empty]
    largest, smallest = float(seen.max()), float(seen.min())
    if largest > _LARGEST_INTEGRAL:
        whole = bool((seen == seen.round()).all())
        rims = torch.cat([grid[:, :1], grid[:, -1:]]).nan_to_num(-math.inf)
        if whole or float(rims.median()) > float(seen.median()):
            raise CosetError(
                f"got readings of up to {largest:g}, which look like photon counts",
                "needed line integrals, -log(counts / photons)",
                "take the log, or give noise=Poisson(photons) (--photons)",
            )
    if float(seen.mean()) <= 0 or smallest < -0.5 * largest:
        raise CosetError(
            f"got negative readings, as low as {smallest:g}",
            "needed line integrals of what weakens rays: positive but for noise",
            "check the sign: -log(counts / photons)",
        )


def fit_warnings(
    grid: Tensor, scan: Scan, noise: float, *, residual: float = 1.0
) -> tuple[str, ...]:
    """What seems wrong with readings that can be reconstructed.

    Args:
        grid: The readings.
        scan: How they were made.
        noise: Standard deviation of the noise that was learnt.
        residual: Of the network, in units of the noise that was expected before.
    """
    seen = grid[grid.isfinite()]
    found = []
    if isinstance(scan, ParallelBeam) and not bool(grid.isnan().any()):
        if _turns_twice(grid, scan):
            found.append(
                "the second half of the angles shows the first half mirrored, as over 360 degrees: "
                "reconstruct the first half alone, or give ParallelBeam the angles"
            )
        offset, error = axis_offset(grid, scan)
        if abs(offset) > max(0.5, 4 * error):
            found.append(
                f"the centre of rotation seems to be {offset:.1f} bins off the detector's middle "
                f"(± {error:.1f}): shift the readings"
            )
    if noise > 0.25 * float(seen.abs().mean()):
        found.append(
            f"noise of {noise:.2g} was learnt beside readings of {float(seen.abs().mean()):.2g} on "
            "average: check angles, geometry and centre of rotation"
        )
    if residual > _UNFITTED:
        found.append(
            f"the network's residuals are {residual:.1f} times the noise that was expected: let it "
            "take more steps"
        )
    return tuple(found)


def _turns_twice(grid: Float[Tensor, "angles bins"], scan: ParallelBeam) -> bool:
    """Whether rows half the list apart are mirror images, which angles within 180 degrees are not.

    Their squared difference has to be less than half of that at any other distance, none included.
    """
    angles = len(grid)
    if angles % 2 or angles < 8 or max(scan.directions) - min(scan.directions) > math.pi:
        return False
    mirrored = grid.double().flip(1)
    apart = torch.stack(
        [(grid.double() - mirrored.roll(k, 0)).square().mean() for k in range(angles)]
    )
    half = apart[angles // 2].clone()
    apart[angles // 2] = math.inf
    return bool(half < apart.min() / 2)


def axis_offset(grid: Float[Tensor, "angles bins"], scan: ParallelBeam) -> tuple[float, float]:
    """How far the centre of rotation is from the detector's middle, in bins, and its error.

    The centre of mass of the readings of a parallel beam is ``c + x cos t + y sin t``, with ``c``
    zero where the axis is in the middle.
    """
    if len(grid) < 6:
        return 0.0, math.inf
    values = grid.double()
    bins = torch.arange(scan.bins).double() - (scan.bins - 1) / 2
    centres = (values @ bins) / values.sum(1).clamp_min(1e-12)
    angles = torch.tensor(scan.directions).double()
    design = torch.stack([torch.ones_like(angles), angles.cos(), angles.sin()], dim=1)
    solution = torch.linalg.lstsq(design, centres[:, None]).solution[:, 0]
    rest = centres - design @ solution
    variance = float(rest.square().sum()) / (len(grid) - 3)
    spread = torch.linalg.inv(design.mT @ design)[0, 0]
    return float(solution[0]), math.sqrt(variance * float(spread))
