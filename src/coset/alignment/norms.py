"""Norms of units along scaled axes, and scales fitted to them without touching the weights.

Where scales run along whole axes, all that fitting them asks of a tensor are the squares summed
over its other axes.  Scaling the tensor scales these sums, so a round costs as much as there are
pairs of units, not weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import Matrix
from coset.alignment.plans import matched_tensors
from coset.alignment.whole_axes import place_of
from coset.symmetry.elements import ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

Mask = NDArray[np.bool_]

TINY = 1e-30
"""Squares up to which a unit counts as zero: it has no scale."""


@dataclass(frozen=True)
class ScaledAxis:
    """An axis that a factor scales: of the sums of squares of a tensor."""

    tensor: str
    place: int
    power: int


@dataclass(frozen=True)
class ScaledAxes:
    """Where scales act.

    Attributes:
        views: For each tensor that is scaled and matched its axes.
        summed: Which of them no scale runs along.
        factors: For each scaling factor the axes it scales.
    """

    views: Mapping[str, tuple[int, ...]]
    summed: Mapping[str, tuple[int, ...]]
    factors: Mapping[str, tuple[ScaledAxis, ...]]

    def squares(self, weights: Weights) -> dict[str, Matrix]:
        """For each tensor the squares summed over the axes that no scale runs along."""
        found = {}
        for name, view in self.views.items():
            tensor, over = weights[name].detach().reshape(view), self.summed[name]
            found[name] = (_summed(tensor, over) if over else tensor.double().square()).numpy()
        return found

    def products(self, one: Weights, other: Weights) -> dict[str, Matrix]:
        """For each tensor the products of two networks, summed over the same axes."""
        found = {}
        for name, view in self.views.items():
            product, over = (
                (one[name].detach() * other[name].detach()).view(view),
                self.summed[name],
            )
            whole = product.sum(over, dtype=torch.float64) if over else product.double()
            found[name] = whole.numpy()
        return found

    def unit_tables(self, squares: Mapping[str, Matrix]) -> Iterator[list[tuple[int, Matrix]]]:
        """For each factor that acts on something its powers and the squares of its units."""
        for places in filter(None, self.factors.values()):
            yield [(a.power, unit_squares(squares[a.tensor], a.place)) for a in places]

    def change(
        self,
        logs: Mapping[str, Matrix],
        squares: Mapping[str, Matrix],
        products: Mapping[str, Matrix],
    ) -> float:
        """By how much scales change the squared distance ``|s w - v|²`` to another network.

        Args:
            logs: The logarithms of ``s`` for each factor.
            squares: The squares of ``w``.
            products: Those of ``w`` and ``v``.
        """
        scales: dict[str, Matrix] = {}
        for name, places in self.factors.items():
            for axis in places:
                shape = [1] * squares[axis.tensor].ndim
                shape[axis.place] = -1
                own = (axis.power * logs[name]).reshape(shape)
                scales[axis.tensor] = scales.get(axis.tensor, 0.0) + own
        total = 0.0
        for name, sums in scales.items():
            scale = np.exp(sums)
            part = (scale * scale - 1) * squares[name] - 2 * (scale - 1) * products[name]
            total += float(part.sum())
        return total


def stretching(group: SymmetryGroup) -> tuple[ScalingFactor, ...]:
    """Scalings that may change sizes, not only signs."""
    return tuple(scaling for scaling in group.scalings if scaling.domain != "sign")


def scaled_sites(factor: ScalingFactor, group: SymmetryGroup) -> list[Site]:
    """Where a factor scales what is matched."""
    matched = matched_tensors(group)
    return [site for site in factor.sites if site.tensor in matched and site.power]


def scaled_axes(group: SymmetryGroup) -> ScaledAxes | None:
    """The layout of a group's scales, or ``None`` if some run along something else."""
    return group.remembered("scaled axes", lambda: _scaled_axes(group))


def _scaled_axes(group: SymmetryGroup) -> ScaledAxes | None:
    sites = {factor: scaled_sites(factor, group) for factor in stretching(group)}
    every = [site for own in sites.values() for site in own]
    if any(site.block or site.parents or len(site.digits) != 1 for site in every):
        return None
    views: dict[str, tuple[int, ...]] = {}
    for site in every:
        views[site.tensor] = max(site.view, views.get(site.tensor, ()), key=len)
    places = {(s.tensor, s.view, s.digits): place_of(s, views[s.tensor]) for s in every}
    if any(place is None for place in places.values()):
        return None
    kept = {
        n: sorted({p for key, p in places.items() if key[0] == n and p is not None}) for n in views
    }

    def axis(site: Site) -> ScaledAxis:
        place = places[site.tensor, site.view, site.digits]
        assert place is not None
        return ScaledAxis(site.tensor, kept[site.tensor].index(place), site.power)

    return ScaledAxes(
        views,
        {n: tuple(d for d in range(len(view)) if d not in kept[n]) for n, view in views.items()},
        {factor.name: tuple(map(axis, own)) for factor, own in sites.items()},
    )


def fit_logs(
    axes: ScaledAxes,
    own: Mapping[str, Matrix],
    to: Mapping[str, Matrix] | None,
    *,
    most: int,
    tolerance: float,
) -> dict[str, Matrix]:
    """Logarithms of the scales that :func:`coset.alignment.scales.fit_scales` describes.

    Args:
        axes: Where scales act; only factors that act somewhere are fitted.
        own: The sums of squares of what is rescaled.
        to: Those of the network whose norms are wanted, if there is one.
        most: The most rounds.
        tolerance: The largest change at which it stops.
    """
    now = {name: _Scaled(array) for name, array in own.items()}
    fits = {name: _Fit.of(places, own, to) for name, places in axes.factors.items() if places}
    logs = {name: np.zeros_like(fit.powers) for name, fit in fits.items()}
    for _ in range(most):
        largest = 0.0
        for name, fit in fits.items():
            step = fit.step(now)
            logs[name] += step
            largest = max(largest, float(np.abs(step).max(initial=0.0)))
            for axis in fit.axes:
                now[axis.tensor].scale(axis.place, axis.power * step)
        if largest <= tolerance:
            break
    return logs


class _Scaled:
    """Sums of squares, and the scales along all their axes; the sums themselves stay."""

    def __init__(self, squares: Matrix) -> None:
        self._squares = squares
        self._logs = [np.zeros(size) for size in squares.shape]
        self._factors = [np.ones(size) for size in squares.shape]  # exp(2 logs)
        self._alone = _half_log(squares) if squares.ndim == 1 else None

    def scale(self, place: int, logs: Matrix) -> None:
        """Scales along one axis."""
        self._logs[place] += logs
        if self._alone is None:
            self._factors[place] = np.exp(2 * self._logs[place])

    def log_norms(self, place: int) -> Matrix:
        """Of all units along one axis."""
        if self._alone is not None:
            return self._alone + self._logs[place]
        sums = self._squares
        for after in reversed(self._factors[place + 1 :]):
            sums = np.dot(sums, after)
        for before in self._factors[:place]:
            sums = np.dot(before, sums.reshape(len(before), -1)).reshape(sums.shape[1:])
        return _half_log(sums) + self._logs[place]


@dataclass(frozen=True)
class _Fit:
    """Least squares for the scales of one factor.

    Attributes:
        axes: What it scales.
        goals: For each of them the logarithms that are wanted; ``None``: their mean.
        known: For each of them which units have a norm; ``None``: all.
        powers: For each unit the squared exponents of the axes that know it, at least one.
    """

    axes: Sequence[ScaledAxis]
    goals: Sequence[Matrix | None]
    known: Sequence[Mask | None]
    powers: Matrix

    @staticmethod
    def of(
        axes: Sequence[ScaledAxis], own: Mapping[str, Matrix], to: Mapping[str, Matrix] | None
    ) -> "_Fit":
        goals: list[Matrix | None] = []
        known: list[Mask | None] = []
        total: Matrix | float = 0.0
        for axis in axes:
            norms = unit_squares(own[axis.tensor], axis.place)
            fine = norms > TINY
            if to is None:
                goals.append(None)
            else:
                wanted = unit_squares(to[axis.tensor], axis.place)
                fine &= wanted > TINY
                goals.append(_half_log(wanted))
            known.append(None if fine.all() else fine)
            total = total + axis.power**2 * fine
        return _Fit(axes, goals, known, np.maximum(total, 1.0))

    def step(self, now: Mapping[str, _Scaled]) -> Matrix:
        """What brings the norms nearest to the goals."""
        total = np.zeros_like(self.powers)
        for axis, goal, known in zip(self.axes, self.goals, self.known, strict=True):
            here = now[axis.tensor].log_norms(axis.place)
            missing = (_mean(here, known) if goal is None else goal) - here
            total += axis.power * (missing if known is None else np.where(known, missing, 0.0))
        total /= self.powers
        return total


def unit_squares(squares: Matrix, place: int) -> Matrix:
    """The squares of all that one unit along an axis has.

    >>> unit_squares(np.array([[1.0, 2.0], [3.0, 4.0]]), 1).tolist()
    [4.0, 6.0]
    """
    if squares.ndim == 1:
        return squares
    found: Matrix = squares.sum(tuple(d for d in range(squares.ndim) if d != place))
    return found


def _half_log(squares: Matrix) -> Matrix:
    found: Matrix = np.log(np.maximum(squares, TINY))
    found /= 2
    return found


def _mean(values: Matrix, known: Mask | None) -> float:
    if known is None:
        return float(values.mean())
    return float(values[known].sum()) / max(1, int(known.sum()))


def _summed(tensor: Tensor, over: Sequence[int]) -> Tensor:
    """Squares summed over some axes, in double precision."""
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=tuple(over), dtype=torch.float64)
    return norms.square_()
