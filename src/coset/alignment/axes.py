"""Groups whose factors move whole axes of tensors: the common case, laid out for a lean ascent.

Perceptrons, convolutional and residual networks are of this kind; heads, groups, recurrent matrices
and norms over whole layers are not, and are matched by the general :class:`Ascent`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from coset.alignment.assignment import Indices
from coset.alignment.plans import Plan, lone_signs, make_plans, matched_tensors, most_anchored
from coset.alignment.strips import Strip
from coset.symmetry.elements import Site
from coset.symmetry.group import SymmetryGroup


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor that a factor moves.

    Attributes:
        place: Which axis of the tensor's view.
        factor: The factor.
        sign: The sign along the factor that flips the tensor there, if there is one.
    """

    place: int
    factor: str
    sign: str | None


@dataclass(frozen=True)
class AxisTerm:
    """One axis of a factor, and how the tensor is read when its units are compared.

    Attributes:
        tensor: The tensor.
        own: The axis compared.
        slot: The number of its sign among those along the factor, or of no sign.
        others: Further factors that move the tensor.
        features: Numbers of each unit.
        arrangement: The axes in the order in which a copy has to be made to bring the units to
            the end; empty if they are along the first or the last axis already.
        matrix: The shape as a matrix, one number being free.
    """

    tensor: str
    own: Axis
    slot: int
    others: frozenset[str]
    features: int
    arrangement: tuple[int, ...]
    matrix: tuple[int, int]


@dataclass(frozen=True)
class Touched:
    """A tensor that is compared and that a factor moves.

    Attributes:
        tensor: The tensor.
        place: The axis that is moved.
        slot: The number of its sign among those along the factor, or of no sign.
        readers: Terms of other factors that compare the tensor: factor and number.
    """

    tensor: str
    place: int
    slot: int
    readers: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Axes:
    """Where everything is.

    Attributes:
        views: For each tensor that is acted on, its axes, the finest that any site asks for.
        moved: For each of them the axes that factors move.
        signs: For each factor the signs along it that flip something that is compared.  A sign's
            slot is its number here; what no sign flips has the slot after the last.
        strips: For each factor the vectors along it.
        scales: For each factor the scales along it, its signs first.
        terms: For each factor where other tensors of ``to`` and of the weights are compared.
        plans: The plans of the factors.
    """

    views: Mapping[str, tuple[int, ...]]
    moved: Mapping[str, tuple[Axis, ...]]
    signs: Mapping[str, tuple[str, ...]]
    strips: Mapping[str, Strip]
    scales: Mapping[str, Strip]
    terms: Mapping[str, tuple[AxisTerm, ...]]
    plans: Mapping[str, Plan]

    @cached_property
    def places(self) -> Mapping[str, Indices]:
        """For each factor ``0, 1, 2, …``: the permutation that moves nothing."""
        return {name: np.arange(plan.factor.size) for name, plan in self.plans.items()}

    @cached_property
    def compared(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """For each tensor that terms compare these terms: factor and number."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, terms in self.terms.items():
            for k, term in enumerate(terms):
                found.setdefault(term.tensor, []).append((name, k))
        return {name: tuple(places) for name, places in found.items()}

    @cached_property
    def apart(self) -> tuple[str, ...]:
        """Tensors that are moved but not compared, vectors aside."""
        strips = {name for strip in self.strips.values() for name in strip.names}
        return tuple(name for name in self.moved if name not in {*strips, *self.compared})

    @cached_property
    def most(self) -> int:
        """The most terms that compare one tensor."""
        return max(map(len, self.compared.values()), default=1)

    @cached_property
    def touched(self) -> Mapping[str, tuple[Touched, ...]]:
        """For each factor the tensors compared that it moves."""
        return {
            name: tuple(
                Touched(
                    term.tensor,
                    term.own.place,
                    term.slot,
                    tuple(place for place in self.compared[term.tensor] if place[0] != name),
                )
                for term in terms
            )
            for name, terms in self.terms.items()
        }

    @cached_property
    def glanced(self) -> Mapping[str, tuple[AxisTerm, ...]]:
        """For each factor its terms, those with units first or last before those in between."""
        return {
            name: tuple(sorted(terms, key=lambda t: (bool(t.arrangement), -t.features)))
            for name, terms in self.terms.items()
        }

    @cached_property
    def telling(self) -> Mapping[str, int]:
        """For each factor with terms the cheapest that has a quarter of their numbers, or most."""
        found = {}
        for name, terms in self.terms.items():
            numbers = [term.features for term in terms]
            enough = [n for n in numbers if 4 * n >= sum(numbers)] or [max(numbers, default=0)]
            if terms:
                found[name] = numbers.index(min(enough))
        return found

    @cached_property
    def anchored(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Factors in the order of what is already known to fit, and the terms that are anchored.

        See :func:`coset.alignment.plans.most_anchored`.
        """
        solved: set[str] = set()
        waiting, order = list(self.terms), []
        while waiting:
            found = [
                [k for k, term in enumerate(self.terms[name]) if term.others <= solved]
                for name in waiting
            ]
            best = most_anchored(
                [
                    [1] * self.strips[name].compared + [self.terms[name][k].features for k in known]
                    for name, known in zip(waiting, found, strict=True)
                ]
            )
            name = waiting.pop(best)
            order.append((name, tuple(found[best])))
            solved.add(name)
        return tuple(order)


def axes_of(group: SymmetryGroup) -> Axes | None:
    """The layout of a group, or ``None`` if some factor moves something else than whole axes."""
    return group.remembered("axes to match", lambda: _axes_of(group))


def _axes_of(group: SymmetryGroup) -> Axes | None:
    plans = make_plans(group)
    if lone_signs(group) or group.aliases:
        return None
    if any(p.copies > 1 or p.children or p.curved or p.factor.within for p in plans.values()):
        return None
    sites = [site for factor in group.permutations for site in factor.sites]
    sites += [site for factor in group.scalings for site in factor.sites]
    if any(site.block or site.parents or len(site.digits) > 1 for site in sites):
        return None
    views = _views(group, sites)
    moved = {tensor: _moved(group, tensor, view) for tensor, view in views.items()}
    if any(axes is None for axes in moved.values()):
        return None
    known = {tensor: axes for tensor, axes in moved.items() if axes is not None}
    return _laid_out(group, views, known)


def _laid_out(
    group: SymmetryGroup,
    views: Mapping[str, tuple[int, ...]],
    moved: Mapping[str, tuple[Axis, ...]],
) -> Axes:
    """Everything in its place: signs in slots, vectors in strips, the rest in terms."""
    plans, matched = make_plans(group), matched_tensors(group)
    along = {
        name: [(t, a) for t, axes in moved.items() for a in axes if a.factor == name]
        for name in plans
    }
    signs = {
        name: tuple(dict.fromkeys(a.sign for t, a in own if a.sign and t in matched))
        for name, own in along.items()
    }
    vectors = {n for n, v in views.items() if len(v) == len(group.shapes[n]) == 1}

    def slot(factor: str, sign: str | None) -> int:
        known = signs[factor]
        return known.index(sign) if sign in known else len(known)

    slots = {n: [(t, a, slot(n, a.sign)) for t, a in own] for n, own in along.items()}
    strips, scales, terms = {}, {}, {}
    for name, own in slots.items():
        depth = max((k for t, _, k in own if t in matched), default=-1) + 1
        rows = {t: k for t, _, k in own if t in vectors}
        strips[name] = Strip.of(rows, matched, depth)
        tables = {s.name: slot(name, s.name) for s in group.scalings if s.along == name}
        scales[name] = Strip.of(tables, frozenset(), depth)
        terms[name] = tuple(
            _term(t, axis, k, views[t], moved[t])
            for t, axis, k in own
            if t in matched and t not in vectors
        )
    return Axes(views, moved, signs, strips, scales, terms, plans)


def _views(group: SymmetryGroup, sites: Iterable[Site]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for site in sites:
        if len(site.view) > len(found.get(site.tensor, ())):
            found[site.tensor] = site.view
    return found


def _moved(group: SymmetryGroup, tensor: str, view: tuple[int, ...]) -> tuple[Axis, ...] | None:
    """The axes that factors move, in order; ``None`` if they are no axes of the view."""
    signs: dict[int | None, str] = {}
    for scaling in group.scalings:
        for site in scaling.sites:
            if scaling.domain != "positive" and site.tensor == tensor and site.power % 2:
                place = _place(site, view)
                if place in signs:
                    return None  # two signs meet
                signs[place] = scaling.name
    axes: list[Axis] = []
    for factor in group.permutations:
        for site in factor.sites:
            if site.tensor == tensor:
                place = _place(site, view)
                if place is None or any(axis.place == place for axis in axes):
                    return None
                axes.append(Axis(place, factor.name, signs.pop(place, None)))
    return None if signs else tuple(sorted(axes, key=lambda axis: axis.place))


def _place(site: Site, view: Sequence[int]) -> int | None:
    """Where the digit of a site is among the axes of a view of the same tensor."""
    (digit,) = site.digits
    size, stride = site.view[digit], prod(site.view[digit + 1 :])
    for place, length in enumerate(view):
        if (length, prod(view[place + 1 :])) == (size, stride):
            return place
    return None


def _term(
    tensor: str, own: Axis, slot: int, view: tuple[int, ...], axes: Sequence[Axis]
) -> AxisTerm:
    units, middle = view[own.place], 0 < own.place < len(view) - 1
    return AxisTerm(
        tensor,
        own,
        slot,
        frozenset(axis.factor for axis in axes if axis is not own),
        prod(view) // units,
        (*(d for d in range(len(view)) if d != own.place), own.place) if middle else (),
        (-1, units) if own.place else (units, -1),
    )
