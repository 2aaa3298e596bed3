"""A proof that units stay, from a part of what there is to compare.

Let ``K`` be the gains in some tensors, with the best signs, and ``e[i]`` the squared distance of
place ``i`` and the unit in it in the others.  There place and unit are worth half their squared
norms together, less ``e[i] / 2``, and any other unit, however flipped, at most half the squared
norms.  Squared norms of units change no order of permutations.  So if for some prices ``v``

    K[i, j] - v[j] < K[i, i] - v[i] - e[i] / 2

whenever ``i ≠ j``, every other permutation is worse: summed over its cycles the prices cancel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from coset.alignment.assignment import Matrix
from coset.alignment.whole_axes.axes import AxisTerm

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


Sides = Callable[[AxisTerm], tuple[Matrix, Matrix]]
"""The tensor of a term in both networks."""


def surely_stay(known: Known, rest: Sequence[AxisTerm], sides: Sides) -> bool:
    """Whether no other permutation and no other signs are as good as what is there.

    Args:
        known: The factor.
        rest: The terms that were not compared.
        sides: Gives their tensors.
    """
    total = np.add.reduce(known.worth, 0)
    prices = total / 2 + known.prices
    others = known.best - prices
    np.fill_diagonal(others, -np.inf)
    lead = total - prices - np.maximum.reduce(others, 1)
    worth, margin = known.worth.copy(), _MARGIN * np.maximum.reduce(np.abs(total))
    for term in rest:
        if not np.minimum.reduce(lead) > margin:
            return False  # another term can only make it less
        to, now = sides(term)
        apart = to - now
        lead -= unit_products(apart, apart, term) / 2
        if term.slot < known.signs:
            worth[term.slot] += unit_products(to, now, term)
    return bool(np.minimum.reduce(lead) > margin) and not (worth[: known.signs] < 0).any()


def unit_products(left: Matrix, right: Matrix, term: AxisTerm) -> Matrix:
    """The inner product of each unit with the one in its place.

    >>> from coset.alignment.whole_axes.axes import Axis
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
