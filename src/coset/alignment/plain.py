"""Coordinate ascent for groups whose factors move whole axes.

The same steps as :class:`coset.alignment.ascent.Ascent` takes, kept lean: gains are held term by
term, between places of ``to`` and units of the weights as they were given, so that a factor's own
moves change nothing; when a neighbour moves few units, only these are compared again.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import Indices, Matrix, best_permutation
from coset.alignment.axes import Axes, AxisTerm
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_LARGE = 2**14
"""Numbers from which torch multiplies and transposes faster than numpy."""


class PlainAscent:
    """The working state: for each place the unit that is there, and its signs."""

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
        self._source = {n: source[n].numpy().reshape(view) for n, view in axes.views.items()}
        sizes = {factor.name: factor.size for factor in group.permutations}
        self._rows = {name: np.arange(size) for name, size in sizes.items()}
        self._order = dict(self._rows)
        self._home = {n: p.numpy().argsort() for n, p in element.permutations.items()}
        self._signs: dict[str, NDArray[np.floating]] = {}
        self._known: dict[tuple[str, int], Matrix] = {}
        self._buffers: dict[tuple[str, int], Matrix] = {}
        self._copies: dict[tuple[int, str, int], Matrix] = {}
        single = any(tensor.dtype == np.float32 for tensor in self._to.values())
        self.precision = 1e-6 if single else 1e-12

    # -- what has been found ---------------------------------------------------------------------

    @property
    def permutations(self) -> dict[str, Tensor]:
        """For each factor the unit that is in each place."""
        before = self._begin.permutations
        return {name: before[name][torch.from_numpy(o)] for name, o in self._order.items()}

    @property
    def element(self) -> Element:
        """What has been done so far."""
        scales = dict(self._begin.scales)
        for scaling in self.group.scalings:
            if scaling.along is not None:
                order = torch.from_numpy(self._order[scaling.along])
                scales[scaling.name] = scales[scaling.name][order]
            if scaling.name in self._signs:
                scales[scaling.name] = scales[scaling.name] * torch.from_numpy(
                    self._signs[scaling.name]
                )
        return Element(self.permutations, scales)

    @cached_property
    def aligned(self) -> Weights:
        """The weights after what was found; ask for it when nothing moves any more."""
        found = dict(self._given)
        for name in self.axes.moved:
            array = self._now(name)
            moved = torch.from_numpy(array).reshape(found[name].shape)
            found[name] = moved.clone() if array is self._source[name] else moved
        return found

    def objective(self) -> float:
        """``<to, aligned>`` over the tensors that are matched, to working precision."""
        return float(sum(self._value(name, terms) for name, terms in self.axes.compared.items()))

    def _value(self, tensor: str, terms: Sequence[tuple[str, int]]) -> float:
        """The part of one tensor, from a gain that is at hand if there is one."""
        for name, k in terms:
            if (name, k) in self._known:
                gains = self._known[(name, k)][self._rows[name], self._order[name]]
                sign = self.axes.terms[name][k].own.sign
                flips = None if sign is None else self._signs.get(sign)
                return float(gains.sum() if flips is None else gains @ flips)
        return float(np.dot(self._to[tensor].ravel(), self._now(tensor).ravel()))

    def _now(self, tensor: str) -> Matrix:
        """A tensor of the weights after what was found."""
        array = self._source[tensor]
        for axis in self.axes.moved[tensor]:
            array = self._moved(array, axis.place, axis.factor, axis.sign)
        return array

    # -- the ascent ------------------------------------------------------------------------------

    def anchored_start(self) -> None:
        """Solves every factor once, from what is already known to fit."""
        for name, terms in self.axes.anchored:
            self.step(name, terms)

    def sweep(self, order: Sequence[str], *, most: int) -> int:
        """Solves factors in turn until none can be improved; returns the number of sweeps."""
        waiting = set(order)
        for count in range(1, most + 1):
            for name in order:
                if name in waiting:
                    waiting.discard(name)
                    if self.step(name):
                        waiting |= self.plans[name].neighbours - {name}
            if not waiting:
                return count
        return most

    def step(self, name: str, among: Sequence[int] | None = None) -> bool:
        """Moves one factor to its best place; says whether it moved.

        Args:
            name: The factor.
            among: Only these of its terms count.
        """
        self.solves += 1
        plain, signed = self._totals(name, among)
        best = plain
        for part in signed.values():
            if best is None:
                best = np.abs(part)
                continue
            size = np.abs(part, out=self._scratch("size", part))
            best = np.add(best, size, out=self._scratch("best", part))
        if best is None:
            return False
        rows, before = self._rows[name], self._order[name]
        chosen = best_permutation(best, self._home[name])
        values = best[rows, chosen]
        current = 0.0 if plain is None else plain[rows, before]
        for sign, part in signed.items():
            current = current + part[rows, before] * self._signs.get(sign, 1.0)
        gained = (values - current).sum(dtype=np.float64)
        if gained <= self.precision * np.abs(values).sum(dtype=np.float64):
            return False
        signs = {sign: self._best_signs(sign, m[rows, chosen]) for sign, m in signed.items()}
        self._move(name, chosen, signs)
        return True

    def _totals(
        self, name: str, among: Sequence[int] | None
    ) -> tuple[Matrix | None, dict[str, Matrix]]:
        """The gains of a factor's terms added up: those no sign flips, and those each sign does."""
        terms = self.axes.terms[name]
        totals: dict[str | None, Matrix] = {}
        for k in range(len(terms)) if among is None else among:
            gain, sign = self._gain(name, k), terms[k].own.sign
            if sign in totals:
                where = f"total {list(totals).index(sign)}"
                gain = np.add(totals[sign], gain, out=self._scratch(where, gain))
            totals[sign] = gain
        plain = totals.pop(None, None)
        return plain, {sign: total for sign, total in totals.items() if sign is not None}

    def _scratch(self, what: str, like: Matrix) -> Matrix:
        """A matrix to write to, valid until the next step: fresh memory is slow."""
        key = (what, len(like))
        if key not in self._buffers:
            self._buffers[key] = np.empty_like(like)
        return self._buffers[key]

    def _best_signs(self, sign: str, gains: NDArray[np.floating]) -> NDArray[np.floating]:
        """Signs that make gains positive; where there is nothing to gain they stay."""
        return np.where(gains == 0, self._signs.get(sign, 1.0), np.where(gains < 0, -1.0, 1.0))

    # -- gains -----------------------------------------------------------------------------------

    def _gain(self, name: str, k: int) -> Matrix:
        """What unit ``j`` is worth in place ``i``, at one term of a factor."""
        known = self._known.get((name, k))
        if known is None:
            term = self.axes.terms[name][k]
            right = self._arranged(1, term)
            for axis in term.others:
                right = self._moved(right, axis.place, axis.factor, axis.sign)
            known = self._known[(name, k)] = _compare(self._arranged(0, term), right, term)
        return known

    def _arranged(self, side: int, term: AxisTerm) -> Matrix:
        """A tensor of ``to`` (0) or of the weights (1), its units along the first or last axis."""
        tensor = (self._source if side else self._to)[term.tensor]
        if not term.arrangement:
            return tensor
        key = (side, term.tensor, term.own.place)
        known = self._copies.get(key)
        if known is None:
            if tensor.size < _LARGE:
                known = np.ascontiguousarray(tensor.transpose(term.arrangement))
            else:
                known = torch.from_numpy(tensor).permute(term.arrangement).contiguous().numpy()
            self._copies[key] = known
        return known

    def _moved(self, array: Matrix, place: int, factor: str, sign: str | None) -> Matrix:
        """A tensor with one axis as it is now."""
        order = self._order[factor]
        if order is not self._rows[factor]:
            array = array.take(order, place)
        flips = None if sign is None else self._signs.get(sign)
        if flips is not None:
            array = array * _along(flips, place, array.ndim).astype(array.dtype)
        return array

    def _move(self, name: str, order: Indices, signs: dict[str, NDArray[np.floating]]) -> None:
        """Puts units and signs in their new places, and brings gains up to date."""
        self.__dict__.pop("aligned", None)
        moved = order != self._order[name]
        for sign, flips in signs.items():
            moved |= flips != self._signs.get(sign, 1.0)
        (changed,) = moved.nonzero()
        few = 2 * len(changed) <= len(order)
        stale = [place for place in self.axes.touching[name] if place[:2] in self._known]
        before = [self._some(*place, changed) for place in stale] if few else []
        self._order[name] = order
        for sign, flips in signs.items():
            if sign in self._signs or (flips < 0).any():
                self._signs[sign] = flips
        for k, (other, number, where) in enumerate(stale):
            if not few:
                del self._known[(other, number)]
                continue
            term = self.axes.terms[other][number]
            after = self._some(other, number, where, changed)
            left = self._arranged(0, term).take(changed, term.others[where].place)
            update = _compare(left, after - before[k], term)
            self._known[(other, number)] = self._known[(other, number)] + update

    def _some(self, name: str, k: int, where: int, places: Indices) -> Matrix:
        """The weights at a term as they are now, at some places of one of its other axes."""
        term = self.axes.terms[name][k]
        array = self._arranged(1, term)
        for number, axis in enumerate(term.others):
            if number != where:
                array = self._moved(array, axis.place, axis.factor, axis.sign)
        axis = term.others[where]
        array = array.take(self._order[axis.factor][places], axis.place)
        flips = None if axis.sign is None else self._signs.get(axis.sign)
        if flips is not None:
            array = array * _along(flips[places], axis.place, array.ndim).astype(array.dtype)
        return array

    # -- ties ------------------------------------------------------------------------------------

    def glance(self, name: str, side: int) -> Iterator[Matrix]:
        """Some numbers of each unit in ``to`` (0) or the weights (1): different if units are."""
        for term in self.axes.glanced[name]:
            tensor = (self._source if side else self._to)[term.tensor]
            column = tensor.reshape(term.matrix)
            column = column[0] if term.last else column[:, 0]
            yield (column[self._order[name]] if side else column)[None]

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """All numbers of each unit, in ``to`` and in the aligned weights, as one copy."""
        sides: list[list[Tensor]] = [[], []]
        for term in self.axes.terms[name]:
            view = self.axes.views[term.tensor]
            to, own = torch.from_numpy(self._to[term.tensor]), self.aligned[term.tensor]
            for found, tensor in zip(sides, (to, own.reshape(view)), strict=True):
                found.append(tensor.movedim(term.own.place, 0).reshape(view[term.own.place], -1))
        return torch.cat(sides[0], 1)[None], torch.cat(sides[1], 1)[None]

    def reorder(self, name: str, order: Tensor) -> None:
        """Moves units of one factor, signs with them."""
        new = order.numpy()
        signs = {
            term.own.sign: self._signs[term.own.sign][new]
            for term in self.axes.terms[name]
            if term.own.sign in self._signs
        }
        self._move(name, self._order[name][new], signs)


def _compare(left: Matrix, right: Matrix, term: AxisTerm) -> Matrix:
    """Inner products of all units of two arrangements."""
    one, other = left.reshape(term.matrix), right.reshape(term.matrix)
    if left.size < _LARGE:
        return one.T @ other if term.last else one @ other.T
    first, second = torch.from_numpy(one), torch.from_numpy(other)
    return (first.T @ second if term.last else first @ second.T).numpy()


def _along(values: Matrix, place: int, dimensions: int) -> Matrix:
    shape = [1] * dimensions
    shape[place] = -1
    return values.reshape(shape)
