"""The formula of Kronecker factors, for one block of weights.

A layer sends ``v``, what comes in with a one at the end for a bias, to ``W v``.  Let ``u`` be a
column of the root of the output Hessian, sent back to there.  Of one example the Gauss-Newton
matrix of ``W`` is ``(Σ_r u_r ⊗ v_r)(Σ_r u_r ⊗ v_r)ᵀ``, summed over columns, with positions ``r``
that share the weights.  Martens and Grosse (2015) take the two sides for independent::

    H ≈ Σ u uᵀ ⊗ Σ v vᵀ / N

``N`` counts examples, columns and positions where each position stands for an example
(``"expand"``; Eschenhagen et al. 2023).  Sums over positions in place of ``u_r`` and ``v_r``, and
``N`` with the square of their number, are ``"reduce"``.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.checks import check_gradients
from coset.linalg import Kronecker


class Sums(NamedTuple):
    """The second moments of the two sides, one for each of ``b`` blocks of equal size."""

    left: Float[Tensor, "b o o"]
    right: Float[Tensor, "b i i"]


def kronecker(
    sums: Sums,
    count: int,
    *,
    single: Sums | None = None,
    rounding: tuple[float, float] = (0.0, 0.0),
    scaled: bool = False,
) -> Kronecker:
    """``Σ u uᵀ ⊗ Σ v vᵀ / N``, in its eigenbasis.

    Args:
        sums: The two moments.
        count: ``N``.
        single: The moments of single positions, where ``sums`` are of sums over positions: they
            settle what sums that vanish leave open.
        rounding: Shares of a moment of sums, and of that of single positions, that are rounding.
        scaled: Whether the left eigenbasis is that of rows of one size.

    >>> one = torch.eye(2).expand(1, 2, 2)
    >>> kronecker(Sums(2 * one, 3 * one), 6).table
    tensor([[[1., 1.],
             [1., 1.]]])
    """
    sizes = _row_sizes(sums, single, rounding) if scaled else torch.ones_like(sums.left[..., :1])
    right, cols = _eigen(sums.right / count)
    left, rows = _eigen(sums.left / sizes / sizes.mT)
    if single is not None:
        right = _settled(right, cols, single.right / count, rounding)
        left = _settled(left, rows, single.left / sizes / sizes.mT, rounding)
    table = rows.unsqueeze(-1) * cols.unsqueeze(-2)
    return Kronecker(sizes * left, right, table, orthogonal=not scaled)


def _row_sizes(
    sums: Sums, single: Sums | None, rounding: tuple[float, float]
) -> Float[Tensor, "b o 1"]:
    """Roots of the diagonal; of single positions where sums over positions vanish."""
    found = sums.left.diagonal(dim1=1, dim2=2)
    if single is not None:
        other = single.left.diagonal(dim1=1, dim2=2)
        found = torch.where(found > rounding[1] * other, found, other)
    return torch.where(found > 0, found, 1.0).sqrt().unsqueeze(-1)


def _eigen(matrix: Float[Tensor, "b k k"]) -> tuple[Tensor, Float[Tensor, "b k"]]:
    check_gradients(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    # by rows, as a file holds them: products of the two layouts round differently
    return vectors.contiguous(), values.clamp_min(0)


def _settled(
    vectors: Float[Tensor, "b k k"],
    values: Float[Tensor, "b k"],
    single: Float[Tensor, "b k k"],
    rounding: tuple[float, float],
) -> Float[Tensor, "b k k"]:
    """Eigenvectors that vanishing eigenvalues leave open, as those of another moment.

    Rounding would choose among them, and the exact diagonal along them depends on the choice.

    Args:
        vectors: Of the moment of sums over positions.
        values: Its eigenvalues.
        single: The moment of single positions.
        rounding: Shares of the traces of the two moments up to which eigenvalues vanish.
    """
    traces = values.sum(1), single.diagonal(dim1=1, dim2=2).sum(1)
    least, settled = rounding[0] * traces[0] + rounding[1] * traces[1], vectors.clone()
    for block, free in enumerate(values <= least.unsqueeze(1)):
        if int(free.sum()) > 1:
            span = vectors[block][:, free]
            inside = torch.linalg.eigh(span.mT @ single[block] @ span).eigenvectors
            settled[block][:, free] = span @ inside
    return settled
