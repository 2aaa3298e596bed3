"""Positive scales: brought to those of another network, or to a common level.

A unit's scale shows in the norms of its weights at every site: multiplying it by ``s`` adds
``power · log s`` to the log-norm there.  So scales are fitted to log-norms by least squares, one
factor after the other until nothing moves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.ascent import along
from coset.alignment.assignment import Matrix
from coset.alignment.norms import (
    TINY,
    ScaledAxes,
    fit_logs,
    scaled_axes,
    scaled_sites,
    stretching,
)
from coset.symmetry.action import region, scale_tensor_
from coset.symmetry.elements import Element, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


@dataclass(frozen=True)
class Rescaling:
    """Scales that were fitted, and the weights after them."""

    scales: Mapping[str, Tensor]
    weights: Weights


def fit_scales(
    group: SymmetryGroup,
    weights: Weights,
    to: Weights | None,
    *,
    most: int = 200,
    tolerance: float = 1e-12,
) -> Rescaling:
    """Positive scales that bring the norms of all units to those in ``to``.

    Args:
        group: The symmetries.
        weights: What is rescaled (the tensors that are matched).
        to: Whose norms are wanted; ``None``: at each site the geometric mean over its units.
        most: The most rounds.
        tolerance: The largest change of a log-scale at which it stops.
    """
    axes = _axes(group, weights)
    logs = (
        fit_by_weights(group, weights, to, most=most, tolerance=tolerance)
        if axes is None
        else _fit_by_norms(group, axes, weights, to, most, tolerance)
    )
    scales = {name: table.exp() for name, table in logs.items()}
    working = {name: tensor.clone() for name, tensor in weights.items()}
    pieces: dict[str, list[tuple[Site, Tensor]]] = {}
    for factor in stretching(group):
        for site in scaled_sites(factor, group):
            pieces.setdefault(site.tensor, []).append((site, scales[factor.name]))
    for name, sites in pieces.items():
        scale_tensor_(working[name], 0, sites, False)
    return Rescaling(scales, working)


def _axes(group: SymmetryGroup, weights: Weights) -> ScaledAxes | None:
    """The layout by which scales are fitted to norms alone, where that can be done."""
    axes = scaled_axes(group)
    return axes if axes is not None and all(w.is_cpu for w in weights.values()) else None


def _fit_by_norms(
    group: SymmetryGroup,
    axes: ScaledAxes,
    weights: Weights,
    to: Weights | None,
    most: int,
    tolerance: float,
) -> dict[str, Tensor]:
    own, other = axes.squares(weights), None if to is None else axes.squares(to)
    found = fit_logs(axes, own, other, most=most, tolerance=tolerance)
    logs = {}
    for factor in stretching(group):
        shape = group.tables.shape(factor)
        known = found.get(factor.name)
        logs[factor.name] = (
            torch.zeros(shape, dtype=torch.float64)
            if known is None
            else torch.from_numpy(known).reshape(shape)
        )
    return logs


def fit_by_weights(
    group: SymmetryGroup, weights: Weights, to: Weights | None, *, most: int, tolerance: float
) -> dict[str, Tensor]:
    """Logarithms of the scales for any group: the weights themselves are scaled in every round."""
    factors = stretching(group)
    working = {name: tensor.clone() for name, tensor in weights.items()}
    shape = group.tables.shape
    logs = {f.name: torch.zeros(shape(f), dtype=torch.float64) for f in factors}
    sites = {f.name: scaled_sites(f, group) for f in factors}
    wanted = {
        f.name: [None if to is None else log_norms(to, site) for site in sites[f.name]]
        for f in factors
    }
    for _ in range(most):
        largest = 0.0
        for factor in factors:
            step = _fit(working, sites[factor.name], wanted[factor.name], logs[factor.name])
            logs[factor.name] += step
            largest = max(largest, float(step.abs().max()) if step.numel() else 0.0)
            for site in sites[factor.name]:
                scale_tensor_(working[site.tensor], 0, [(site, step.exp())], False)
        if largest <= tolerance:
            break
    return logs


def _fit(
    weights: Weights, sites: list[Site], wanted: list[Tensor | None], like: Tensor
) -> Float[Tensor, "..."]:
    """The least-squares step of one factor's log-scales."""
    total, powers = torch.zeros_like(like), torch.zeros_like(like)
    for site, target in zip(sites, wanted, strict=True):
        here = log_norms(weights, site).reshape(like.shape)
        known = here > -torch.inf
        if target is None:
            level = torch.where(known, here, 0.0).sum() / known.sum().clamp_min(1)
            goal = level.expand(like.shape)
        else:
            goal = target.reshape(like.shape)
            known = known & (goal > -torch.inf)
        missing = torch.where(known, goal - torch.where(known, here, 0.0), 0.0)
        total += site.power * missing
        powers += torch.where(known, float(site.power) ** 2, 0.0)
    return torch.where(powers > 0, total / powers.clamp_min(1.0), 0.0)


def log_norms(weights: Weights, site: Site) -> Tensor:
    """Half the log of the squares summed over all that one scale acts on; ``-inf``: all zero."""
    squares = _site_squares(weights, site)
    return torch.where(squares > TINY, squares.clamp_min(TINY).log() / 2, -torch.inf)


def _site_squares(weights: Weights, site: Site) -> Tensor:
    return along(region(weights[site.tensor], 0, site).double().square(), site)


@dataclass(frozen=True)
class Difference:
    """What norms tell of the scales of two networks.

    Attributes:
        matters: Whether a first round of fitted scales brings the weights nearer to each other.
        spread: How differently scales are spread, whatever the order of units: for each unit the
            log-norm of all that its scale multiplies, less that of all it divides; sorted within
            each factor; the root mean square difference, the largest over the factors.  Norms of
            several tensors are taken together: a lone bias near zero says nothing of a scale.
    """

    matters: bool
    spread: float


def compare_scales(group: SymmetryGroup, weights: Weights, to: Weights) -> Difference:
    """Looks whether two networks differ by a rescaling, at a fraction of the cost of fitting it."""
    axes = _axes(group, weights)
    if axes is None:
        return Difference(True, _spread(_tables(group, weights), _tables(group, to)))
    own, other = axes.squares(weights), axes.squares(to)
    logs = fit_logs(axes, own, other, most=1, tolerance=0.0)
    nearer = axes.change(logs, own, axes.products(weights, to)) < 0
    return Difference(nearer, _spread(axes.unit_tables(own), axes.unit_tables(other)))


PoweredTables = Iterator[list[tuple[int, Matrix]]]
"""For each factor that acts on something, powers and squares of its units, site by site."""


def _tables(group: SymmetryGroup, weights: Weights) -> PoweredTables:
    for factor in stretching(group):
        sites = scaled_sites(factor, group)
        if sites:
            squares = (_site_squares(weights, site).flatten().numpy(force=True) for site in sites)
            yield [(site.power, table) for site, table in zip(sites, squares, strict=True)]


def _spread(own: PoweredTables, other: PoweredTables) -> float:
    worst = 0.0
    for tables in zip(own, other, strict=True):
        one, two = (np.sort(_excess(each)) for each in tables)
        worst = max(worst, sqrt(float(np.square(one - two).mean())) if len(one) > 1 else 0.0)
    return worst


def _excess(tables: list[tuple[int, Matrix]]) -> Matrix:
    """Unit by unit, the log-norm of what is multiplied less that of what is divided."""
    total: Matrix = np.zeros_like(tables[0][1])
    for sign in (1, -1):
        part = [table for power, table in tables if power * sign > 0]
        if part:
            total += sign * np.log(np.maximum(sum(part), TINY)) / 2
    return total


def with_scales(group: SymmetryGroup, scales: Mapping[str, Tensor]) -> Element:
    """The element that only scales."""
    identity = group.identity()
    return Element(identity.permutations, {**identity.scales, **scales})
