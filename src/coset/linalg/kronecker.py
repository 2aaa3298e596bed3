"""Kronecker products in their eigenbasis, with any table of eigenvalues.

A matrix of weights ``W`` with ``o`` rows and ``i`` columns is one vector, row by row.  With
orthogonal ``L`` and ``R`` the operator is ``(L ⊗ R) diag(table) (L ⊗ R)ᵀ``, that is
``W ↦ L (table ∘ (Lᵀ W R)) Rᵀ``.  Several such blocks lie side by side along the axis ``b``, one for
each group of a grouped convolution.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.linalg.cholesky import cholesky
from coset.linalg.operators import (
    FromFunctions,
    LinearOperator,
    cast,
    diagonal,
    inverse,
    logdet,
    root,
    scale,
    shift,
    solve,
)
from coset.printing import brief

_KEPT = 1 << 28
"""Bytes of an intermediate result that an operator may keep."""


@dataclass(frozen=True)
class Kronecker:
    """``(L ⊗ R) diag(table) (L ⊗ R)ᵀ`` for each block.

    Attributes:
        left: ``L`` of each block.
        right: The orthogonal ``R`` of each block.
        table: One number for each pair of their columns.
        orthogonal: Whether ``L`` is, so that the table holds eigenvalues.  Otherwise the operator
            can be multiplied with and shifted, and what comes of the shift can do the rest.

    >>> eye = torch.eye(1).unsqueeze(0)
    >>> operator = Kronecker(eye, eye, torch.full((1, 1, 1), 3.0))
    >>> shift(operator, torch.ones(1)).matmat(torch.ones(1, 1))
    tensor([[4.]])
    """

    left: Float[Tensor, "b o o"]
    right: Float[Tensor, "b i i"]
    table: Float[Tensor, "b o i"]
    orthogonal: bool = True

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.table.numel(), self.table.numel()

    @property
    def middle(self) -> Float[Tensor, "b i o o"]:
        """``L diag(table[:, j]) Lᵀ`` for each column ``j``; kept where it is small."""
        kept = self.__dict__.get("_middle")
        if kept is not None:
            found: Tensor = kept
            return found
        left = self.left.to(self.table.dtype).unsqueeze(1)
        found = (left * self.table.mT.unsqueeze(-2)) @ left.mT
        if found.nbytes <= _KEPT:  # tuning shifts one operator by many precisions
            self.__dict__["_middle"] = found
        return found

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The product."""
        return self.backward(self.table.unsqueeze(-1) * self.forward(x))

    def adjoint(self) -> "Kronecker":
        """Itself."""
        return self

    def forward(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "b o i k"]:
        """Into the eigenbasis."""
        blocks = x.reshape(*self.table.shape, x.shape[1])
        return torch.einsum("bxo,bxyk,byi->boik", self.left, blocks, self.right)

    def backward(self, x: Float[Tensor, "b o i k"]) -> Float[Tensor, "p k"]:
        """Out of the eigenbasis."""
        blocks = torch.einsum("box,bxyk,biy->boik", self.left, x, self.right)
        return blocks.reshape(-1, x.shape[-1])


def row_precisions(operator: Kronecker, precision: Float[Tensor, " p"]) -> Float[Tensor, "b o 1"]:
    """The precision of each row, in the type of the table; refused where a row has several."""
    entries = precision.reshape(operator.table.shape).to(operator.table.dtype)
    rows = entries[:, :, :1]
    if not bool((entries == rows).all()):
        raise CosetError(
            "got precisions that differ inside a row of a Kronecker block",
            "needed one a layer or one a filter",
            "use Full() or DiagonalOnly() for a precision of each weight",
        )
    return rows


@dataclass(frozen=True)
class RowBlocks:
    """A Kronecker product plus one precision a row: ``Σ_j M_j ⊗ r_j r_jᵀ``.

    ``R`` still diagonalises the columns; for each of its directions ``r_j`` one full matrix ``M_j``
    over the rows is left.

    Attributes:
        right: The orthonormal directions ``R`` of each block; along others the operator is zero.
        middle: The matrices ``M_j``.
    """

    right: Float[Tensor, "b i j"]
    middle: Float[Tensor, "b j o o"]

    __repr__ = brief

    @cached_property
    def roots(self) -> Float[Tensor, "b j o o"]:
        """Lower triangular ``T_j`` with ``M_j = T_j T_jᵀ``; kept, for predictions ask each time."""
        return cholesky(self.middle)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        size = self.right.shape[0] * self.right.shape[1] * self.middle.shape[-1]
        return size, size

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The product."""
        return self.backward(self.middle @ self.forward(x))

    def adjoint(self) -> "RowBlocks":
        """Itself."""
        return self

    def forward(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "b j o k"]:
        """Columns into the eigenbasis, and in front of the rows."""
        blocks, columns = self.right.shape[:2]
        rows = x.reshape(blocks, -1, columns, x.shape[1])
        return torch.einsum("boyk,byi->biok", rows, self.right)

    def backward(self, x: Float[Tensor, "b j o k"]) -> Float[Tensor, "p k"]:
        """The reverse of :meth:`forward`."""
        return torch.einsum("byok,biy->boik", x, self.right).reshape(-1, x.shape[-1])


@solve.register
def _(operator: Kronecker, target: Tensor) -> Tensor:
    return operator.backward(operator.forward(target) / operator.table.unsqueeze(-1))


@solve.register
def _(operator: RowBlocks, target: Tensor) -> Tensor:
    solved = torch.cholesky_solve(operator.forward(target), cholesky(operator.middle))
    return operator.backward(solved)


@logdet.register
def _(operator: Kronecker) -> Tensor:
    return operator.table.log().sum()


@logdet.register
def _(operator: RowBlocks) -> Tensor:
    return 2 * cholesky(operator.middle).diagonal(dim1=-2, dim2=-1).log().sum()


@diagonal.register
def _(operator: Kronecker) -> Tensor:
    left, right = operator.left.square(), operator.right.square()
    return (left @ operator.table @ right.mT).reshape(-1)


@diagonal.register
def _(operator: RowBlocks) -> Tensor:
    rows = operator.middle.diagonal(dim1=-2, dim2=-1)  # b i o
    return torch.einsum("byo,biy->boi", rows, operator.right.square()).reshape(-1)


@root.register
def _(operator: Kronecker) -> LinearOperator:
    roots = operator.table.sqrt().unsqueeze(-1)

    def forward(x: Tensor) -> Tensor:
        return operator.backward(roots * x.reshape(*operator.table.shape, -1))

    def backward(x: Tensor) -> Tensor:
        return (roots * operator.forward(x)).reshape(len(x), -1)

    return FromFunctions(operator.shape, forward, backward)


@root.register
def _(operator: RowBlocks) -> LinearOperator:
    factors = operator.roots

    def forward(x: Tensor) -> Tensor:
        return operator.backward(factors @ x.reshape(*factors.shape[:3], -1))

    def backward(x: Tensor) -> Tensor:
        return (factors.mT @ operator.forward(x)).reshape(len(x), -1)

    return FromFunctions(operator.shape, forward, backward)


@inverse.register
def _(operator: Kronecker) -> LinearOperator:
    return Kronecker(operator.left, operator.right, 1 / operator.table)


@inverse.register
def _(operator: RowBlocks) -> LinearOperator:
    return RowBlocks(operator.right, torch.cholesky_inverse(cholesky(operator.middle)))


@shift.register
def _(operator: Kronecker, precision: Tensor) -> LinearOperator:
    rows = row_precisions(operator, precision)
    if operator.orthogonal and bool((rows == rows[:, :1]).all()):
        return Kronecker(operator.left, operator.right, operator.table + rows)
    middle = operator.middle.clone()
    middle.diagonal(dim1=-2, dim2=-1).add_(rows.mT)
    return RowBlocks(operator.right.to(operator.table.dtype), middle)


@scale.register
def _(operator: Kronecker, factor: float) -> LinearOperator:
    return replace(operator, table=operator.table * factor)


@scale.register
def _(operator: RowBlocks, factor: float) -> LinearOperator:
    return RowBlocks(operator.right, operator.middle * factor)


@cast.register
def _(operator: Kronecker, dtype: torch.dtype) -> LinearOperator:
    left, right = operator.left.to(dtype), operator.right.to(dtype)
    return Kronecker(left, right, operator.table.to(dtype), operator.orthogonal)


@cast.register
def _(operator: RowBlocks, dtype: torch.dtype) -> LinearOperator:
    return RowBlocks(operator.right.to(dtype), operator.middle.to(dtype))
