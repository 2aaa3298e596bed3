"""Coordinate ascent for groups whose factors move whole axes.

The same steps as :class:`coset.alignment.ascent.Ascent` takes, kept lean.  The weights are held as
they are aligned now, and for each factor the sum of its gains between places and the units that are
in them: a factor's own moves permute the columns, a neighbour's add what they changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import Indices, Matrix, best_permutation
from coset.alignment.axes import Axes, Axis, AxisTerm, Touched
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_LARGE = 2**14
"""Numbers from which torch multiplies and gathers faster than numpy."""

Flips = NDArray[np.floating]
"""A sign for each place."""


class PlainAscent:
    """The working state: the weights as they are aligned now, and what led there.

    Attributes:
        solves: How many assignments were looked for.
        precision: Relative gain below which an improvement is taken for rounding.
    """

    def __init__(
        self, group: SymmetryGroup, axes: Axes, to: Weights, source: Weights, element: Element
    ) -> None:
        self.group = group
        self.axes = axes
        self.plans = axes.plans
        self.solves = 0
        self._begin = element
        self._given = source
        self._to = {n: to[n].numpy().reshape(axes.views[n]) for n in axes.compared}
        self._now = {n: source[n].numpy().reshape(axes.views[n]) for n in axes.compared}
        self._fresh: set[str] = set()  # copies made here, which may be written to
        self._order = dict(axes.places)
        self._home = {n: p.numpy().argsort() for n, p in element.permutations.items()}
        self._signs: dict[str, Flips] = {}
        self._totals: dict[str, dict[str | None, Matrix]] = {name: {} for name in axes.terms}
        self._taken: dict[str, set[int]] = {name: set() for name in axes.terms}
        self._settled: set[str] = set()
        self._buffers: dict[tuple[str, int], Matrix] = {}
        single = any(tensor.dtype == np.float32 for tensor in self._to.values())
        self.precision = 1e-6 if single else 1e-12

    # -- what has been found ---------------------------------------------------------------------

    @property
    def permutations(self) -> dict[str, Tensor]:
        """For each factor the unit that is in each place."""
        before = self._begin.permutations
        return {name: _taken(before[name], order) for name, order in self._order.items()}

    @property
    def element(self) -> Element:
        """What has been done so far."""
        scales = dict(self._begin.scales)
        for scaling in self.group.scalings:
            if scaling.along is not None:
                scales[scaling.name] = _taken(scales[scaling.name], self._order[scaling.along])
            if scaling.name in self._signs:
                signs = torch.from_numpy(self._signs[scaling.name])
                scales[scaling.name] = scales[scaling.name] * signs
        return Element(self.permutations, scales)

    @cached_property
    def aligned(self) -> Weights:
        """The weights after what was found; ask for it when nothing moves any more."""
        found = dict(self._given)
        for name, axes in self.axes.moved.items():
            array = self._now.get(name)
            if array is None:
                array = self._given[name].numpy().reshape(self.axes.views[name])
                for axis in axes:
                    array = _moved(array, axis, self._order[axis.factor], self._signs)
            elif name not in self._fresh:
                array = array.copy()
            tensor = torch.from_numpy(array)
            shape = self.group.shapes[name]
            found[name] = tensor if array.shape == shape else tensor.view(shape)
        self._fresh.clear()  # they belong to the caller now
        return found

    def objective(self) -> float:
        """``<to, aligned>`` over the tensors that are matched, to working precision.

        The diagonals of a factor's gains add up to what the tensors it moves are worth.  So once
        all gains are known, only tensors that fewer factors move than others are multiplied.
        """
        known = all(len(taken) == len(self.axes.terms[n]) for n, taken in self._taken.items())
        most, value = self.axes.most if known else 1, 0.0
        for name, readers in self.axes.compared.items():
            left = most - len(readers) * known
            if left:
                value += left * float(np.dot(self._to[name].ravel(), self._now[name].ravel()))
        for totals in self._totals.values() if known else ():
            value += sum(float(m.diagonal().sum(dtype=np.float64)) for m in totals.values())
        return value / most

    # -- the ascent ------------------------------------------------------------------------------

    def anchored_start(self) -> None:
        """Solves every factor once, from what is already known to fit."""
        for name, terms in self.axes.anchored:
            self.step(name, terms)

    def sweep(self, order: Sequence[str], *, most: int) -> int:
        """Solves factors in turn until none can be improved; returns the number of sweeps."""
        for count in range(1, most + 1):
            for name in order:
                if name not in self._settled:
                    self.step(name)
            if self._settled.issuperset(order):
                return count
        return most

    def step(self, name: str, among: Sequence[int] | None = None) -> bool:
        """Moves one factor to its best place; says whether it moved.

        Args:
            name: The factor.
            among: Of its terms only these count, and those that counted before.
        """
        self.solves += 1
        totals = self._gains(name, among)
        if len(self._taken[name]) == len(self.axes.terms[name]):
            self._settled.add(name)
        if not totals:
            return False
        best, places = self._best(totals), self.axes.places[name]
        chosen = best_permutation(best, self._home[name])
        values = best[places, chosen]
        gained = values - sum(total.diagonal() for total in totals.values())
        if gained.sum(dtype=np.float64) <= self.precision * np.abs(values).sum(dtype=np.float64):
            return False
        flips = {s: _signs_of(m[places, chosen]) for s, m in totals.items() if s is not None}
        self._move(name, chosen, flips)
        return True

    def _gains(self, name: str, among: Sequence[int] | None) -> Mapping[str | None, Matrix]:
        """What unit ``j`` is worth in place ``i``: apart for what each sign flips, and no sign."""
        terms, totals, taken = self.axes.terms[name], self._totals[name], self._taken[name]
        for k in range(len(terms)) if among is None else among:
            if k not in taken:
                taken.add(k)
                term = terms[k]
                to, now, sign = self._to[term.tensor], self._now[term.tensor], term.own.sign
                totals[sign] = _add_gains(totals.get(sign), to, now, term)
        return totals

    def _best(self, totals: Mapping[str | None, Matrix]) -> Matrix:
        """The gains with the best signs."""
        best = totals.get(None)
        for sign, part in totals.items():
            if sign is None:
                continue
            if best is None:
                best = np.abs(part)
            else:
                size = np.abs(part, out=self._scratch("size", part))
                best = np.add(best, size, out=self._scratch("best", part))
        assert best is not None
        return best

    def _scratch(self, what: str, like: Matrix) -> Matrix:
        """A matrix to write to, valid until the next step: fresh memory is slow."""
        key = (what, len(like))
        if key not in self._buffers:
            self._buffers[key] = np.empty_like(like)
        return self._buffers[key]

    # -- moving ----------------------------------------------------------------------------------

    def _move(self, name: str, order: Indices, flips: dict[str, Flips]) -> None:
        """Puts units in new places and flips them, and brings gains up to date.

        Args:
            name: The factor.
            order: For each place where its new unit is now.
            flips: How units are flipped on the way.
        """
        self.__dict__.pop("aligned", None)
        flips = {sign: values for sign, values in flips.items() if (values < 0).any()}
        changed = self._changed(name, order, flips)
        for touched in self.axes.touched[name]:
            self._touch(touched, order, flips, changed)
        for sign, total in self._totals[name].items():
            self._totals[name][sign] = _take(total, order, 1)
            if sign in flips:
                self._totals[name][sign] *= flips[sign]
        self._settled -= self.plans[name].neighbours - {name}

    def _changed(self, name: str, order: Indices, flips: dict[str, Flips]) -> Indices | None:
        """Notes where units and signs are from now on; the places that change, if they are few."""
        places = self.axes.places[name]
        differs = order != places
        for sign in {term.own.sign for term in self.axes.terms[name]} - {None}:
            if sign in self._signs:
                self._signs[sign] = self._signs[sign][order] * flips.get(sign, 1)
            elif sign in flips:
                self._signs[sign] = flips[sign]
        for values in flips.values():
            differs = differs | (values < 0)
        back = np.empty_like(places)
        back[order] = places
        self._order[name], self._home[name] = self._order[name][order], back[self._home[name]]
        changed = differs.nonzero()[0]
        return changed if 2 * len(changed) < len(places) else None

    def _touch(
        self, touched: Touched, order: Indices, flips: dict[str, Flips], changed: Indices | None
    ) -> None:
        """Moves one axis of a tensor, and adds to gains of other factors what that changes."""
        name, axis = touched.tensor, touched.axis
        before, to = self._now[name], self._to[name]
        known = [(f, k) for f, k in touched.readers if k in self._taken[f]]
        if changed is None:
            after = _moved(before, axis, order, flips)
            self._now[name] = after
            difference = after - before if known else after
        else:
            after = _moved(before, axis, order, flips, changed)
            if known:
                to = to.take(changed, axis.place)
                difference = after - before.take(changed, axis.place)
            if name not in self._fresh:
                self._now[name] = before.copy()
            self._now[name][(slice(None),) * axis.place + (changed,)] = after
        self._fresh.add(name)
        for other, k in known:
            term, totals = self.axes.terms[other][k], self._totals[other]
            sign = term.own.sign
            totals[sign] = _add_gains(totals[sign], to, difference, term)

    # -- ties ------------------------------------------------------------------------------------

    def glance(self, name: str, side: int) -> Iterator[Matrix]:
        """Some numbers of each unit in ``to`` (0) or the weights (1): different if units are."""
        for term in self.axes.glanced[name]:
            matrix = (self._now if side else self._to)[term.tensor].reshape(term.matrix)
            yield (matrix[:1] if term.own.place else matrix[:, :1].T)

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """All numbers of each unit, in ``to`` and in the aligned weights, as one copy."""
        sides: list[list[Tensor]] = [[], []]
        for term in self.axes.terms[name]:
            for found, arrays in zip(sides, (self._to, self._now), strict=True):
                tensor = torch.from_numpy(arrays[term.tensor]).movedim(term.own.place, 0)
                found.append(tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None])
        return torch.cat(sides[0], 1)[None], torch.cat(sides[1], 1)[None]

    def reorder(self, name: str, order: Tensor) -> None:
        """Moves units of one factor, signs with them."""
        self._move(name, order.numpy(), {})


def _add_gains(total: Matrix | None, left: Matrix, right: Matrix, term: AxisTerm) -> Matrix:
    """Adds inner products of all units of two tensors to a matrix, in place if there is one."""
    if term.arrangement:
        left, right = (np.ascontiguousarray(x.transpose(term.arrangement)) for x in (left, right))
    one, other = left.reshape(term.matrix), right.reshape(term.matrix)
    one, other = (one.T, other) if term.own.place else (one, other.T)
    if left.size < _LARGE:
        products = one @ other
        return products if total is None else np.add(total, products, out=total)
    first, second = torch.from_numpy(one), torch.from_numpy(other)
    if total is None:
        return (first @ second).numpy()
    torch.from_numpy(total).addmm_(first, second)
    return total


def _moved(
    array: Matrix,
    axis: Axis,
    order: Indices,
    signs: Mapping[str, Flips],
    places: Indices | None = None,
) -> Matrix:
    """A tensor with one axis in a new order and flipped, or some places of it."""
    moved = _take(array, order if places is None else order[places], axis.place)
    if axis.sign is not None and axis.sign in signs:
        flips = signs[axis.sign] if places is None else signs[axis.sign][places]
        shape = [1] * array.ndim
        shape[axis.place] = -1
        moved *= flips.reshape(shape)
    return moved


def _take(array: Matrix, order: Indices, place: int) -> Matrix:
    if array.size < _LARGE:
        return array.take(order, place)
    return torch.from_numpy(array).index_select(place, torch.from_numpy(order)).numpy()


def _signs_of(gains: Matrix) -> Flips:
    """Signs that make gains positive; where there is nothing to gain they stay."""
    return np.where(gains < 0, gains.dtype.type(-1), gains.dtype.type(1))


def _taken(table: Tensor, order: Indices) -> Tensor:
    return torch.from_numpy(table.numpy().take(order, 0))
