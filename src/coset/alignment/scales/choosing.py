"""Scales on top of permutations and signs: fixed before, fitted after, or left as they are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor

from coset.alignment.ascent import Ascent
from coset.alignment.plans import acted_on
from coset.alignment.result import Outcome, member_of
from coset.alignment.scales.fitting import (
    FittedScales,
    distance_when_scaled,
    explained_by_norms,
    fit_scales,
    rescaled,
    spread_of_scales,
    squared_distance,
    with_scales,
)
from coset.alignment.scales.layout import stretching
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonical_form
from coset.symmetry.removing.mass import minimise_mass
from coset.vocabulary import Weights

Scales = Literal["automatic", "match", "keep", "canonical", "mass"]

_SUSPICIOUS = 0.6
"""Difference of sorted log-ratios from which units that might as well be elsewhere are compared
rescaled too.

Up to 0.7 rescaled copies of four architectures, with noise up to 30 %, were matched as well as they
are; trained networks differed by 0.42 at most, fresh ones by 0.35.
"""

_NEARER = 0.75
"""Share of the squared distance up to which scales must bring networks that differ by a rescaling.

Scales make up for some noise too: for 11 % of the distance at the most, in what was tried.
"""

_EXPLAINED, _MISLED = 0.4, 0.3
"""Share of the squared distance that norms must explain if scales are to bring networks so near,
and if units that might as well be elsewhere are to be compared again at a common scale.

Between trained networks it was 0.06 at most, between fresh ones 0.25, and 0.38 between copies with
30 % noise.
"""


Climbed = tuple[Ascent, Outcome]
Climb = Callable[[Weights, Weights], Climbed]
"""Finds permutations and signs that bring the first weights to the second, scales being held."""


def solve(
    scales: Scales,
    group: SymmetryGroup,
    weights: Weights,
    to: Weights,
    climb: Climb,
    glance: Climb | None = None,
) -> Outcome:
    """Permutations and signs, and scales where they are asked for or help much.

    Args:
        scales: What to do about scales.
        group: The symmetries.
        weights: What is moved.
        to: What it is moved to.
        climb: Finds permutations and signs.
        glance: The same in less time and nearly as well: tells whether scales are worth a climb.
    """
    if scales in ("canonical", "mass"):
        return _gauged(scales, group, weights, to, climb)
    source, target = working(group, weights, to)
    if scales == "match":
        return _rescaled(group, _levelled(group, source, target), target, climb).outcome
    best, outcome = climb(source, target)
    if scales == "keep" or not stretching(group):
        return outcome
    explained = explained_by_norms(group, best.aligned, target)
    helps = explained > _EXPLAINED
    differ = best.leaves_doubts() and (
        explained > _MISLED or spread_of_scales(group, best.aligned, target) > _SUSPICIOUS
    )
    if not (helps or differ):
        return outcome
    limit = _NEARER * squared_distance(best.aligned, target)
    helps = helps and distance_when_scaled(group, best.aligned, target) < limit
    found = [_fitted(group, outcome, best.aligned, target)] if helps else []
    if helps or differ:  # units may be compared better at a common scale
        level = _levelled(group, source, target)
        near = glance is None or (
            distance_when_scaled(group, glance(level.source, level.target)[0].aligned, target)
            < limit
        )
        found += [_rescaled(group, level, target, climb)] if near else []
    nearest = min(found, key=attrgetter("distance"), default=None)
    return outcome if nearest is None or nearest.distance >= limit else nearest.outcome


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


def _rescaled(group: SymmetryGroup, level: _Level, target: Weights, climb: Climb) -> _Fitted:
    """Compares units at a common scale, then gives the result the scales of the target."""
    best, outcome = climb(level.source, level.target)
    found = group.compose(with_scales(group, level.scales), outcome.element)
    return _fitted(group, replace(outcome, element=found), best.aligned, target)


def _gauged(
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
    own, other = ({name: given[name] for name in names} for given in (weights, to))
    tensors = [*own.values(), *other.values()]
    kinds = set(map(attrgetter("dtype"), tensors))
    kind = torch.float64 if torch.float64 in kinds else torch.float32
    fit = kinds <= {kind} and not any(map(attrgetter("requires_grad"), tensors))
    if fit and all(map(Tensor.is_contiguous, tensors)):
        return own, other

    def prepared(given: Weights) -> Weights:
        return {name: tensor.detach().to(kind).contiguous() for name, tensor in given.items()}

    return prepared(own), prepared(other)
