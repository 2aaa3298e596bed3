"""Positive scales on top of permutations and signs: kept, or brought to those of the target.

Multiplying the scale of a unit by ``s`` multiplies the norm ``M`` of all that it scales up, and
divides the norm ``V`` of all that it scales down.  So scales follow from the ratios ``M / V``, of
all units at once.  Norms of several tensors are taken together: a lone bias near zero says nothing
of a scale.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.ascent import Ascent
from coset.alignment.plans import acted_on, counts, matched_tensors
from coset.alignment.result import Outcome, member_of
from coset.symmetry.elements import Element, ScalingFactor
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonical_form
from coset.symmetry.removing.mass import minimise_mass
from coset.symmetry.removing.monomials import Monomials, Numbers, monomials
from coset.vocabulary import Weights

Scales = Literal["automatic", "match", "keep", "canonical", "mass"]

_NEARER = 0.75
"""Share of the squared distance up to which scales must bring networks that differ by a rescaling.

Scales make up for some noise too: for 11 % of the distance at the most, in what was tried.
"""

_TINY = 1e-200
"""Squares up to which a unit counts as zero: it has no scale."""

_FAINT = 0.01
"""Share of the mean square over a factor below which a square counts for less."""

_REMEMBERED = 20
"""Rounds that Anderson's extrapolation takes together."""

Climbed = tuple[Ascent, Outcome]
Climb = Callable[[Weights, Weights], Climbed]
"""Finds permutations and signs that bring the first weights to the second, scales being held."""

FittedScales = Mapping[str, Tensor]
"""For each factor that changes sizes the scales of its units."""

Squares: TypeAlias = NDArray[np.float64]
"""Sums of squares, in the first row of what scales multiply, in the second of what they divide."""


# -- whether scales are matched ------------------------------------------------------------------


def solve(
    scales: Scales,
    group: SymmetryGroup,
    weights: Weights,
    to: Weights,
    climb: Climb,
    quick_climb: Climb,
) -> Outcome:
    """Permutations and signs, and scales where they are asked for or help much.

    Args:
        scales: What to do about scales.
        group: The symmetries.
        weights: What is moved.
        to: What it is moved to.
        climb: Finds permutations and signs.
        quick_climb: The same in less time: tells whether networks are near at a common scale.
    """
    if scales in ("canonical", "mass"):
        return _in_gauge(scales, group, weights, to, climb)
    source, target = working(group, weights, to)
    if scales == "match":
        return _at_common_scale(group, _levelled(group, source, target), target, climb).outcome
    best, outcome = climb(source, target)
    if scales == "keep" or not stretching(group):
        return outcome
    limit = _NEARER * squared_distance(best.aligned, target)
    nearest = _fitted(group, outcome, best.aligned, target)
    if best.leaves_doubts():  # units may be told apart better at a common scale
        level = _levelled(group, source, target)
        tried = _at_common_scale(group, level, target, quick_climb)
        if tried.distance < limit:
            tried = _at_common_scale(group, level, target, climb)
        nearest = min(nearest, tried, key=attrgetter("distance"))
    return nearest.outcome if nearest.distance < limit else outcome


def rescaled_if_it_helps(
    group: SymmetryGroup, outcome: Outcome, weights: Weights, to: Weights
) -> Outcome:
    """The outcome, with the scales of ``to`` where that brings it nearer by a quarter or more."""
    if not stretching(group):
        return outcome
    aligned, target = working(group, group.act(outcome.element, weights), to)
    found = _fitted(group, outcome, aligned, target)
    near = found.distance < _NEARER * squared_distance(aligned, target)
    return found.outcome if near else outcome


@dataclass(frozen=True)
class _Fitted:
    """An outcome with the scales of the target, and the squared distance it leads to."""

    outcome: Outcome
    distance: float


def _fitted(group: SymmetryGroup, outcome: Outcome, aligned: Weights, target: Weights) -> _Fitted:
    """Gives an outcome the scales of the target."""
    scales = fit_scales(group, aligned, target)
    element = group.compose(outcome.element, with_scales(group, scales))
    distance = squared_distance(rescaled(group, aligned, scales), target)
    return _Fitted(replace(outcome, element=element, aligned=None), distance)


@dataclass(frozen=True)
class _Level:
    """Two networks at a common scale, and the scales that led the first one there."""

    source: Weights
    target: Weights
    scales: FittedScales


def _levelled(group: SymmetryGroup, source: Weights, target: Weights) -> _Level:
    own, other = (
        fit_scales(group, given, None, most=12, tolerance=1e-2) for given in (source, target)
    )
    return _Level(rescaled(group, source, own), rescaled(group, target, other), own)


def _at_common_scale(group: SymmetryGroup, level: _Level, target: Weights, climb: Climb) -> _Fitted:
    """Compares units at a common scale, then gives the result the scales of the target."""
    best, outcome = climb(level.source, level.target)
    found = group.compose(with_scales(group, level.scales), outcome.element)
    return _fitted(group, replace(outcome, element=found), best.aligned, target)


def _in_gauge(
    rule: Scales, group: SymmetryGroup, weights: Weights, to: Weights, climb: Climb
) -> Outcome:
    """Compares both networks where a rule has put them on their orbits, and leads back.

    Scales are fitted at the end: those of the way back blow up what the target has let die.
    """
    there = [_gauge(rule, group, given) for given in (weights, to)]
    own, other = working(group, group.act(there[0], weights), group.act(there[1], to))
    outcome = climb(own, other)[1]
    found = group.compose(group.compose(there[0], outcome.element), group.inverse(there[1]))
    aligned, target = working(group, group.act(found, weights), to)
    return _fitted(group, replace(outcome, element=found), aligned, target).outcome


def _gauge(rule: Scales, group: SymmetryGroup, weights: Weights) -> Element:
    if rule == "canonical":
        return member_of(canonical_form(group, weights).element, 0)
    return minimise_mass(group, weights, exclude_normalised=True).element


def working(group: SymmetryGroup, weights: Weights, to: Weights) -> tuple[Weights, Weights]:
    """What is acted on of two networks, contiguous and in one type, copied where need be.

    In single precision at least: half precision would lose the objective.
    """
    names = acted_on(group)
    tensors = [given[name] for given in (weights, to) for name in names]
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    kind = torch.float64 if wide else torch.float32

    def prepared(given: Weights) -> Weights:
        return {name: given[name].detach().to(kind).contiguous() for name in names}

    return prepared(weights), prepared(to)


def squared_distance(one: Weights, other: Weights) -> float:
    """Over all tensors of the first that count."""
    names = [name for name in one if counts(name)]
    return sum(float((one[n] - other[n]).square().sum(dtype=torch.float64)) for n in names)


# -- scales that bring one network to another ----------------------------------------------------


def stretching(group: SymmetryGroup) -> tuple[ScalingFactor, ...]:
    """Scalings that may change sizes, not only signs."""
    return tuple(scaling for scaling in group.scalings if scaling.domain != "sign")


def with_scales(group: SymmetryGroup, scales: FittedScales) -> Element:
    """The element that only scales."""
    identity = group.identity()
    return Element(identity.permutations, {**identity.scales, **scales})


def rescaled(group: SymmetryGroup, weights: Weights, scales: FittedScales) -> Weights:
    """A copy of what is acted on after scales."""
    filled = {n: weights.get(n, torch.zeros(shape)) for n, shape in group.shapes.items()}
    moved = group.act(with_scales(group, scales), filled)
    return {name: moved[name] for name in weights}


def fit_scales(
    group: SymmetryGroup,
    weights: Weights,
    to: Weights | None,
    *,
    most: int = 200,
    tolerance: float = 1e-12,
) -> FittedScales:
    """Positive scales that bring the ratios of all units to those in ``to``.

    In each round every unit gets the scale that would do if all others kept theirs.  What is then
    wrong with layers as a whole passes on from layer to layer, which Anderson's way of taking
    rounds together (1965) makes fast.

    Args:
        group: The symmetries.
        weights: What is rescaled (the tensors that are matched).
        to: Whose ratios are wanted; ``None``: in each factor the geometric mean over its units.
        most: The most rounds.
        tolerance: The largest change of a log-scale at which it stops.
    """
    units = group.remembered("units that scale", lambda: Units.of(group))
    sums = units.sums(weights)
    goal = None if to is None else units.squares(units.sums(to))
    shares = 1.0 if goal is None else units.shares(goal)
    logs = np.zeros((1, units.problem.count + 1))
    extrapolation = _Extrapolation()
    for _ in range(most):
        step = units.missing(units.squares(sums, logs), goal, shares)
        logs = extrapolation.following(logs, step)
        if np.abs(step).max() <= tolerance:
            break
    tables = units.problem.tables(group, np.exp(logs))
    return {name: table[0] for name, table in tables.items()}


@dataclass(frozen=True)
class Units:
    """The units of a group that have scales.

    Attributes:
        problem: How the weights depend on all scales.
        factors: For each unit the number of its factor; one more for what no scale changes.
        reach: The power of scales in what they multiply, and in what they divide, in the mean; zero
            where there is nothing.
    """

    problem: Monomials
    factors: NDArray[np.int64]
    reach: Squares

    @staticmethod
    def of(group: SymmetryGroup) -> "Units":
        """Those of a group."""
        scalings = stretching(group)
        problem = monomials(group, scalings, matched_tensors(group))
        sizes = [prod(group.tables.shape(scaling)) for scaling in scalings]
        powers, present = (np.zeros((2, 1, problem.count + 1)) for _ in range(2))
        for term in problem.terms:
            for touch in term.touches:
                if touch.power:
                    ones = np.ones((1, touch.places.size))
                    touch.add_to(powers[int(touch.power < 0)], abs(touch.power) * ones)
                    touch.add_to(present[int(touch.power < 0)], ones)
        reach = (powers / np.maximum(present, 1.0))[:, 0]
        reach[:, -1] = 0.0
        return Units(problem, np.repeat(np.arange(len(sizes) + 1), [*sizes, 1]), reach)

    def sums(self, weights: Weights) -> list[Numbers]:
        """The squares of weights, added up wherever scales do not tell them apart."""
        tensors = {term.tensor for term in self.problem.terms}
        return self.problem.sums({n: weights[n].double().square().unsqueeze(0) for n in tensors})

    def squares(self, sums: list[Numbers], logs: Numbers | None = None) -> Squares:
        """Squares of all units, after scales with some logarithms."""
        sides = np.zeros((2, 1, self.problem.count + 1))
        for term, value in zip(self.problem.terms, sums, strict=True):
            now = value if logs is None else value * np.exp(2 * term.exponents(logs))
            for touch in term.touches:
                if touch.power:
                    touch.add_to(sides[int(touch.power < 0)], touch.sums(now))
        found: Squares = sides[:, 0]
        found[:, -1] = 0.0
        return found

    def shares(self, goal: Squares) -> Squares:
        """How much each side of a unit counts: 1, less where its goal is nearly zero, 0 if it is.

        To follow the ratio of a unit that has all but died on one side, the other side would be
        blown up.
        """
        means = np.stack([self._mean(side, np.ones_like(side)) for side in goal])
        shares: Squares = np.minimum(goal / np.maximum(_FAINT * means, _TINY), 1.0)
        return shares

    def missing(self, squares: Squares, goal: Squares | None, shares: Squares | float) -> Numbers:
        """Logarithms of scales that bring ratios to those of a goal, or to a common level.

        Every unit is looked at as if all others kept their scales.  Where a side is zero here or in
        the goal the other one decides; without a goal such a unit keeps its scale.

        Args:
            squares: Of the units.
            goal: Those of another network; ``None``: in each factor the mean of the logarithms.
            shares: With a goal, how much each side counts.
        """
        known = np.where(squares > _TINY, 1.0, 0.0)
        if goal is None:
            whole = np.where(self.reach > 0, known, 1.0).min(0)
            multiplied, divided = np.where(self.reach > 0, _half_log(squares), 0.0)
            ratios = multiplied - divided
            missing = (self._mean(ratios, whole) - ratios) * whole
        else:
            known = known * shares
            multiplied, divided = known * (_half_log(goal) - _half_log(squares))
            missing = multiplied - divided
        reached = (known * self.reach).sum(0)
        found: Numbers = missing / np.where(reached > 0, reached, 1.0)
        found[-1] = 0.0
        return found[None]

    def _mean(self, values: Numbers, counted: Numbers) -> Numbers:
        """For each unit the mean over those of its factor that are counted."""
        totals = np.bincount(self.factors, values * counted)
        return (totals / np.maximum(np.bincount(self.factors, counted), 1.0))[self.factors]


class _Extrapolation:
    """Anderson's extrapolation of ``x + f(x)`` from the last few steps."""

    def __init__(self) -> None:
        self._points: list[Numbers] = []
        self._steps: list[Numbers] = []

    def following(self, point: Numbers, step: Numbers) -> Numbers:
        """Where to go on."""
        self._points = [*self._points[-_REMEMBERED:], point[0]]
        self._steps = [*self._steps[-_REMEMBERED:], step[0]]
        found = point + step
        if len(self._steps) > 1:
            changes, moves = (np.diff(given, axis=0) for given in (self._steps, self._points))
            shares = np.linalg.lstsq(changes.T, step[0], rcond=1e-10)[0]
            found = found - shares @ (changes + moves)
        return found


def _half_log(squares: Squares) -> Squares:
    """The logarithm of norms."""
    found: Squares = np.log(np.maximum(squares, _TINY)) / 2
    return found
