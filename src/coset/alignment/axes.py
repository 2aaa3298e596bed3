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
from coset.alignment.plans import Plan, lone_signs, make_plans, matched_tensors
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
        others: Further factors that move the tensor.
        features: Numbers of each unit.
        arrangement: The axes in the order in which a copy has to be made to bring the units to
            the end; empty if they are along the first or the last axis already.
        matrix: The shape as a matrix, one number being free.
    """

    tensor: str
    own: Axis
    others: frozenset[str]
    features: int
    arrangement: tuple[int, ...]
    matrix: tuple[int, int]


@dataclass(frozen=True)
class Touched:
    """A tensor that is compared and that a factor moves.

    Attributes:
        tensor: The tensor.
        axis: The axis that is moved.
        readers: Terms of other factors that compare the tensor: factor and number.
    """

    tensor: str
    axis: Axis
    readers: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Axes:
    """Where everything is.

    Attributes:
        views: For each tensor that is acted on, its axes, the finest that any site asks for.
        moved: For each of them the axes that factors move.
        terms: For each factor where ``to`` and the weights are compared.
        plans: The plans of the factors.
    """

    views: Mapping[str, tuple[int, ...]]
    moved: Mapping[str, tuple[Axis, ...]]
    terms: Mapping[str, tuple[AxisTerm, ...]]
    plans: Mapping[str, Plan]

    @cached_property
    def places(self) -> Mapping[str, Indices]:
        """For each factor ``0, 1, 2, …``: the permutation that moves nothing."""
        return {name: np.arange(plan.factor.size) for name, plan in self.plans.items()}

    @cached_property
    def compared(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """For each tensor that is matched the terms that compare it: factor and number."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, terms in self.terms.items():
            for k, term in enumerate(terms):
                found.setdefault(term.tensor, []).append((name, k))
        return {name: tuple(places) for name, places in found.items()}

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
                    term.own,
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
    def anchored(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Factors in the order of what is already known to fit, and the terms that are anchored.

        Always the factor with the most anchored numbers a unit: those in tensors where all other
        axes are either fixed (inputs, outputs) or belong to factors solved before.
        """
        solved: set[str] = set()
        waiting, order = list(self.terms), []
        while waiting:
            found = [
                [k for k, term in enumerate(self.terms[name]) if term.others <= solved]
                for name in waiting
            ]
            counts = [
                sum(self.terms[name][k].features for k in known)
                for name, known in zip(waiting, found, strict=True)
            ]
            best = counts.index(max(counts))
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
    matched = matched_tensors(group)
    terms = {
        name: tuple(
            _term(tensor, axis, views[tensor], axes)
            for tensor, axes in known.items()
            if tensor in matched
            for axis in axes
            if axis.factor == name
        )
        for name in plans
    }
    return Axes(views, known, terms, plans)


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


def _term(tensor: str, own: Axis, view: tuple[int, ...], axes: Sequence[Axis]) -> AxisTerm:
    units, middle = view[own.place], 0 < own.place < len(view) - 1
    return AxisTerm(
        tensor,
        own,
        frozenset(axis.factor for axis in axes if axis is not own),
        prod(view) // units,
        (*(d for d in range(len(view)) if d != own.place), own.place) if middle else (),
        (-1, units) if own.place else (units, -1),
    )
