"""Coordinate ascent for groups whose factors move whole axes.

The same steps as :class:`coset.alignment.any_group.ascent.Ascent` takes, kept lean.  The weights
are held as they are aligned now, and for each factor the sum of its gains between places and the
units that are in them: a factor's own moves permute the columns, a neighbour's add what they
changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import isfinite

import numpy as np
from torch import Tensor

from coset.alignment.assignment import Indices, Matrix, best_permutation
from coset.alignment.whole_axes import strips
from coset.alignment.whole_axes.axes import Axes, AxisTerm, Touched
from coset.alignment.whole_axes.held import Held, inner_product
from coset.alignment.whole_axes.moving import Moving, Turn
from coset.alignment.whole_axes.slots import flips_of, with_best_signs, worth_at
from coset.alignment.whole_axes.soft import SoftPermutations
from coset.alignment.whole_axes.staying import Known, surely_stay
from coset.alignment.whole_axes.unit_products import add_products, taken
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_WORTHWHILE = 2**17
"""Numbers from which it is tried to leave them out."""


class WholeAxesAscent:
    """The working state: the weights as they are aligned now, and what is known of all gains.

    Gains and signs of a factor have one matrix and one row for each of its slots: see ``Axes``.

    Attributes:
        solves: How many assignments were looked for.
        precision: Relative gain below which an improvement is taken for rounding.
    """

    def __init__(
        self, group: SymmetryGroup, axes: Axes, to: Weights, source: Weights, element: Element
    ) -> None:
        self.axes = axes
        self.plans = axes.plans
        self.solves = 0
        self._given = (to, source)
        self._to, self._own = Held.of(axes, to), Moving(group, axes, source, element)
        self._totals: dict[str, Matrix] = {}
        self._turns: dict[str, Turn] = {}  # moves that totals wait for
        self._solved: dict[str, tuple[Matrix, Indices]] = {}  # the best gains, and what they led to
        self._doubts: dict[str, float] = {}  # after that, where it was asked
        self._taken: dict[str, set[int]] = {name: set() for name in axes.terms}
        self._settled: set[str] = set()
        self._distinct: set[str] = set()
        self._doubtful: bool | None = None  # not looked at since something moved
        kinds = (tensor.numpy().dtype for tensor in source.values())
        self._kind = next(kinds, np.dtype(np.float64))
        self.precision = 1e-6 if self._kind == np.float32 else 1e-12

    # -- what has been found ---------------------------------------------------------------------

    @property
    def permutations(self) -> dict[str, Tensor]:
        """For each factor the unit that is in each place."""
        return self._own.permutations

    @property
    def element(self) -> Element:
        """What has been done so far."""
        return self._own.element

    @cached_property
    def aligned(self) -> Weights:
        """The weights after what was found; ask for it when nothing moves any more."""
        return self._own.handed_out()

    def finite(self) -> bool:
        """Whether what is not compared is finite too, in both: the objective tells the rest."""
        with np.errstate(all="ignore"):
            if not isfinite(np.dot(self._to.vectors, self._own.held.vectors)):
                return False
        apart = [given[name] for given in self._given for name in self.axes.apart]
        return all(bool(tensor.isfinite().all()) for tensor in apart)

    def objective(self) -> float:
        """``<to, aligned>`` over the tensors that are matched, to working precision.

        The diagonals of a factor's gains add up to what the tensors it moves are worth.  So once
        all gains are known, only tensors that fewer factors move than others are multiplied.
        """
        axes, now = self.axes, self._own.held
        known = len(self._totals) == len(axes.terms) and all(
            len(taken) == len(axes.terms[n]) for n, taken in self._taken.items()
        )
        if not known:
            return inner_product(self._to, now, axes.once, 1)
        value = inner_product(self._to, now, axes.less, axes.most - 1)
        for name in self._totals:
            value += float(np.add.reduce(self._worth(name), None, np.float64))
        return value / axes.most

    # -- the ascent ------------------------------------------------------------------------------

    def anchored_start(self) -> None:
        """Solves every factor once, from what is already known to fit."""
        for name, terms in self.axes.anchored:
            self.step(name, terms)

    def softly(self, order: Sequence[str], rounds: int) -> Iterator[tuple[str, Turn]]:
        """For each factor the move that soft permutations point to after some rounds from here."""
        soft = SoftPermutations(self.axes, self._to, self._own.held)
        soft.soften({name: self._gains(name, None) for name in order}, rounds)
        return soft.turns()

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
        if name in self._solved and self._keeps(name, totals, best):
            return False
        chosen = best_permutation(best, self._own.home(name))
        worth = worth_at(totals, self.axes.rows[name] + chosen)
        flips = flips_of(worth, len(self.axes.signs[name]))
        if flips is not None:
            worth *= flips[: len(worth)]
        gained = np.add.reduce(worth - _diagonals(totals), None, np.float64)
        moves = gained > self.precision * np.add.reduce(np.abs(worth), None)
        self._solved[name] = best, chosen if moves else self.axes.places[name]
        self._doubts.pop(name, None)
        if not moves:
            return False
        self.move(name, Turn(chosen, flips))
        return True

    def in_doubt(self) -> bool:
        """Whether soft permutations are of use and some units might as well be elsewhere."""
        return self.axes.mixed is not None and self.leaves_doubts()

    def leaves_doubts(self) -> bool:
        """Whether some units might as well be elsewhere."""
        if self._doubtful is None:
            self._doubtful = any(map(self._in_doubt, self.axes.terms))
        return self._doubtful

    def _in_doubt(self, name: str) -> bool:
        """Whether two units would together be worth more if one could be in both their places."""
        if name not in self._solved or len(self._taken[name]) < len(self.axes.terms[name]):
            return False  # nothing is compared, or a part has proved that all stay
        doubt = self._doubt(name)
        if doubt < -self.precision:  # of equals one would be worth as much in the other's place
            self._distinct.add(name)
        return doubt > self.precision

    def _doubt(self, name: str) -> float:
        """By how much a unit is nearer to another's place than the two are to their own.

        ``2 A[i, j] > A[i, i] + A[j, j]`` says that unit ``j`` is nearer to place ``i`` than the two
        are to their own, in the mean.  Between copies, where ``A[i, j]`` is ``<w_i, w_j>``, never.
        The largest difference, as a share of the largest ``A[i, i]``.
        """
        if name not in self._doubts:
            best, order = self._solved[name]
            pairs = self.axes.rows[name] + order
            half = best.take(pairs) / 2
            prices = np.empty_like(half)
            prices[order] = half
            others = best - prices
            others.reshape(-1)[pairs] = -np.inf
            most = np.maximum.reduce(np.maximum.reduce(others, 1) - half)
            self._doubts[name] = float(most / (np.maximum.reduce(np.abs(half)) or 1.0))
        return self._doubts[name]

    def _keeps(self, name: str, totals: Matrix, best: Matrix) -> bool:
        """Whether all units are where they should be, beyond doubt: no assignment is better then.

        Half the gains of units where they are, as prices, make each the dearest of its place.
        """
        worth = _diagonals(totals)[: len(self.axes.signs[name])]
        if len(worth) and np.minimum.reduce(worth, None) < 0:
            return False
        self._solved[name] = best, self.axes.places[name]
        self._doubts.pop(name, None)
        return self._doubt(name) < -self.precision

    def distinct(self, name: str) -> bool:
        """Whether all units of a factor are known to differ, in ``to`` and in the weights."""
        return name in self._distinct

    def _stays(self, name: str) -> bool:
        """Whether a part of the terms proves that nothing moves: then the rest is not compared."""
        terms, known = self.axes.terms[name], self._taken[name]
        if len(known) == len(terms):
            return False
        rest = [term for k, term in enumerate(terms) if k not in known]
        if len(self.axes.places[name]) * sum(term.features for term in rest) < _WORTHWHILE:
            return False
        totals = self._gains(name, () if known else (self.axes.telling[name],))
        rest = [term for k, term in enumerate(terms) if k not in known]
        best, signs = self._best(name, totals), len(self.axes.signs[name])
        prices: Matrix | float = 0.0
        vectors = self.axes.strips[name].compared
        if vectors:
            to, now = self._to.rows[name][:vectors], self._own.rows[name][:vectors]
            prices = np.add.reduce((now - to) * now, 0) / 2
        return surely_stay(Known(best, _diagonals(totals), signs, prices), rest, self._sides)

    def _sides(self, term: AxisTerm) -> tuple[Matrix, Matrix]:
        """The tensor of a term in both networks."""
        return self._to.arrays[term.tensor], self._own.array(term.tensor)

    # -- gains -----------------------------------------------------------------------------------

    def _gains(self, name: str, among: Sequence[int] | None) -> Matrix:
        """What unit ``j`` is worth in place ``i``, slot by slot."""
        terms, known = self.axes.terms[name], self._taken[name]
        totals = self._known(name)
        for k in range(len(terms)) if among is None else among:
            if k not in known:
                known.add(k)
                term = terms[k]
                add_products(totals[term.slot], *self._sides(term), term)
        return totals

    def _known(self, name: str) -> Matrix:
        """The gains in what was compared before; in the vectors, if nothing was."""
        totals, turn = self._totals.get(name), self._turns.pop(name, None)
        if totals is None:
            size, strip = len(self.axes.places[name]), self.axes.strips[name]
            if strip.compared:
                totals = strips.products(strip, self._to.rows[name], self._own.rows[name])
            else:
                totals = np.zeros((strip.depth, size, size), self._kind)
        elif turn is not None:
            totals = taken(totals, turn.order, 2)
            if turn.flips is not None:
                totals *= turn.flips[: len(totals), None]
        self._totals[name] = totals
        return totals

    def _worth(self, name: str) -> Matrix:
        """What units are worth where they are, slot by slot."""
        totals, turn = self._totals[name], self._turns.get(name)
        if turn is None:
            return _diagonals(totals)
        worth = worth_at(totals, self.axes.rows[name] + turn.order)
        return worth if turn.flips is None else worth * turn.flips[: len(totals)]

    def _best(self, name: str, totals: Matrix) -> Matrix:
        """The gains with the best signs."""
        return with_best_signs(totals, len(self.axes.signs[name]))

    # -- moving ----------------------------------------------------------------------------------

    def move(self, name: str, by: Turn) -> None:
        """Moves the units of a factor, and brings gains up to date."""
        self.__dict__.pop("aligned", None)
        self._distinct.clear()
        self._doubtful = None
        if name in self._totals:
            self._known(name)
            self._turns[name] = by
        self._own.turn(name, by)
        for touched in self.axes.touched[name]:
            self._touch(touched, by)
        self._settled -= self.plans[name].neighbours - {name}

    def _touch(self, touched: Touched, by: Turn) -> None:
        """Moves one axis of a tensor, and adds to gains of other factors what that changes."""
        known = [(f, k) for f, k in touched.readers if k in self._taken[f]]
        if not known:
            self._own.turn_later(touched, by)
            return
        difference, to = self._own.turn_now(touched, by), self._to.arrays[touched.tensor]
        if by.changed is not None:
            to = taken(to, by.changed, touched.place)
        for other, k in known:
            term = self.axes.terms[other][k]
            add_products(self._known(other)[term.slot], to, difference, term)

    # -- ties ------------------------------------------------------------------------------------

    def glance(self, name: str, side: int) -> Iterator[Matrix]:
        """Some numbers of each unit in ``to`` (0) or the weights (1): different if units are."""
        return (self._own.held if side else self._to).glance(name)

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """All numbers of each unit, in ``to`` and in the aligned weights, as one copy."""
        return self._to.units(name)[None], self._own.held.units(name)[None]

    def reorder(self, name: str, order: Tensor, flips: Mapping[str, Tensor] | None = None) -> None:
        """Moves units of one factor, signs with them, and flips them where they arrive.

        Args:
            name: The factor.
            order: For each place where its new unit is now.
            flips: Signs along the factor by name, place by place.
        """
        slots: Matrix | None = None
        if flips:
            signs = self.axes.signs[name]
            slots = np.ones((len(signs) + 1, len(order)), self._kind)
            for sign in flips.keys() & set(signs):
                slots[signs.index(sign)] = flips[sign].numpy()
        self.move(name, Turn(order.numpy(), slots))


def _diagonals(totals: Matrix) -> Matrix:
    size = totals.shape[-1]  # of a factor that nothing compares there are no matrices
    return totals.reshape(len(totals), size * size)[:, :: size + 1]
