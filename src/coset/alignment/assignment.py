"""Linear assignments: the permutation with the largest total gain."""

from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

Matrix: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

NUDGE = 1e-9
"""What a preferred entry gets on top, relative to the largest gain: breaks exact ties only."""


def best_permutations(
    gains: Float[Tensor, "b h h"], preferred: Int[Tensor, "b h"] | None = None
) -> tuple[Int[Tensor, "b h"], Float[Tensor, " b"]]:
    """For each matrix ``A`` the permutation ``p`` with the largest ``Σ A[i, p[i]]``, and that sum.

    Args:
        gains: One matrix for each problem.
        preferred: Among equally good permutations the one closest to this; ``None``: the identity.

    >>> permutation, value = best_permutations(torch.tensor([[[1.0, 3.0], [2.0, 1.0]]]))
    >>> permutation.tolist(), value.tolist()
    ([[1, 0]], [5.0])
    """
    size = gains.shape[-1]
    matrices = gains.detach().cpu().to(torch.float64).numpy()
    wanted = None if preferred is None else preferred.cpu().numpy()
    rows = np.arange(size)
    chosen = np.empty(matrices.shape[:2], dtype=np.int64)
    for k, matrix in enumerate(matrices):
        favourite = rows if wanted is None else wanted[k]
        chosen[k] = _solve(matrix, favourite, rows)
    values = np.take_along_axis(matrices, chosen[..., None], 2)[..., 0].sum(-1)
    return torch.from_numpy(chosen).to(gains.device), torch.from_numpy(values).to(gains.device)


def _solve(matrix: Matrix, favourite: Indices, rows: Indices) -> Indices:
    nudged = matrix.copy()
    nudged[rows, favourite] += NUDGE * np.abs(matrix).max()
    best: Indices = nudged.argmax(1)
    if len(np.unique(best)) == len(rows):
        return best  # every row has its largest entry: nothing can be better
    order: Indices = linear_sum_assignment(nudged, maximize=True)[1]
    return order
