"""Evidence of a Kronecker block whose rows have precisions of their own.

In the eigenbasis of its columns such a block is one matrix ``M = L diag(t) Lᵀ`` over the rows for
each column.  With ``X = D^-½ M D^-½`` and ``D`` the precisions of the rows, ``log det(I + X)`` and
the diagonal of ``X (I + X)⁻¹`` are wanted.  Where ``X`` is small, as it is for most columns of most
layers, two terms of a series give both to eight digits.  Summed over such columns they need neither
``M`` nor a factorisation: with ``V = D^-½ L`` and ``G = Vᵀ V``, ``Σ diag X² = diag V (G ∘ Σ t tᵀ)
Vᵀ``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
    found = []
    for part in _parts(operator, precision):
        eye = torch.eye(len(part.rows), dtype=part.rows.dtype, device=part.rows.device)
        factor = cholesky(part.loud + torch.diag(part.rows))
        turned = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
        own = (1 - part.rows * turned.square().sum(-2)).sum(0)
        second = ((part.scaled @ (part.gram * part.pairs)) * part.scaled).sum(1)
        found.append(own + part.first - second)
    return torch.stack(found)


def row_logdet(operator: Kronecker, precision: Float[Tensor, "b o"]) -> Float[Tensor, ""]:
    """``log det(I + X)`` over all columns.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> row_logdet(Kronecker(one, one, 3 * one), one[0])  # log 4
    tensor(1.3863, dtype=torch.float64)
    """
    total = precision.new_zeros(())
    for part in _parts(operator, precision):
        factor = cholesky(part.loud + torch.diag(part.rows))
        volume = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
        second = (part.gram.square() * part.pairs).sum() / 2
        total = total + volume - len(factor) * part.rows.log().sum() + part.first.sum() - second
    return total


@dataclass(frozen=True)
class _Part:
    """What one block gives to the evidence.

    Attributes:
        rows: ``D``.
        scaled: ``V``.
        loud: ``M`` of the columns where ``X`` is not small.
        first: The diagonal of ``X``, summed over the other columns.
        pairs: ``t tᵀ``, summed over them.
    """

    rows: Float[Tensor, " o"]
    scaled: Float[Tensor, "o o"]
    loud: Float[Tensor, "i o o"]
    first: Float[Tensor, " o"]
    pairs: Float[Tensor, "o o"]

    @property
    def gram(self) -> Float[Tensor, "o o"]:
        """``G``."""
        return self.scaled.mT @ self.scaled


def _parts(operator: Kronecker, precision: Float[Tensor, "b o"]) -> Iterator[_Part]:
    """Each block, with its columns parted by whether ``X`` is small."""
    for basis, table, rows in zip(operator.left, operator.table, precision, strict=True):
        left = basis.to(table.dtype)
        scaled = left / rows.sqrt().unsqueeze(1)
        squares = scaled.square()
        which = squares.sum(0) @ table > _SMALL
        few, many = table[:, which], table[:, ~which]
        loud = (left * few.mT.unsqueeze(1)) @ left.mT
        yield _Part(rows, scaled, loud, squares @ many.sum(1), many @ many.mT)
