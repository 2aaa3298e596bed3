"""Groups whose factors move whole axes of tensors: the common case, laid out for a lean ascent.

Perceptrons, convolutional and residual networks are of this kind; heads, groups, recurrent matrices
and norms over whole layers are not, and are matched by the general :class:`Ascent`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from coset.alignment.assignment import Indices, Matrix
from coset.alignment.plans import Plan, most_anchored
from coset.alignment.whole_axes.strips import Packing, Strip


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


def slot_of(sign: str | None, known: tuple[str, ...]) -> int:
    """The number of a sign among those known along a factor; of no sign: the one after the last.

    >>> slot_of("b", ("a", "b")), slot_of(None, ("a", "b"))
    (1, 2)
    """
    return known.index(sign) if sign in known else len(known)


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
class MixedTerm:
    """How a term is read when the other factor that moves its tensor mixes units.

    Attributes:
        tensor: The tensor.
        slot: As in the term.
        other: The other factor; ``None``: there is none.
        other_slot: The number of the sign among those along the other factor, or of no sign.
        order: The axes of the tensor: the other's, the rest, the factor's.
        others: How many units the other has; of no other one.
        units: How many the factor has.
    """

    tensor: str
    slot: int
    other: str | None
    other_slot: int
    order: tuple[int, ...]
    others: int
    units: int


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
    def rows(self) -> Mapping[str, Indices]:
        """For each factor where the rows of its gains begin, counted in entries."""
        return {name: own * len(own) for name, own in self.places.items()}

    @cached_property
    def vectors(self) -> Packing:
        """How the vectors of a network are packed."""
        return Packing.of(self.strips, {name: len(own) for name, own in self.places.items()})

    @cached_property
    def counted(self) -> Matrix:
        """For each number of the packed vectors whether it is compared: one or zero."""
        counted = np.zeros(sum(self.vectors.sizes), np.float32)
        for name, rows in self.vectors.rows(counted).items():
            rows[: self.strips[name].compared] = 1
        return counted

    @cached_property
    def tables(self) -> Packing:
        """How the scales of an element are packed."""
        return Packing.of(self.scales, {name: len(own) for name, own in self.places.items()})

    @cached_property
    def compared(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """For each tensor that terms compare these terms: factor and number."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, terms in self.terms.items():
            for k, term in enumerate(terms):
                found.setdefault(term.tensor, []).append((name, k))
        return {name: tuple(places) for name, places in found.items()}

    @cached_property
    def finer(self) -> Mapping[str, tuple[int, ...]]:
        """Views of tensors that terms compare and that have fewer axes themselves."""
        plain = {term.site.tensor: term.shape for p in self.plans.values() for term in p.terms}
        return {name: self.views[name] for name in self.compared if self.views[name] != plain[name]}

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
    def once(self) -> Mapping[str, int]:
        """For each tensor that terms compare a one."""
        return dict.fromkeys(self.compared, 1)

    @cached_property
    def less(self) -> Mapping[str, int]:
        """How many terms fewer than the most compare a tensor, where it is any."""
        fewer = {name: self.most - len(readers) for name, readers in self.compared.items()}
        return {name: count for name, count in fewer.items() if count}

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
    def mixed(self) -> Mapping[str, tuple[MixedTerm, ...]] | None:
        """The terms of all factors as they are mixed.

        ``None`` where that is of no use, because no tensor is moved by two factors, or where a
        tensor is moved by three.
        """
        if max(map(len, self.moved.values()), default=0) != 2:
            return None
        return {name: tuple(map(self._mixed, terms)) for name, terms in self.terms.items()}

    def _mixed(self, term: AxisTerm) -> MixedTerm:
        view, own = self.views[term.tensor], term.own.place
        other = next((axis for axis in self.moved[term.tensor] if axis.place != own), None)
        places = () if other is None else (other.place,)
        rest = tuple(d for d in range(len(view)) if d not in (own, *places))
        return MixedTerm(
            tensor=term.tensor,
            slot=term.slot,
            other=None if other is None else other.factor,
            other_slot=0 if other is None else slot_of(other.sign, self.signs[other.factor]),
            order=(*places, *rest, own),
            others=prod(view[d] for d in places),
            units=view[own],
        )

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
