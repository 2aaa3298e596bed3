"""Linear assignments: the permutation with the largest total gain."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Matrix: TypeAlias = NDArray[np.floating[Any]]
Indices: TypeAlias = NDArray[np.int64]

NUDGE = 1e-9
"""What a preferred entry gets on top, relative to the largest gain: breaks exact ties only."""

_MOST = 0.6
"""Share of columns that are some row's nearest neighbour from which prices help scipy."""

_SMALL = 32
"""Units up to which scipy is faster than what would help it."""


def best_permutations(
    gains: NDArray[np.floating[Any]], preferred: Indices | None = None
) -> tuple[Indices, NDArray[np.float64]]:
    """For each matrix ``A`` the permutation ``p`` with the largest ``Σ A[i, p[i]]``, and that sum.

    Args:
        gains: One matrix for each problem.
        preferred: Among equally good permutations the one closest to this; ``None``: the identity.

    >>> permutation, value = best_permutations(np.array([[[1.0, 3.0], [2.0, 1.0]]]))
    >>> permutation.tolist(), value.tolist()
    ([[1, 0]], [5.0])
    """
    rows = np.arange(gains.shape[-1])
    chosen = np.empty(gains.shape[:2], dtype=np.int64)
    values = np.empty(len(gains))
    for k, matrix in enumerate(gains):
        chosen[k] = best_permutation(matrix, rows if preferred is None else preferred[k])
        values[k] = matrix[rows, chosen[k]].sum(dtype=np.float64)
    return chosen, values


def best_permutation(gains: Matrix, preferred: Indices) -> Indices:
    """The permutation with the largest total gain; of equally good ones the closest to another.

    Prices ``v`` of the columns change no order of permutations: where the dearest entries of
    ``A[i, j] - v[j]`` in all rows make a permutation, nothing can be better.  With half the largest
    gain of each column as its price these are nearest neighbours, which settles most problems
    between networks that are alike.

    >>> best_permutation(np.array([[1.0, 3.0], [2.0, 1.0]]), np.arange(2)).tolist()
    [1, 0]
    """
    size, dearest = len(gains), np.maximum.reduce(gains, 0)
    priced = gains - dearest / 2
    best: Indices = priced.argmax(1)
    settled = np.count_nonzero(np.bincount(best, minlength=size))
    if settled == size:
        return best
    largest = max(np.maximum.reduce(dearest), -np.minimum.reduce(gains, None))
    reduced = gains if size <= _SMALL or settled <= _MOST * size else priced
    most = 0.0 if size <= _SMALL else np.maximum.reduce(reduced, 1)[:, None]
    cost = np.subtract(most, reduced, dtype=np.float64)
    cost[np.arange(size), preferred] -= NUDGE * largest
    if size > _SMALL:  # reduced by rows and columns most paths have one edge
        cost -= np.minimum.reduce(cost, 0)
    order: Indices = linear_sum_assignment(cost)[1]
    return order
