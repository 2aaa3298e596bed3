"""A proof that units stay, from a part of what there is to compare.

Let ``K`` be the gains in some tensors, with the best signs, ``d`` what units are worth where they
are in all tensors, and ``a`` and ``b`` the norms of places and of units in the others.  Unit ``j``
is worth at most ``K[i, j] + a[i] b[j]`` in place ``i``.  If for some prices ``v`` that is less than
``d[i] - v[i] + v[j]`` whenever ``i ≠ j``, every other permutation is worse: summed over its cycles
the prices cancel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from coset.alignment.assignment import Indices, Matrix
from coset.alignment.axes import AxisTerm

_SAMPLE = 4
"""Units that are tried before all are."""
_MARGIN = 1e-3
"""Relative difference that rounding cannot make."""


@dataclass(frozen=True)
class Known:
    """What is known of a factor.

    Attributes:
        best: Gains with the best signs, in the tensors that were compared.
        worth: What units are worth there where they are, slot by slot.
        signs: How many of the slots have a sign.
        prices: What is added to the prices of units, which are half their worth: half of what
            their squared norms exceed it by, where that is at hand.
    """

    best: Matrix
    worth: Matrix
    signs: int
    prices: Matrix | float

    def among(self, units: Indices) -> "Known":
        """The same for some units."""
        prices = self.prices if isinstance(self.prices, float) else self.prices[units]
        return Known(self.best[units[:, None], units], self.worth[:, units], self.signs, prices)


Sides = Callable[[AxisTerm], tuple[Matrix, Matrix]]
"""The tensor of a term in both networks."""


def surely_stay(known: Known, rest: Sequence[AxisTerm], sides: Sides) -> bool:
    """Whether no other permutation and no other signs are as good as what is there.

    Args:
        known: The factor.
        rest: The terms that were not compared.
        sides: Gives their tensors.
    """
    size = len(known.best)
    few = np.arange(0, size, max(size // _SAMPLE, 1))

    def sample(term: AxisTerm) -> tuple[Matrix, Matrix]:
        to, now = sides(term)
        return to.take(few, term.own.place), now.take(few, term.own.place)

    # another term can only make it worse, and so can other units: most fail here
    largest = max(rest, key=lambda term: term.features)
    return _stay(known.among(few), [largest], sample) and _stay(known, rest, sides)


def _stay(known: Known, rest: Sequence[AxisTerm], sides: Sides) -> bool:
    worth, squares = known.worth.copy(), np.zeros((2, len(known.best)))
    for term in rest:
        to, now = sides(term)
        worth[term.slot] += unit_products(to, now, term)
        squares[0] += unit_products(to, to, term)
        squares[1] += unit_products(now, now, term)
    if (worth[: known.signs] < 0).any():
        return False
    total = worth.sum(0)
    prices = total / 2 + known.prices
    places, units = np.sqrt(squares).astype(total.dtype)
    most = np.multiply.outer(places, units)
    most += known.best
    most -= prices
    np.fill_diagonal(most, -np.inf)
    margin = _MARGIN * np.abs(total).max()
    return bool((np.maximum.reduce(most, 1) < total - prices - margin).all())


def unit_products(left: Matrix, right: Matrix, term: AxisTerm) -> Matrix:
    """The inner product of each unit with the one in its place.

    >>> from coset.alignment.axes import Axis
    >>> term = AxisTerm("weight", Axis(1, "units", None), 0, frozenset(), 2, (), (-1, 2))
    >>> unit_products(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]), term)
    array([4., 4.])
    """
    place, size = term.own.place, left.shape[term.own.place]
    if place == 0:
        sums = np.einsum("ij,ij->i", left.reshape(size, -1), right.reshape(size, -1))
    else:  # sums over what comes before the units run along contiguous memory
        rows = prod(left.shape[:place])
        sums = np.einsum("ij,ij->j", left.reshape(rows, -1), right.reshape(rows, -1))
    found: Matrix = np.add.reduce(sums.reshape(size, -1), 1)
    return found
