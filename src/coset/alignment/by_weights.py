"""Matching by weights: ``max <to, aligned>`` over the group."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import get_args

import torch
from torch import Tensor

from coset.alignment.ascent import Ascent
from coset.alignment.plans import lone_signs, make_plans
from coset.alignment.result import Outcome, member_of
from coset.alignment.scales import Climbed, Scales, solve, working
from coset.alignment.ties import settle_ties
from coset.errors import CosetError
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonical_form
from coset.vocabulary import Weights

_FAINT = 1e-30
"""Inner products below which those of single weights are lost in single precision."""

_SHAKEN = 0.25
"""Share of the units that are shuffled before another run; at most so many signs are flipped."""


@dataclass(frozen=True)
class ByWeights:
    """Coordinate ascent over linear assignments (Ainsworth, Hayase, Srinivasa 2023).

    Attributes:
        restarts: Further runs, each from the best so far with a quarter of the units of every
            factor shuffled and about one of its signs flipped; the best of all is kept.
        anchored: Whether the first run begins by solving factors in the order of what is already
            known to fit.  Without it the first run begins at the identity, as published.
        soft: Rounds in which all factors are permuted softly before each is sent somewhere again:
            a second run, where the anchors leave doubts; the better is kept.  More rounds mostly
            climb higher and take longer, 0 is the fastest.
        sweeps: The most times all factors are gone through in one run.
        scales: What to do about positive scales.  ``"match"``: units are compared at a common
            scale, and the result has the scales of ``to``.  ``"keep"``: only permutations and
            signs, as published.  ``"automatic"``: as ``"match"`` where that lowers the squared
            distance by a quarter or more (networks that differ by a rescaling), else as
            ``"keep"``.
            ``"canonical"`` and ``"mass"``: as ``"match"``, but units are compared in the canonical
            form of both networks, or at their smallest mass.
    """

    restarts: int = 0
    anchored: bool = True
    soft: int = 3
    sweeps: int = 100
    scales: Scales = "automatic"

    def __post_init__(self) -> None:
        if self.scales not in get_args(Scales):
            raise CosetError(
                f"got scales={self.scales!r}", f"needed one of {', '.join(get_args(Scales))}"
            )
        numbers = (self.restarts, self.soft, self.sweeps)
        if not all(isinstance(n, int) for n in numbers) or min(numbers) < 0 or not self.sweeps:
            raise CosetError(
                f"got restarts={self.restarts}, soft={self.soft} and sweeps={self.sweeps}",
                "needed whole numbers, none negative and at least one sweep",
            )

    def solve(
        self,
        group: SymmetryGroup,
        weights: Weights,
        to: Weights,
        *,
        generator: torch.Generator,
    ) -> Outcome:
        """The element found for weights that were checked."""

        def climb(source: Weights, target: Weights) -> Climbed:
            return ascend(self, group, source, target, generator)

        def quick_climb(source: Weights, target: Weights) -> Climbed:
            return ascend(replace(self, restarts=0, soft=0), group, source, target, generator)

        return solve(self.scales, group, weights, to, climb, quick_climb)


def begin(group: SymmetryGroup, to: Weights, aligned: Weights, element: Element) -> Ascent:
    """An ascent from weights that an element has led to."""
    return Ascent(group, make_plans(group), to, aligned, element)


def begin_at(group: SymmetryGroup, weights: Weights, to: Weights, element: Element) -> Ascent:
    """An ascent from where an element has taken the weights."""
    aligned, target = working(group, group.act(element, weights), to)
    run = begin(group, target, aligned, element)
    if too_faint(run.objective(), target):
        return begin(group, widened(target), widened(aligned), element)
    return run


def ascend(
    by: ByWeights,
    group: SymmetryGroup,
    source: Weights,
    target: Weights,
    generator: torch.Generator,
) -> Climbed:
    """The best of all runs over permutations and signs."""
    identity = group.remembered("identity", group.identity)
    plans = make_plans(group)
    # what little compares is settled first: streams, which all compare, then come once
    names = sorted(plans, key=lambda name: len(plans[name].terms))
    first = begin(group, target, source, identity)
    floor = first.objective()
    if not isfinite(floor):
        raise CosetError(
            "got weights whose products are too large for their type",
            "needed a finite inner product of the two networks",
            "give both in double precision, or scale them down",
        )
    if too_faint(floor, target):
        return ascend(by, group, widened(source), widened(target), generator)
    if by.anchored:
        first.anchored_start()
    found = _Run.of(first, names, by)

    def shuffled() -> list[str]:
        return [names[k] for k in torch.randperm(len(names), generator=generator).tolist()]

    def again() -> Ascent:
        return begin(group, target, found.run.aligned, found.run.element)

    if by.anchored and found.value < floor:  # the anchors have misled
        run = begin(group, target, source, identity)
        found = found.or_higher(_Run.of(run, shuffled(), by))
    if by.anchored and by.soft and found.run.in_doubt():
        soft = again()
        soft.soft_start(names, by.soft)
        found = found.or_higher(_Run.of(soft, names, by))
    if by.anchored and lone_signs(group) and found.run.leaves_doubts():
        run = _from_canonical_forms(group, source, target)
        found = found.or_higher(_Run.of(run, names, by))
    for _ in range(by.restarts):
        run = again()
        _shake(run, generator)
        found = found.or_higher(_Run.of(run, shuffled(), by))
    best, ties = found.run, settle_ties(found.run)
    return best, Outcome(best.element, ties, found.sweeps, lambda: best.aligned)


def _from_canonical_forms(group: SymmetryGroup, source: Weights, target: Weights) -> Ascent:
    """An ascent from where twins meet: both are led to their canonical form, and one leads back.

    Signs of whole layers hang together over all layers of a stream; from the identity an ascent may
    have to flip many of them at once.
    """
    own, other = (
        {name: given.get(name, torch.zeros(shape)) for name, shape in group.shapes.items()}
        for given in (source, target)
    )
    there, goal = (member_of(canonical_form(group, given).element, 0) for given in (own, other))
    found = group.compose(there, group.inverse(goal))
    element = Element(found.permutations, {n: table.sign() for n, table in found.scales.items()})
    moved = group.act(element, own)
    return begin(group, target, {name: moved[name] for name in source}, element)


@dataclass(frozen=True)
class _Run:
    """A run that has come to its end, and the sweeps it took."""

    run: Ascent
    sweeps: int

    @staticmethod
    def of(run: Ascent, order: Sequence[str], by: ByWeights) -> "_Run":
        return _Run(run, run.sweep(order, most=by.sweeps))

    @cached_property
    def value(self) -> float:
        return self.run.objective()

    def or_higher(self, other: "_Run") -> "_Run":
        return other if other.value > self.value else self


def too_faint(value: float, weights: Weights) -> bool:
    """Whether an inner product is so small that its parts are lost in the precision of weights."""
    return abs(value) < _FAINT and any(w.dtype != torch.float64 for w in weights.values())


def widened(weights: Weights) -> Weights:
    """Weights in double precision."""
    return {name: tensor.double() for name, tensor in weights.items()}


def _shake(run: Ascent, generator: torch.Generator) -> None:
    """Shuffles a share of the units of every factor, so that an ascent may find a higher hill.

    From there it does far more often than from the identity: on two pairs of ResNet-20 ten runs
    were better than the best of ten from the identity, and of twenty.  About one sign a factor is
    flipped: recurrent units need it, and more of them lead too far away from what was good.
    """
    for name, table in list(run.permutations.items()):
        size, copies = table.shape[-1], table[..., 0].numel()
        orders = [_partly_shuffled(size, generator) for _ in range(copies)]
        chance = min(_SHAKEN, 1 / size)
        flips = {
            sign.name: torch.where(torch.rand(table.shape, generator=generator) < chance, -1.0, 1.0)
            for sign in run.plans[name].signs
        }
        run.reorder(name, torch.stack(orders).reshape(table.shape), flips)


def _partly_shuffled(size: int, generator: torch.Generator) -> Tensor:
    """The identity but for a share of its places.

    >>> order = _partly_shuffled(40, torch.Generator().manual_seed(0))
    >>> int((order != torch.arange(40)).sum()) <= 10, order.sort().values.equal(torch.arange(40))
    (True, True)
    """
    order = torch.arange(size)
    some = torch.randperm(size, generator=generator)[: max(2, int(_SHAKEN * size))]
    order[some] = some[torch.randperm(len(some), generator=generator)]
    return order
