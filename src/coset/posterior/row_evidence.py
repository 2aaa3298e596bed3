"""Evidence of a Kronecker block whose rows have precisions of their own.

In the eigenbasis of its columns such a block is one matrix ``M`` over the rows for each column.
With ``X = D^-½ M D^-½`` and ``D`` the precisions of the rows, ``log det(I + X)`` and the diagonal
of ``X (I + X)⁻¹`` are wanted.  Where ``X`` is small, as it is for most columns of most layers, two
terms of a series give both to eight digits without a factorisation.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.linalg import Kronecker, LinearOperator
from coset.linalg.cholesky import cholesky

_SMALL = 1e-4
"""Trace of ``X`` up to which the third term of the series, a share of its square, is left out."""


def row_labels(operator: LinearOperator, labels: Int[Tensor, " q"]) -> Int[Tensor, "b o"] | None:
    """The group of each row of a Kronecker block; nothing for other operators and groups."""
    if not isinstance(operator, Kronecker):
        return None
    table = labels.reshape(operator.table.shape)
    rows = table[:, :, 0]
    return rows if bool((table == rows.unsqueeze(-1)).all()) else None


def row_effective(operator: Kronecker, precision: Float[Tensor, "b o"]) -> Float[Tensor, "b o"]:
    """``γ`` of each row, the diagonal of ``X (I + X)⁻¹`` summed over the columns.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> row_effective(Kronecker(one, one, 3 * one), one[0])  # 3 / (3 + 1)
    tensor([[0.7500]], dtype=torch.float64)
    """
    middle, own, loud = _parts(operator, precision)
    found = []
    for block, rows in enumerate(precision):
        matrices, which = middle[block], loud[block]
        quiet = own[block][~which].sum(0) - _second(matrices[~which], rows).sum(0)
        system = matrices[which] + torch.diag(rows)
        factor = cholesky(system)
        eye = torch.eye(len(rows), dtype=rows.dtype, device=rows.device).expand_as(factor)
        turned = torch.linalg.solve_triangular(factor, eye, upper=False)
        found.append(quiet + (1 - rows * turned.square().sum(-2)).sum(0))
    return torch.stack(found)


def row_logdet(operator: Kronecker, precision: Float[Tensor, "b o"]) -> Float[Tensor, ""]:
    """``log det(I + X)`` over all columns.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> row_logdet(Kronecker(one, one, 3 * one), one[0])  # log 4
    tensor(1.3863, dtype=torch.float64)
    """
    middle, own, loud = _parts(operator, precision)
    total = precision.new_zeros(())
    for block, rows in enumerate(precision):
        matrices, which = middle[block], loud[block]
        total = total + own[block][~which].sum() - _second(matrices[~which], rows).sum() / 2
        factor = cholesky(matrices[which] + torch.diag(rows))
        volume = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
        total = total + volume - int(which.sum()) * rows.log().sum()
    return total


def _parts(
    operator: Kronecker, precision: Float[Tensor, "b o"]
) -> tuple[Float[Tensor, "b i o o"], Float[Tensor, "b i o"], Tensor]:
    """The matrices, the diagonals of ``X``, and for which columns ``X`` is not small."""
    middle = operator.middle
    own = middle.diagonal(dim1=-2, dim2=-1) / precision.unsqueeze(1)
    return middle, own, own.sum(-1) > _SMALL


def _second(matrices: Float[Tensor, "i o o"], rows: Float[Tensor, " o"]) -> Float[Tensor, "i o"]:
    """The diagonal of ``X²``."""
    return torch.matmul(matrices.square(), 1 / rows) / rows
