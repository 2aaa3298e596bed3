"""A network on its way: its tensors as they are aligned now, and the moves that led there."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import Indices, Matrix
from coset.alignment.whole_axes.axes import Axes, Touched
from coset.alignment.whole_axes.held import Held
from coset.alignment.whole_axes.unit_products import moved, taken
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_FEW = 0.75
"""Share of the units below which only those that change are gone through."""


@dataclass(frozen=True)
class Turn:
    """How the units along a factor are moved.

    Attributes:
        order: For each place where its new unit is now.
        flips: How units are flipped on the way, for each sign and for none; ``None``: not at all.
    """

    order: Indices
    flips: Matrix | None = None

    def signs(self, slot: int) -> Matrix | None:
        """How units are flipped in tensors of one slot; the last has no sign."""
        return None if self.flips is None or slot == len(self.flips) - 1 else self.flips[slot]

    @cached_property
    def changed(self) -> Indices | None:
        """The places that change, if they are few.

        >>> Turn(np.array([0, 2, 1, 3])).changed.tolist()
        [1, 2]
        >>> Turn(np.array([1, 2, 3, 0])).changed
        """
        differs = self.order != np.arange(len(self.order))
        if self.flips is not None:
            differs |= (self.flips < 0).any(0)
        few = np.count_nonzero(differs) < _FEW * len(differs)
        return differs.nonzero()[0] if few else None


class Moving:
    """The weights that are moved, by whole axes.

    Attributes:
        order: For each factor where the unit in each place was at the beginning.
        signs: For each factor that was flipped the signs of its units, a row for each slot.
    """

    def __init__(self, group: SymmetryGroup, axes: Axes, source: Weights, element: Element) -> None:
        self.order = dict(axes.places)
        self.signs: dict[str, Matrix] = {}
        self._axes = axes
        self._given = source
        self._held = Held.of(axes, source)
        self._shapes = group.shapes
        self._begin = element
        self._at_identity = element is group.remembered("identity", group.identity)
        self._before = axes.places if self._at_identity else _arrays(element.permutations)
        self._late: dict[str, list[tuple[Touched, Turn]]] = {}
        self._fresh: set[str] = set()  # copies made here, which may be written to

    # -- what is there now -----------------------------------------------------------------------

    def array(self, name: str) -> Matrix:
        """A tensor that is compared: moved when it is read, when it is soon read again."""
        late = self._late.pop(name, None)
        if late is not None:
            array = self._held.arrays[name]
            for touched, by in late:
                array = moved(array, touched.place, by.order, by.signs(touched.slot))
            self._held.arrays[name] = array
            self._fresh.add(name)
        return self._held.arrays[name]

    @property
    def rows(self) -> Mapping[str, Matrix]:
        """For each factor the vectors along it, as rows."""
        return self._held.rows

    @property
    def held(self) -> Held:
        """The whole network, nothing being late."""
        for name in list(self._late):
            self.array(name)
        return self._held

    def home(self, name: str) -> Indices | None:
        """For each place of a factor where the unit is now that was there before all.

        ``None`` if all are where they were.
        """
        places, order = self._axes.places[name], self.order[name]
        if order is places and self._at_identity:
            return None
        units = self._before[name][order]
        home = np.empty_like(units)
        home[units] = places
        return home

    @property
    def permutations(self) -> dict[str, Tensor]:
        """For each factor the unit that is in each place."""
        return {n: torch.from_numpy(self._before[n][order]) for n, order in self.order.items()}

    @property
    def element(self) -> Element:
        """What has been done so far."""
        packing = self._axes.tables
        flat = packing.pack(self._begin.scales)
        # at the identity all scales are one, whatever their order
        for factor in packing.parts if not self._at_identity else ():
            rows = packing.rows_of(factor, flat)
            rows[...] = rows.take(self.order[factor], 1)
        for factor, flips in self.signs.items():
            signs = len(self._axes.signs[factor])
            packing.rows_of(factor, flat)[:signs] *= flips[:signs]
        return Element(self.permutations, {**self._begin.scales, **packing.unpack(flat)})

    def handed_out(self) -> Weights:
        """The weights as they are now, which belong to the caller from then on."""
        held = self.held
        arrays = {n: a if n in self._fresh else a.copy() for n, a in held.arrays.items()}
        arrays.update((name, self._moved_at_last(name)) for name in self._axes.apart)
        found = {**self._given, **self._axes.vectors.unpack(held.vectors.copy())}
        for name, array in arrays.items():
            tensor, shape = torch.from_numpy(array), self._shapes[name]
            found[name] = tensor if array.shape == shape else tensor.view(shape)
        self._fresh.clear()
        return found

    def _moved_at_last(self, name: str) -> Matrix:
        """A tensor that is not compared, after all that was found."""
        array = self._given[name].numpy().reshape(self._axes.views[name]).copy()
        for axis in self._axes.moved[name]:
            flips, known = self.signs.get(axis.factor), self._axes.signs[axis.factor]
            own = None if flips is None or axis.sign not in known else known.index(axis.sign)
            order = self.order[axis.factor]
            row = None if flips is None or own is None else flips[own]
            array = moved(array, axis.place, order, row)
        return array

    # -- moving ----------------------------------------------------------------------------------

    def turn(self, name: str, by: Turn) -> None:
        """Moves the units of a factor with their vectors; their matrices are moved one by one."""
        order, flips = by.order, by.flips
        signs = self.signs.get(name)
        if signs is not None:
            self.signs[name] = signs[:, order] if flips is None else signs[:, order] * flips
        elif flips is not None:
            self.signs[name] = flips
        self.order[name] = self.order[name][order]
        rows = self._held.rows.get(name)
        if rows is not None:
            rows[...] = rows.take(order, 1)
            if flips is not None:
                rows *= flips[self._axes.strips[name].index]

    def turn_later(self, touched: Touched, by: Turn) -> None:
        """Moves one axis of a matrix when it is next read."""
        self._late.setdefault(touched.tensor, []).append((touched, by))

    def turn_now(self, touched: Touched, by: Turn) -> Matrix:
        """Moves one axis of a matrix; returns by how much it changes, in few places if so."""
        name, place, signs, changed = (
            touched.tensor,
            touched.place,
            by.signs(touched.slot),
            by.changed,
        )
        before = self.array(name)
        if changed is None:
            after = self._held.arrays[name] = moved(before, place, by.order, signs)
            difference: Matrix = after - before
        else:
            some = None if signs is None else signs[changed]
            after = moved(before, place, by.order[changed], some)
            difference = after - taken(before, changed, place)
            now = self._held.arrays[name] = before if name in self._fresh else before.copy()
            now[(slice(None),) * place + (changed,)] = after
        self._fresh.add(name)
        return difference


def _arrays(tables: Mapping[str, Tensor]) -> dict[str, Indices]:
    return {name: table.numpy() for name, table in tables.items()}
