"""Coordinate ascent for groups whose factors move whole axes.

The same steps as :class:`coset.alignment.ascent.Ascent` takes, kept lean.  The weights are held as
they are aligned now, and for each factor the sum of its gains between places and the units that are
in them: a factor's own moves permute the columns, a neighbour's add what they changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coset.alignment import strips
from coset.alignment.assignment import Indices, Matrix, best_permutation
from coset.alignment.axes import Axes, Touched
from coset.alignment.staying import Known, surely_stay
from coset.alignment.unit_products import add_products, moved, taken
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_WORTHWHILE = 2**16
"""Numbers from which it is tried to leave them out."""
_FEW = 0.75
"""Share of the units below which only those that change are gone through."""


class PlainAscent:
    """The working state: the weights as they are aligned now, and what led there.

    Gains and signs of a factor have one matrix and one row for each of its slots: see ``Axes``.

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
        self._to, self._now = (
            {n: given[n].numpy().reshape(axes.views[n]) for n in axes.compared}
            for given in (to, source)
        )
        self._to_rows, self._rows = (strips.packed(axes.strips, given) for given in (to, source))
        self._fresh: set[str] = set()  # copies made here, which may be written to
        self._order = dict(axes.places)
        self._home = dict(axes.places)
        self._at_identity = element is group.remembered("identity", group.identity)
        if not self._at_identity:
            before = _arrays(element.permutations)
            self._home = {n: _inverse(before[n], places) for n, places in axes.places.items()}
        self._signs: dict[str, Matrix] = {}
        self._totals: dict[str, Matrix] = {}
        self._taken: dict[str, set[int]] = {name: set() for name in axes.terms}
        self._settled: set[str] = set()
        self._buffers: dict[tuple[int, ...], Matrix] = {}
        kinds = (tensor.numpy().dtype for tensor in source.values())
        self._kind = next(kinds, np.dtype(np.float64))
        self.precision = 1e-6 if self._kind == np.float32 else 1e-12

    # -- what has been found ---------------------------------------------------------------------

    @property
    def permutations(self) -> dict[str, Tensor]:
        """For each factor the unit that is in each place."""
        before = self.axes.places if self._at_identity else _arrays(self._begin.permutations)
        return {n: torch.from_numpy(before[n][order]) for n, order in self._order.items()}

    @property
    def element(self) -> Element:
        """What has been done so far."""
        scales = dict(self._begin.scales)
        for factor, before in strips.packed(self.axes.scales, scales).items():
            rows, signs = before.take(self._order[factor], 1), len(self.axes.signs[factor])
            if factor in self._signs:
                rows[:signs] *= self._signs[factor][:signs]
            scales.update(strips.unpacked(self.axes.scales[factor], rows))
        return Element(self.permutations, scales)

    @cached_property
    def aligned(self) -> Weights:
        """The weights after what was found; ask for it when nothing moves any more."""
        found = dict(self._given)
        for factor, rows in self._rows.items():
            found.update(strips.unpacked(self.axes.strips[factor], rows.copy()))
        arrays = {n: a if n in self._fresh else a.copy() for n, a in self._now.items()}
        arrays |= {name: self._moved_at_last(name) for name in self.axes.apart}
        for name, array in arrays.items():
            tensor, shape = torch.from_numpy(array), self.group.shapes[name]
            found[name] = tensor if array.shape == shape else tensor.view(shape)
        self._fresh.clear()  # they belong to the caller now
        return found

    def _moved_at_last(self, name: str) -> Matrix:
        """A tensor that is not compared, after all that was found."""
        array = self._given[name].numpy().reshape(self.axes.views[name]).copy()
        for axis in self.axes.moved[name]:
            flips, known = self._signs.get(axis.factor), self.axes.signs[axis.factor]
            own = None if flips is None or axis.sign not in known else known.index(axis.sign)
            order = self._order[axis.factor]
            row = None if flips is None or own is None else flips[own]
            array = moved(array, axis.place, order, row)
        return array

    def objective(self) -> float:
        """``<to, aligned>`` over the tensors that are matched, to working precision.

        The diagonals of a factor's gains add up to what the tensors it moves are worth.  So once
        all gains are known, only tensors that fewer factors move than others are multiplied.
        """
        axes = self.axes
        known = len(self._totals) == len(axes.terms) and all(
            len(taken) == len(axes.terms[n]) for n, taken in self._taken.items()
        )
        most, value = axes.most if known else 1, 0.0
        for name, readers in axes.compared.items():
            left = most - len(readers) * known
            if left:
                value += left * float(np.dot(self._to[name].ravel(), self._now[name].ravel()))
        if most - known:
            for name, rows in self._rows.items():
                part = slice(axes.strips[name].compared)
                value += (most - known) * float(np.vdot(self._to_rows[name][part], rows[part]))
        for totals in self._totals.values() if known else ():
            value += float(np.add.reduce(_diagonals(totals), None, np.float64))
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
        if among is None and self._stays(name):
            self._settled.add(name)
            return False
        self.solves += 1
        totals = self._gains(name, among)
        if len(self._taken[name]) == len(self.axes.terms[name]):
            self._settled.add(name)
        if not len(totals):
            return False
        best = self._best(name, totals)
        chosen = best_permutation(best, self._home[name])
        pairs = self.axes.places[name] * len(chosen) + chosen
        values = best.take(pairs)
        gained = np.add.reduce(values, None, np.float64)
        gained -= np.add.reduce(_diagonals(totals), None, np.float64)
        if gained <= self.precision * np.add.reduce(np.abs(values), None, np.float64):
            return False
        self._move(name, chosen, self._flips(name, totals, pairs))
        return True

    def _stays(self, name: str) -> bool:
        """Whether a part of the terms proves that nothing moves: then the rest is not compared."""
        terms, known = self.axes.terms[name], self._taken[name]
        if len(known) == len(terms):
            return False
        totals = self._gains(name, () if known else (self.axes.telling[name],))
        rest = [term for k, term in enumerate(terms) if k not in known]
        if len(totals[0]) * sum(term.features for term in rest) < _WORTHWHILE:
            return False
        best, signs = self._best(name, totals), len(self.axes.signs[name])
        prices: Matrix | float = 0.0
        if self._compared(name):
            to, now = (rows[name][: self._compared(name)] for rows in (self._to_rows, self._rows))
            prices = np.add.reduce((now - to) * now, 0) / 2
        return surely_stay(
            Known(best, _diagonals(totals), signs, prices),
            rest,
            lambda term: (self._to[term.tensor], self._now[term.tensor]),
        )

    def _gains(self, name: str, among: Sequence[int] | None) -> Matrix:
        """What unit ``j`` is worth in place ``i``, slot by slot."""
        terms, known = self.axes.terms[name], self._taken[name]
        totals = self._totals.get(name)
        if totals is None:
            size, strip = len(self.axes.places[name]), self.axes.strips[name]
            if strip.compared:
                totals = strips.products(strip, self._to_rows[name], self._rows[name])
            else:
                totals = np.zeros((strip.depth, size, size), self._kind)
            self._totals[name] = totals
        for k in range(len(terms)) if among is None else among:
            if k not in known:
                known.add(k)
                term = terms[k]
                to, now = self._to[term.tensor], self._now[term.tensor]
                add_products(totals[term.slot], to, now, term)
        return totals

    def _best(self, name: str, totals: Matrix) -> Matrix:
        """The gains with the best signs."""
        signs = len(self.axes.signs[name])
        sizes = totals[:1]
        if signs:
            sizes = np.abs(totals[:signs], out=self._scratch(signs, len(totals[0])))
        best: Matrix = sizes[0] if len(sizes) == 1 else np.add.reduce(sizes, 0)
        if 0 < signs < len(totals):
            best += totals[-1]
        return best

    def _scratch(self, count: int, size: int) -> Matrix:
        """Matrices to write to, valid until the next step: fresh memory is slow."""
        found = self._buffers.get((count, size))
        if found is None:
            found = self._buffers[count, size] = np.empty((count, size, size), self._kind)
        return found

    def _flips(self, name: str, totals: Matrix, pairs: Indices) -> Matrix | None:
        """Signs that make gains positive, row by row; where there is nothing to gain they stay."""
        signs = len(self.axes.signs[name])
        negative = totals.reshape(len(totals), -1)[:signs].take(pairs, 1) < 0
        if not negative.any():
            return None
        flips = np.ones((signs + 1, len(pairs)), self._kind)
        flips[:signs][negative] = -1
        return flips

    # -- moving ----------------------------------------------------------------------------------

    def _move(self, name: str, order: Indices, flips: Matrix | None) -> None:
        """Puts units in new places and flips them, and brings gains up to date.

        Args:
            name: The factor.
            order: For each place where its new unit is now.
            flips: How units are flipped on the way, for each sign and for none.
        """
        self.__dict__.pop("aligned", None)
        changed = self._changed(name, order, flips)
        for touched in self.axes.touched[name]:
            self._touch(touched, order, flips, changed)
        if name in self._rows:
            rows = self._rows[name].take(order, 1)
            if flips is not None:
                rows *= flips[self.axes.strips[name].index]
            self._rows[name] = rows
        if name in self._totals:
            totals = taken(self._totals[name], order, 2)
            if flips is not None:
                totals *= flips[: len(totals), None]
            self._totals[name] = totals
        self._settled -= self.plans[name].neighbours - {name}

    def _changed(self, name: str, order: Indices, flips: Matrix | None) -> Indices | None:
        """Notes where units and signs are from now on; the places that change, if they are few."""
        differs = order != self.axes.places[name]
        signs = self._signs.get(name)
        if signs is not None:
            self._signs[name] = signs[:, order] if flips is None else signs[:, order] * flips
        elif flips is not None:
            self._signs[name] = flips
        if flips is not None:
            differs |= (flips < 0).any(0)
        self._order[name] = self._order[name][order]
        self._home[name] = _inverse(order, self.axes.places[name])[self._home[name]]
        few = np.count_nonzero(differs) < _FEW * len(order)
        return differs.nonzero()[0] if few else None

    def _touch(
        self, touched: Touched, order: Indices, flips: Matrix | None, changed: Indices | None
    ) -> None:
        """Moves one axis of a tensor, and adds to gains of other factors what that changes."""
        name, place = touched.tensor, touched.place
        before, to = self._now[name], self._to[name]
        own = None if flips is None else flips[touched.slot]
        known = [(f, k) for f, k in touched.readers if k in self._taken[f]]
        if changed is None:
            after = moved(before, place, order, own)
            self._now[name] = after
            difference = after - before if known else after
        else:
            after = moved(before, place, order[changed], None if own is None else own[changed])
            if known:
                to = taken(to, changed, place)
                difference = after - taken(before, changed, place)
            if name not in self._fresh:
                self._now[name] = before.copy()
            self._now[name][(slice(None),) * place + (changed,)] = after
        self._fresh.add(name)
        for other, k in known:
            term = self.axes.terms[other][k]
            add_products(self._totals[other][term.slot], to, difference, term)

    # -- ties ------------------------------------------------------------------------------------

    def glance(self, name: str, side: int) -> Iterator[Matrix]:
        """Some numbers of each unit in ``to`` (0) or the weights (1): different if units are."""
        for term in self.axes.glanced[name]:
            matrix = (self._now if side else self._to)[term.tensor].reshape(term.matrix)
            yield (matrix[:1] if term.own.place else matrix[:, :1].T)
        for row in (self._rows if side else self._to_rows).get(name, ())[: self._compared(name)]:
            yield row[None]

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """All numbers of each unit, in ``to`` and in the aligned weights, as one copy."""
        sides: list[list[Tensor]] = [[], []]
        for term in self.axes.terms[name]:
            for found, arrays in zip(sides, (self._to, self._now), strict=True):
                tensor = torch.from_numpy(arrays[term.tensor]).movedim(term.own.place, 0)
                found.append(tensor.flatten(1))
        for found, rows in zip(sides, (self._to_rows, self._rows), strict=True):
            if name in rows:
                found.append(torch.from_numpy(rows[name][: self._compared(name)]).T)
        return torch.cat(sides[0], 1)[None], torch.cat(sides[1], 1)[None]

    def reorder(self, name: str, order: Tensor) -> None:
        """Moves units of one factor, signs with them."""
        self._move(name, order.numpy(), None)

    def _compared(self, name: str) -> int:
        return self.axes.strips[name].compared


def _diagonals(totals: Matrix) -> Matrix:
    """What units are worth where they are, slot by slot."""
    return totals.reshape(len(totals), -1)[:, :: totals.shape[-1] + 1]


def _inverse(order: Indices, places: Indices) -> Indices:
    found = np.empty_like(places)
    found[order] = places
    return found


def _arrays(tables: Mapping[str, Tensor]) -> dict[str, Indices]:
    return {name: table.numpy() for name, table in tables.items()}
