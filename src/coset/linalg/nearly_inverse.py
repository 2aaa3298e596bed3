"""Inverses that only have to be near, to guide an iteration."""

from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from coset.linalg.cholesky import cholesky
from coset.linalg.kronecker import Kronecker, RowBlocks, row_precisions
from coset.linalg.operators import FromFunctions, LinearOperator, cast, inverse, shift
from coset.linalg.structured import BlockDiagonal

_QUIET = 0.1
"""Curvature of a column, in units of the prior, that may be left out: condition at most 1.1."""


@singledispatch
def nearly_inverse(
    operator: Any, precision: Float[Tensor, " p"], dtype: torch.dtype
) -> LinearOperator:
    """Near ``(operator + diag(precision))⁻¹``, for vectors of a type; exact where that is cheap.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> near = nearly_inverse(Kronecker(one, one, 3 * one), one.flatten(), torch.float64)
    >>> near.matmat(one[0])  # 1 / (3 + 1)
    tensor([[0.2500]], dtype=torch.float64)
    """
    return cast(inverse(shift(operator, precision)), dtype)


@nearly_inverse.register
def _(operator: BlockDiagonal, precision: Tensor, dtype: torch.dtype) -> LinearOperator:
    parts = precision[operator.order].split(operator.sizes)
    pairs = zip(operator.blocks, parts, strict=True)
    near = (nearly_inverse(block, part, dtype) for block, part in pairs)
    return BlockDiagonal(tuple(near), operator.order)


@nearly_inverse.register
def _(operator: Kronecker, precision: Tensor, dtype: torch.dtype) -> LinearOperator:
    """Where rows differ in precision, the matrices of columns with much curvature alone.

    Such a matrix takes the cube of the rows, and most columns have hardly more than the prior.
    """
    rows = row_precisions(operator, precision)
    if operator.orthogonal and bool((rows == rows[:, :1]).all()):
        return cast(inverse(shift(operator, precision)), dtype)
    left, table = operator.left.to(rows.dtype), operator.table
    traces = (left.square() / rows).sum(1, keepdim=True) @ table  # b 1 i
    loud = (traces > _QUIET).flatten(0, 1).any(0)
    middle = (left.unsqueeze(1) * table[:, :, loud].mT.unsqueeze(-2)) @ left.mT.unsqueeze(1)
    middle.diagonal(dim1=-2, dim2=-1).add_(rows.mT)
    change = torch.cholesky_inverse(cholesky(middle))
    change.diagonal(dim1=-2, dim2=-1).sub_(1 / rows.mT)
    other = cast(RowBlocks(operator.right[:, :, loud], change), dtype)
    apart = (1 / precision).to(dtype).unsqueeze(1)

    def product(x: Tensor) -> Tensor:
        return apart * x + other.matmat(x)

    return FromFunctions(operator.shape, product, product)
