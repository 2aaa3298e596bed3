"""Linear assignments: the permutation with the largest total gain."""

from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Matrix: TypeAlias = NDArray[np.floating[Any]]
Indices: TypeAlias = NDArray[np.int64]

NUDGE = 1e-9
"""What a preferred entry gets on top, relative to a typical gain: breaks exact ties only."""

_MOST = 0.6
"""Share of columns that are some row's nearest neighbour from which prices help scipy."""

_SMALL, _LARGE = 32, 128
"""Units up to which scipy is faster than what would help or spare it, and from which soft
permutations repay that they are looked for."""

_HARDNESS, _ROUNDS = 6.0, 5
"""How hard these are, and how often rows and columns are normalised: more helps little."""


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
        chosen[k] = best_permutation(matrix, None if preferred is None else preferred[k])
        values[k] = matrix[rows, chosen[k]].sum(dtype=np.float64)
    return chosen, values


def best_permutation(gains: Matrix, preferred: Indices | None = None) -> Indices:
    """The permutation with the largest total gain; of equally good ones the closest to another.

    Args:
        gains: What unit ``j`` is worth in place ``i``.
        preferred: The other; ``None``: the identity.

    >>> best_permutation(np.array([[1.0, 3.0], [2.0, 1.0]])).tolist()
    [1, 0]
    """
    if len(gains) <= _SMALL:
        cost = np.negative(gains, dtype=np.float64)
    else:
        priced, nearest, settled = _nearest(gains)
        if settled == 1:
            return nearest
        if len(gains) >= _LARGE:
            cost = _reduced(_softly_priced(gains))
        else:
            cost = _reduced(priced if settled > _MOST else gains)
    _nudge(cost, preferred)
    order: Indices = linear_sum_assignment(cost)[1]
    return order


def _nearest(gains: Matrix) -> tuple[Matrix, Indices, float]:
    """Gains after prices, the dearest unit of each place then, and the share of units among these.

    Prices ``v`` of the columns change no order of permutations: where the dearest entries of
    ``A[i, j] - v[j]`` in all rows make a permutation, nothing can be better.  With half the largest
    gain of each column as its price these are nearest neighbours, which settles most problems
    between networks that are alike.
    """
    priced = gains - np.maximum.reduce(gains, 0) / 2
    nearest: Indices = priced.argmax(1)
    different = np.count_nonzero(np.bincount(nearest, minlength=len(gains)))
    return priced, nearest, different / len(gains)


def _softly_priced(gains: Matrix) -> Matrix:
    """Gains after the prices at which the columns of ``exp(β A / std A)`` are equally wanted.

    These are the potentials of entropic transport (Sinkhorn), and near those of the best
    assignment: most of the paths that scipy looks for are short then.
    """
    size = len(gains)
    centred: Matrix = gains - np.add.reduce(gains, 1)[:, None] / size
    centred -= np.add.reduce(centred, 0) / size
    largest = np.maximum.reduce(np.abs(centred), None) or 1.0  # squares could overflow
    flat = (centred / largest).reshape(-1)
    scale = _HARDNESS * size / (largest * sqrt(np.dot(flat, flat)) or 1.0)
    soft = np.exp((centred - np.maximum.reduce(centred, 1)[:, None]) * scale)
    soft += np.finfo(soft.dtype).tiny ** 0.75  # a unit that nothing wants has a price too
    columns = np.ones(size, soft.dtype)
    for _ in range(_ROUNDS):
        columns = 1 / np.dot(1 / np.dot(soft, columns), soft)
    centred += np.log(columns) / scale
    return centred


def _reduced(gains: Matrix) -> NDArray[np.float64]:
    """Costs, reduced by rows and columns: most of the paths that scipy looks for have one edge."""
    cost = np.maximum.reduce(gains, 1)[:, None] - gains
    cost -= np.minimum.reduce(cost, 0)
    reduced: NDArray[np.float64] = cost.astype(np.float64)
    return reduced


def _nudge(cost: NDArray[np.float64], preferred: Indices | None) -> None:
    """Makes the entries of a permutation cheaper by so little that only ties are broken."""
    flat, size = cost.reshape(-1), len(cost)
    typical = sqrt(np.dot(flat, flat)) / size or 1.0
    entries = (
        slice(None, None, size + 1) if preferred is None else np.arange(size) * size + preferred
    )
    flat[entries] -= NUDGE * typical
