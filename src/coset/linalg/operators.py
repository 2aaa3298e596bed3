"""Linear operators: a shape, products with vectors, and verbs that know the structure.

Verbs are dispatched on the type of the operator, so that a new structure is one file that registers
what it can do exactly; what it does not register falls back to iterations, or is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError


@runtime_checkable
class LinearOperator(Protocol):
    """A matrix that can be multiplied with."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    def matmat(self, x: Float[Tensor, "cols k"]) -> Float[Tensor, "rows k"]:
        """The product with a matrix."""
        ...

    def adjoint(self) -> "LinearOperator":
        """The transpose."""
        ...


@dataclass(frozen=True)
class FromFunctions:
    """An operator given by its product and the product of its transpose.

    >>> double = FromFunctions((2, 2), lambda x: 2 * x, lambda x: 2 * x)
    >>> double.matmat(torch.ones(2, 1)).flatten()
    tensor([2., 2.])
    """

    shape: tuple[int, int]
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]

    def matmat(self, x: Float[Tensor, "cols k"]) -> Float[Tensor, "rows k"]:
        """The product."""
        return self.forward(x)

    def adjoint(self) -> "FromFunctions":
        """The transpose."""
        return FromFunctions((self.shape[1], self.shape[0]), self.backward, self.forward)


@dataclass(frozen=True)
class Solution:
    """What an iteration found.

    Attributes:
        value: The solution.
        converged: Whether the residual fell below the tolerance.
        iterations: How many were needed.
        residual: Largest relative residual of a column.
    """

    value: Tensor
    converged: bool
    iterations: int
    residual: float


def conjugate_gradients(
    operator: LinearOperator,
    target: Float[Tensor, "p k"],
    *,
    preconditioner: LinearOperator | None = None,
    tolerance: float = 1e-8,
    iterations: int | None = None,
) -> Solution:
    """Solves ``operator · x = target`` for a positive definite operator, column by column.

    >>> operator = FromFunctions((2, 2), lambda x: 4 * x, lambda x: 4 * x)
    >>> conjugate_gradients(operator, torch.ones(2, 1)).value.flatten()
    tensor([0.2500, 0.2500])
    """
    most = 2 * operator.shape[0] + 10 if iterations is None else iterations
    value, residual = torch.zeros_like(target), target.clone()
    size = target.norm(dim=0).clamp_min(torch.finfo(target.dtype).tiny)
    ahead = residual if preconditioner is None else preconditioner.matmat(residual)
    direction, inner = ahead, (residual * ahead).sum(0)
    relative = float((residual.norm(dim=0) / size).max())
    for count in range(most):
        if relative <= tolerance:
            return Solution(value, True, count, relative)
        product = operator.matmat(direction)
        step = inner / (direction * product).sum(0).clamp_min(torch.finfo(target.dtype).tiny)
        value = value + step * direction
        residual = residual - step * product
        ahead = residual if preconditioner is None else preconditioner.matmat(residual)
        fresh = (residual * ahead).sum(0)
        direction = ahead + fresh / inner.clamp_min(torch.finfo(target.dtype).tiny) * direction
        inner, relative = fresh, float((residual.norm(dim=0) / size).max())
    return Solution(value, relative <= tolerance, most, relative)


@singledispatch
def solve(operator: Any, target: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
    """``operator⁻¹ · target``; by conjugate gradients where the structure has no direct way."""
    found = conjugate_gradients(operator, target)
    if not found.converged:
        raise CosetError(
            f"got no solution after {found.iterations} iterations (residual {found.residual:.1e})",
            "needed a well-conditioned positive definite operator",
            "raise the precision of the prior, or solve in float64",
        )
    return found.value


@singledispatch
def logdet(operator: Any) -> Float[Tensor, ""]:
    """Logarithm of the determinant of a positive definite operator."""
    raise _unknown("the log-determinant", operator)


@singledispatch
def diagonal(operator: Any) -> Float[Tensor, " p"]:
    """The diagonal."""
    raise _unknown("the diagonal", operator)


@singledispatch
def root(operator: Any) -> LinearOperator:
    """An ``R`` with ``R Rᵀ = operator``, for sampling."""
    raise _unknown("a root", operator)


@singledispatch
def inverse(operator: Any) -> LinearOperator:
    """The inverse, in the same structure."""
    raise _unknown("the inverse", operator)


@singledispatch
def shift(operator: Any, precision: Float[Tensor, " p"]) -> LinearOperator:
    """``operator + diag(precision)``, in the same structure."""
    raise _unknown("a shift", operator)


@singledispatch
def scale(operator: Any, factor: float) -> LinearOperator:
    """``factor · operator``, in the same structure."""
    raise _unknown("a multiple", operator)


@singledispatch
def cast(operator: Any, dtype: torch.dtype) -> LinearOperator:
    """The same operator in another floating type."""
    raise _unknown("another type", operator)


def dense(operator: LinearOperator, *, like: Tensor) -> Float[Tensor, "rows cols"]:
    """The operator as a matrix of the dtype and device of ``like``.

    >>> dense(FromFunctions((2, 2), lambda x: 2 * x, lambda x: 2 * x), like=torch.ones(1))
    tensor([[2., 0.],
            [0., 2.]])
    """
    columns = operator.shape[1]
    return operator.matmat(torch.eye(columns, dtype=like.dtype, device=like.device))


def _unknown(what: str, operator: Any) -> CosetError:
    return CosetError(
        f"got an operator of type {type(operator).__name__}, for which {what} is not known",
        "needed Dense, Diagonal, Kronecker, LowRank or a block-diagonal of them",
    )
