"""Linear assignments: the permutation with the largest total gain."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Matrix: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

NUDGE = 1e-9
"""What a preferred entry gets on top, relative to the largest gain: breaks exact ties only."""


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
    matrices = gains.astype(np.float64)
    rows = np.arange(gains.shape[-1])
    chosen = np.empty(matrices.shape[:2], dtype=np.int64)
    values = np.empty(len(matrices))
    for k, matrix in enumerate(matrices):
        chosen[k] = _solve(matrix, rows if preferred is None else preferred[k], rows)
        values[k] = matrix[rows, chosen[k]].sum()
    return chosen, values


def _solve(matrix: Matrix, favourite: Indices, rows: Indices) -> Indices:
    nudge = NUDGE * max(matrix.max(), -matrix.min())
    kept = matrix[rows, favourite]
    matrix[rows, favourite] = kept + nudge  # a working copy, put back below
    try:
        best: Indices = matrix.argmax(1)
        if np.bincount(best, minlength=len(rows)).max() == 1:
            return best  # every row has its largest entry: nothing can be better
        order: Indices = linear_sum_assignment(matrix, maximize=True)[1]
        return order
    finally:
        matrix[rows, favourite] = kept
