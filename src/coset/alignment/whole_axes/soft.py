"""Soft permutations: where the units of all factors might go, before each is sent somewhere.

Graduated assignment (Gold and Rangarajan 1996), factor by factor.  While the gains ``A`` of one
factor are summed up, the others mix their units by doubly stochastic matrices; its own becomes

    S = Sinkhorn(β A / std(A)),

and ``β`` grows from round to round.  A hard step decides at once what all later steps build on; a
soft one keeps in play what is about as good.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

import numpy as np

from coset.alignment.assignment import Matrix, best_permutation
from coset.alignment.whole_axes import strips
from coset.alignment.whole_axes.axes import Axes, MixedTerm
from coset.alignment.whole_axes.held import Held
from coset.alignment.whole_axes.moving import Turn
from coset.alignment.whole_axes.slots import flips_of, with_best_signs, worth_at
from coset.linalg.matrix_products import dot

_HARDNESS = (1.0, 4.0)
"""β of the first and of the last round; of a single one the first."""

_NORMALISED = 3
"""How often rows and columns are brought to sum to one: more changed no result by much."""

_KEPT = 2**20
"""Numbers of a network up to which rearranged copies are kept from round to round."""


class SoftPermutations:
    """Soft permutations of all factors between two networks, from the identity.

    Attributes:
        mixing: For each factor that was looked at, slot by slot, which share of unit ``j`` is in
            place ``i``; negative where it is flipped.
    """

    def __init__(self, axes: Axes, to: Held, own: Held) -> None:
        assert axes.mixed is not None
        self.mixing: dict[str, Sequence[Matrix]] = {}
        self._axes = axes
        self._terms = axes.mixed
        self._to, self._own = to, own
        self._unmixed: dict[str, Matrix] = {}
        self._last: dict[str, Matrix] = {}
        self._copies: dict[tuple[str, str], tuple[Matrix, Matrix]] = {}
        self._keep = sum(array.size for array in own.arrays.values()) <= _KEPT

    def soften(self, known: Mapping[str, Matrix], rounds: int) -> None:
        """Looks at all factors in turn, some times over.

        Args:
            known: What units are worth as they are: gains to begin with, all factors at once.
            rounds: How often gains are summed up again.
        """
        for name, gains in known.items():
            self._soften(name, gains, _HARDNESS[0])
        for hardness in np.geomspace(*_HARDNESS, rounds):
            for name in known:
                self._soften(name, self.gains(name), float(hardness))

    def turns(self) -> Iterator[tuple[str, Turn]]:
        """For each factor the hard move that was worth most when it was last looked at.

        Those that are solved in this order before any other reads where they are need none.
        """
        solved: set[str] = set()
        for name, gains in self._last.items():
            solved.add(name)
            if self._axes.plans[name].neighbours & solved == {name}:
                continue
            signs = len(self._axes.signs[name])
            chosen = best_permutation(with_best_signs(gains, signs))
            worth = worth_at(gains, self._axes.rows[name] + chosen)
            yield name, Turn(chosen, flips_of(worth, signs))

    def _soften(self, name: str, gains: Matrix, hardness: float) -> None:
        if not len(gains):
            return
        signs = len(self._axes.signs[name])
        shares = soft_permutation(with_best_signs(gains, signs), hardness)
        self.mixing[name] = (*np.copysign(shares, gains[:signs]), shares)
        self._last[name] = gains

    def gains(self, name: str) -> Matrix:
        """What unit ``j`` is worth in place ``i``, slot by slot, as the others mix theirs."""
        if name not in self._unmixed:
            self._unmixed[name] = self._without_others(name)
        gains = self._unmixed[name].copy()
        for term in self._terms[name]:
            if term.other is not None:
                self._add(gains, name, term)
        return gains

    def _without_others(self, name: str) -> Matrix:
        """The same in tensors that no other factor moves."""
        strip, size = self._axes.strips[name], len(self._axes.places[name])
        if strip.compared:
            gains = strips.products(strip, self._to.rows[name], self._own.rows[name])
        else:
            gains = np.zeros((strip.depth, size, size), self._own.vectors.dtype)
        for term in self._terms[name]:
            if term.other is None:
                self._add(gains, name, term)
        return gains

    def _add(self, gains: Matrix, name: str, term: MixedTerm) -> None:
        """Adds the gains in one tensor."""
        to, own = self._arranged(name, term)
        if term.other in self.mixing:
            rows = own.reshape(term.others, -1)
            own = dot(self.mixing[term.other][term.other_slot], rows).reshape(own.shape)
        gains[term.slot] += dot(to.T, own)

    def _arranged(self, name: str, term: MixedTerm) -> tuple[Matrix, Matrix]:
        """A tensor of both as matrices: units of the other factor and the rest, then the units.

        So units of the other are mixed by one product, and those of the factor compared by one.
        """
        found = self._copies.get((name, term.tensor))
        if found is None:
            to, own = (
                held.arrays[term.tensor].transpose(term.order).reshape(-1, term.units)
                for held in (self._to, self._own)
            )
            found = to, own
            if self._keep and term.other is not None:
                self._copies[name, term.tensor] = found
        return found


def soft_permutation(gains: Matrix, hardness: float) -> Matrix:
    """A nearly doubly stochastic matrix that is large where gains are.

    >>> soft_permutation(np.zeros((2, 2)), 1.0).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    >>> soft_permutation(np.array([[0.0, 1.0], [1.0, 0.0]]), 20.0).round(6).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    gains = gains / (np.maximum.reduce(np.abs(gains), None) or 1.0)  # squares could overflow
    flat = gains.reshape(-1)
    variance = float(np.dot(flat, flat)) / flat.size - (float(np.add.reduce(flat)) / flat.size) ** 2
    scale = hardness / (sqrt(max(variance, 0.0)) or 1.0)
    gains -= np.maximum.reduce(gains, 1)[:, None]
    gains *= scale
    soft: Matrix = np.exp(gains, out=gains)
    soft += np.finfo(soft.dtype).tiny ** 0.75  # a unit that fits nowhere is nowhere and everywhere
    columns = np.ones(len(soft), soft.dtype)
    for _ in range(_NORMALISED):  # what rows and columns are multiplied by
        rows = 1 / np.dot(soft, columns)
        columns = 1 / np.dot(rows, soft)
    soft *= rows[:, None]
    soft *= columns
    return soft
