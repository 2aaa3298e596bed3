"""Positive scales: brought to those of another network, or to a common level.

Multiplying a unit's scale by ``s`` multiplies the norm ``M`` of all that it scales up, and divides
the norm ``V`` of all that it scales down.  So scales are fitted to the ratios ``M / V``, of all
units at once, until nothing moves.
"""

from collections.abc import Callable, Mapping
from math import isfinite, prod, sqrt

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from coset.alignment.ascent import along
from coset.alignment.plans import counts
from coset.alignment.scales.layout import scaled_axes, scaled_sites, stretching
from coset.alignment.scales.norms import Units, fit_logs
from coset.alignment.scales.tables import Runs, ScaledAxes, Sums, Vector
from coset.symmetry.action import region, scale_tensor_
from coset.symmetry.elements import Element, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

FittedScales = Mapping[str, Tensor]
"""For each factor that stretches the scales of its units."""


def fit_scales(
    group: SymmetryGroup,
    weights: Weights,
    to: Weights | None,
    *,
    most: int = 200,
    tolerance: float = 1e-12,
) -> FittedScales:
    """Positive scales that bring the ratios of all units to those in ``to``.

    Args:
        group: The symmetries.
        weights: What is rescaled (the tensors that are matched).
        to: Whose ratios are wanted; ``None``: in each factor the geometric mean over its units.
        most: The most rounds.
        tolerance: The largest change of a log-scale at which it stops.
    """
    axes = _axes(group, weights)
    if axes is None:
        return fit_by_weights(group, weights, to, most=most, tolerance=tolerance)
    own, goal = axes.sums(weights, weights), None if to is None else axes.sums(to, to)
    logs = _fitted_logs(axes, own, goal, most=most, tolerance=tolerance)
    return _in_shape(group, axes.factors, logs)


def rescaled(group: SymmetryGroup, weights: Weights, scales: FittedScales) -> Weights:
    """A copy of what is matched after scales."""
    working = {name: tensor.clone() for name, tensor in weights.items()}
    pieces: dict[str, list[tuple[Site, Tensor]]] = {}
    for factor in stretching(group):
        for site in scaled_sites(factor, group):
            pieces.setdefault(site.tensor, []).append((site, scales[factor.name]))
    for name, sites in pieces.items():
        scale_tensor_(working[name], 0, sites, False)
    return working


def fit_by_weights(
    group: SymmetryGroup, weights: Weights, to: Weights | None, *, most: int, tolerance: float
) -> FittedScales:
    """The same for any group: the weights themselves are scaled in every round."""
    units, parts = _units(group)
    # rounds that are noise, as in single precision, are led astray when they are taken together
    wide = {name: tensor.double() for name, tensor in weights.items()}

    def squares(logs: Vector) -> Vector:
        return _sides(group, rescaled(group, wide, _in_shape(group, parts, logs)))

    goal = None if to is None else _sides(group, to)
    logs = fit_logs(units, squares, goal, most=most, tolerance=tolerance)
    return _in_shape(group, parts, logs)


def distance_when_scaled(group: SymmetryGroup, weights: Weights, to: Weights) -> float:
    """The squared distance of two networks when one has about the scales of the other."""
    axes = _axes(group, weights)
    if axes is None:
        scales = fit_by_weights(group, weights, to, most=12, tolerance=1e-3)
        return squared_distance(rescaled(group, weights, scales), to)
    own, goal, both = (axes.sums(*two) for two in ((weights, weights), (to, to), (weights, to)))
    logs = _fitted_logs(axes, own, goal, most=12, tolerance=1e-3)
    return squared_distance(weights, to) + axes.change(logs, own, both)


def squared_distance(one: Weights, other: Weights) -> float:
    """Over all tensors of the first that count."""
    names = [name for name in one if counts(name)]
    return sum(float((one[n] - other[n]).square().sum(dtype=torch.float64)) for n in names)


def _axes(group: SymmetryGroup, weights: Weights) -> ScaledAxes | None:
    """The layout by which scales are fitted to tables alone, where that can be done."""
    axes = scaled_axes(group)
    return axes if axes is not None and all(w.is_cpu for w in weights.values()) else None


def _fitted_logs(
    axes: ScaledAxes, own: Sums, to: Sums | None, *, most: int, tolerance: float
) -> Vector:
    def squares(logs: Vector) -> Vector:
        return axes.of_sides(axes.of_units(own, np.exp(2 * axes.along(logs))))

    goal = None if to is None else axes.of_sides(axes.of_units(to))
    units = Units(axes.runs, axes.reach)
    return fit_logs(units, squares, goal, most=most, tolerance=tolerance)


def _in_shape(group: SymmetryGroup, parts: Mapping[str, slice], logs: Vector) -> FittedScales:
    """The scales of all factors in the shapes that elements have; of those without sites ones."""
    found = {}
    for factor in stretching(group):
        shape, own = group.tables.shape(factor), parts.get(factor.name)
        found[factor.name] = (
            torch.ones(shape, dtype=torch.float64)
            if own is None
            else torch.from_numpy(np.exp(logs[own])).reshape(shape)
        )
    return found


def _units(group: SymmetryGroup) -> tuple[Units, dict[str, slice]]:
    """The units of all factors that act on something, and where those of each are."""
    acting = [factor for factor in stretching(group) if scaled_sites(factor, group)]
    runs = Runs.of(prod(group.tables.shape(factor)) for factor in acting)
    parts = dict(zip((factor.name for factor in acting), runs, strict=True))
    powers = _by_side(group, lambda _, size, power: np.full(size, float(abs(power))))
    present = _by_side(group, lambda _, size, power: np.ones(size))
    return Units(runs, powers / np.maximum(present, 1.0)), parts


def _sides(group: SymmetryGroup, weights: Weights) -> Vector:
    """The squares of units where scales multiply them, and where they divide them."""

    def squares(site: Site, _size: int, _power: int) -> Vector:
        own = region(weights[site.tensor], 0, site).double().square()
        return along(own, site).flatten().numpy(force=True)

    return _by_side(group, squares)


def _by_side(group: SymmetryGroup, of: Callable[[Site, int, int], Vector]) -> Vector:
    """Numbers of units added up over the sites where scales multiply, and where they divide."""
    found = [np.empty((2, 0))]
    for factor in stretching(group):
        sites, size = scaled_sites(factor, group), prod(group.tables.shape(factor))
        own = np.zeros((2, size))
        for site in sites:
            own[int(site.power < 0)] += of(site, size, site.power)
        found += [own] if sites else []
    return np.concatenate(found, 1)


def explained_by_norms(group: SymmetryGroup, weights: Weights, to: Weights) -> float:
    """The share of the squared distance of two networks that norms of units explain.

    About one between networks that differ by a rescaling and nothing else.  (It may be more: a
    tensor that is scaled along two axes counts along both.)
    """
    axes = _axes(group, weights)
    if axes is None:
        own, other = (np.sqrt(_sides(group, given)) for given in (weights, to))
        apart = squared_distance(weights, to)
        return float(np.square(own - other).sum()) / apart if apart else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        explained = _explained(axes, weights, to, next(iter(weights.values())).numpy().dtype)
    # numbers may be too large to be squared in single precision
    return explained if isfinite(explained) else _explained(axes, weights, to, np.float64)


def _explained(axes: ScaledAxes, weights: Weights, to: Weights, kind: DTypeLike) -> float:
    own, other = (axes.squares(given, kind) for given in (weights, to))
    apart = axes.apart(weights, to, kind)
    return float(np.square(np.sqrt(own) - np.sqrt(other)).sum()) / apart if apart else 0.0


def spread_of_scales(group: SymmetryGroup, weights: Weights, to: Weights) -> float:
    """How differently the scales of two networks are spread, whatever the order of units.

    The log-ratios of norms are sorted within each factor; their root mean square difference, the
    largest over factors.
    """
    axes = _axes(group, weights)
    if axes is None:
        units, _ = _units(group)
        sides = [_sides(group, given) for given in (weights, to)]
    else:
        units = Units(axes.runs, axes.reach)
        sides = [axes.of_sides(axes.squares(given)) for given in (weights, to)]
    runs = units.runs
    if not runs.size:
        return 0.0
    one, two = map(units.log_ratios, sides)
    shifts = runs.spread((np.ptp(np.concatenate([one, two])) + 1) * np.arange(len(runs.starts)))
    squares = np.square(np.sort(one + shifts) - np.sort(two + shifts))  # each part by itself
    return sqrt(float((runs.totals(squares) / runs.lengths * (runs.lengths > 1)).max()))


def with_scales(group: SymmetryGroup, scales: Mapping[str, Tensor]) -> Element:
    """The element that only scales."""
    identity = group.identity()
    return Element(identity.permutations, {**identity.scales, **scales})
