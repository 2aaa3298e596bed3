"""Scales on top of permutations and signs: fixed before, fitted after, or left as they are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor

from coset.alignment.ascent import Ascent
from coset.alignment.norms import stretching
from coset.alignment.plain import PlainAscent
from coset.alignment.plans import acted_on, counts
from coset.alignment.result import member_of
from coset.alignment.scales import compare_scales, fit_scales, with_scales
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonical_form
from coset.symmetry.removing.mass import minimise_mass
from coset.vocabulary import Weights

Scales = Literal["automatic", "match", "keep", "canonical", "mass"]

_SUSPICIOUS = 0.25
"""Difference of sorted log-scales (root mean square) from which units are compared rescaled too."""


@dataclass(frozen=True)
class Outcome:
    """What a way of matching found.

    Attributes:
        element: The element.
        ties: Units that could be exchanged at no cost.
        sweeps: How many times all factors were gone through.
        aligned: Returns the tensors that the group acts on after the element, where they are at
            hand.
    """

    element: Element
    ties: int = 0
    sweeps: int = 0
    aligned: Callable[[], Weights] | None = None


Climbed = tuple[Ascent | PlainAscent, Outcome]
Climb = Callable[[Weights, Weights], Climbed]
"""Finds permutations and signs that bring the first weights to the second, scales being held."""


def solve(
    scales: Scales, group: SymmetryGroup, weights: Weights, to: Weights, climb: Climb
) -> Outcome:
    """Permutations and signs, and scales where they are asked for or help much."""
    if scales in ("canonical", "mass"):
        return _gauged(scales, group, weights, to, climb)
    source, target = working(group, weights, to)
    if scales == "match":
        return _rescaled(group, source, target, climb)[0]
    best, outcome = climb(source, target)
    if scales == "keep" or not stretching(group):
        return outcome
    difference = compare_scales(group, best.aligned, target)
    differ = difference.spread > _SUSPICIOUS
    if not (difference.matters or differ):
        return outcome
    before = _distance(best.aligned, target)
    trial = fit_scales(group, best.aligned, target, most=4)
    helps = 2 * _distance(trial.weights, target) < before
    if not (helps or differ):
        return outcome
    other, after = _rescaled(group, source, target, climb, before)
    if helps:  # units may have been compared better as they are
        fitted, left = _fitted(group, outcome, best.aligned, target)
        other, after = (fitted, left) if left < after else (other, after)
    return other if 2 * after < before else outcome


def rescaled_if_it_helps(
    group: SymmetryGroup, outcome: Outcome, weights: Weights, to: Weights
) -> Outcome:
    """The outcome, with the scales of ``to`` where that at least halves the squared distance."""
    if not stretching(group):
        return outcome
    aligned, target = working(group, group.act(outcome.element, weights), to)
    fitted, after = _fitted(group, outcome, aligned, target)
    return fitted if 2 * after < _distance(aligned, target) else outcome


def _fitted(
    group: SymmetryGroup, outcome: Outcome, aligned: Weights, target: Weights
) -> tuple[Outcome, float]:
    """An outcome with the scales of the target, and the squared distance it then leads to."""
    fitted = fit_scales(group, aligned, target)
    element = group.compose(outcome.element, with_scales(group, fitted.scales))
    return replace(outcome, element=element, aligned=None), _distance(fitted.weights, target)


def _rescaled(
    group: SymmetryGroup,
    source: Weights,
    target: Weights,
    climb: Climb,
    limit: float = torch.inf,
) -> tuple[Outcome, float]:
    """Compares units at a common scale, then gives the result the scales of the target.

    Returns:
        The outcome, and the squared distance it leads to; infinite if it is clear early on that
        it will not be half of ``limit``.
    """
    level = fit_scales(group, source, None, most=6, tolerance=1e-2)
    other = fit_scales(group, target, None, most=6, tolerance=1e-2)
    best, outcome = climb(level.weights, other.weights)
    last = fit_scales(group, best.aligned, target, most=6)
    if 2 * _distance(last.weights, target) >= limit:
        return outcome, torch.inf
    found = group.compose(with_scales(group, level.scales), outcome.element)
    return _fitted(group, replace(outcome, element=found), best.aligned, target)


def _gauged(
    rule: Scales, group: SymmetryGroup, weights: Weights, to: Weights, climb: Climb
) -> Outcome:
    """Compares both networks where a rule has put them on their orbits, and leads back."""
    there = [_gauge(rule, group, given) for given in (weights, to)]
    own, other = working(group, group.act(there[0], weights), group.act(there[1], to))
    outcome = climb(own, other)[1]
    found = group.compose(there[0], outcome.element)
    return replace(outcome, element=group.compose(found, group.inverse(there[1])), aligned=None)


def _gauge(rule: Scales, group: SymmetryGroup, weights: Weights) -> Element:
    if rule == "canonical":
        return member_of(canonical_form(group, weights).element, 0)
    return minimise_mass(group, weights, exclude_normalised=True).element


def _distance(one: Weights, other: Weights) -> float:
    names = [name for name in one if counts(name)]
    return sum(float((one[n] - other[n]).square().sum(dtype=torch.float64)) for n in names)


def working(group: SymmetryGroup, weights: Weights, to: Weights) -> tuple[Weights, Weights]:
    """What is acted on of two networks, contiguous and in one type, copied where need be.

    In single precision at least: half precision would lose the objective.
    """
    names = acted_on(group)
    own, other = ({name: given[name] for name in names} for given in (weights, to))
    tensors = [*own.values(), *other.values()]
    kinds = {tensor.dtype for tensor in tensors}
    kind = torch.float64 if torch.float64 in kinds else torch.float32
    fit = kinds <= {kind} and not any(map(attrgetter("requires_grad"), tensors))
    if fit and all(map(Tensor.is_contiguous, tensors)):
        return own, other

    def prepared(given: Weights) -> Weights:
        return {name: tensor.detach().to(kind).contiguous() for name, tensor in given.items()}

    return prepared(own), prepared(other)
