"""Linear operators: a shape, products with vectors, and verbs that know the structure.

Verbs are dispatched on the type of the operator, so that a new structure is one file that registers
what it can do exactly; what it does not register falls back to iterations, or is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.errors import CosetError

_SMALL = 1 << 20
"""Entries of a stack of vectors whose products may be formed."""


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
class Iterate:
    """Conjugate gradients between two iterations, so that they can be written down and go on.

    The vectors are overwritten by the next iteration: a stack of them takes no more memory than it
    must.

    Attributes:
        value: The solution so far, one column a right-hand side.
        residual: ``b - A x``.
        direction: Where the next iteration searches.
        inner: ``rᵀ M⁻¹ r`` of each column, with ``M`` the preconditioner.
        size: ``bᵀ M⁻¹ b`` of each column, with ``b`` the right-hand side or what stands for it.
        count: Iterations done.
    """

    value: Float[Tensor, "p k"]
    residual: Float[Tensor, "p k"]
    direction: Float[Tensor, "p k"]
    inner: Float[Tensor, " k"]
    size: Float[Tensor, " k"]
    count: Int[Tensor, ""]

    @property
    def relative(self) -> float:
        """The largest ``√(rᵀ M⁻¹ r / bᵀ M⁻¹ b)``: it does not change when weights are rescaled."""
        tiny = torch.finfo(self.size.dtype).tiny
        return float((self.inner.clamp_min(0) / self.size.clamp_min(tiny)).max().sqrt())


def begin(
    operator: LinearOperator,
    target: Float[Tensor, "p k"],
    preconditioner: LinearOperator | None = None,
    start: Float[Tensor, "p k"] | None = None,
    *,
    beside: Float[Tensor, "p k"] | None = None,
) -> Iterate:
    """The state before the first iteration.

    Args:
        operator: Symmetric and positive definite.
        target: The right-hand sides.
        preconditioner: Its approximate inverse.
        start: A guess; ``None``: zero.
        beside: What residuals are measured against; ``None``: the right-hand sides.
    """
    if start is None:
        value, residual = torch.zeros_like(target), target.clone()
    else:
        value, residual = start.clone(), target - operator.matmat(start)
    ahead = _through(preconditioner, residual)
    inner = _dot(residual, ahead)
    measure = target if beside is None else beside
    as_started = start is None and beside is None
    size = inner if as_started else _dot(measure, _through(preconditioner, measure))
    direction = ahead.clone() if preconditioner is None else ahead
    return Iterate(value, residual, direction, inner, size, torch.zeros((), dtype=torch.long))


def advance(
    iterate: Iterate, operator: LinearOperator, preconditioner: LinearOperator | None = None
) -> Iterate:
    """One iteration; the vectors of ``iterate`` are used up.

    Columns that are solved to the last digit stay as they are.

    Raises:
        CosetError: If a product is not finite or the operator is not positive definite.

    >>> operator = FromFunctions((2, 2), lambda x: 4 * x, lambda x: 4 * x)
    >>> advance(begin(operator, torch.ones(2, 1)), operator).value.flatten()
    tensor([0.2500, 0.2500])
    """
    value, residual, direction = iterate.value, iterate.residual, iterate.direction
    product = operator.matmat(direction)
    bent = _dot(direction, product)
    open_ = iterate.inner > torch.finfo(value.dtype).eps ** 2 * iterate.size
    _check(bent, open_, iterate)
    step = torch.where(open_ & (bent > 0), iterate.inner / bent, 0.0)
    value.addcmul_(direction, step)
    residual.addcmul_(product, -step)
    del product
    ahead = _through(preconditioner, residual)
    fresh = _dot(residual, ahead)
    tiny = torch.finfo(value.dtype).tiny
    direction.mul_(fresh / iterate.inner.clamp_min(tiny)).add_(ahead)
    return replace(iterate, inner=fresh, count=iterate.count + 1)


def _through(preconditioner: LinearOperator | None, x: Tensor) -> Tensor:
    return x if preconditioner is None else preconditioner.matmat(x)


def _dot(a: Float[Tensor, "p k"], b: Float[Tensor, "p k"]) -> Float[Tensor, " k"]:
    if a.numel() <= _SMALL:
        return (a * b).sum(0)
    # a column at a time: no product of the size of the stack is formed
    return torch.stack([torch.dot(x, y) for x, y in zip(a.unbind(1), b.unbind(1), strict=True)])


def _check(bent: Float[Tensor, " k"], open_: Bool[Tensor, " k"], iterate: Iterate) -> None:
    if not bool(bent.isfinite().all()):
        raise CosetError(
            f"got a product of the curvature that is not finite (iteration {int(iterate.count)})",
            "needed finite derivatives of the network",
            "check the inputs and the weights, or use float64",
        )
    if bool((open_ & (bent < 0)).any()):
        raise CosetError(
            f"got a direction of negative curvature (iteration {int(iterate.count)})",
            "needed a positive definite curvature, which rounding has destroyed",
            "use float64 weights and data, or a larger prior precision",
        )


@dataclass(frozen=True)
class Solution:
    """What conjugate gradients found.

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

    Args:
        operator: Symmetric and positive definite; or semi-definite, with targets in its range.
        target: The right-hand sides.
        preconditioner: Its approximate inverse.
        tolerance: Of residuals, relative to the right-hand sides.
        iterations: At most so many; ``None``: twice as many as there are rows.

    >>> operator = FromFunctions((2, 2), lambda x: 4 * x, lambda x: 4 * x)
    >>> conjugate_gradients(operator, torch.ones(2, 1)).value.flatten()
    tensor([0.2500, 0.2500])
    """
    most = 2 * operator.shape[0] + 10 if iterations is None else iterations
    size = target.norm(dim=0).clamp_min(torch.finfo(target.dtype).tiny)
    state = begin(operator, target, preconditioner)
    relative = float((state.residual.norm(dim=0) / size).max())
    while relative > tolerance and int(state.count) < most:
        state = advance(state, operator, preconditioner)
        relative = float((state.residual.norm(dim=0) / size).max())
    return Solution(state.value, relative <= tolerance, int(state.count), relative)


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
