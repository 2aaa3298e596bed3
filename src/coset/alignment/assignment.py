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
    cost = np.negative(gains, dtype=np.float64)
    places = np.arange(len(cost))
    typical = sqrt(np.vdot(cost, cost)) / len(cost) or 1.0
    cost[places, places if preferred is None else preferred] -= NUDGE * typical
    order: Indices = linear_sum_assignment(cost)[1]
    return order
