"""Conjugate gradients for many right-hand sides that can stop, be written down and go on.

The state between two iterations is a value.  Its vectors are overwritten by the next iteration, so
that a stack of them costs no more memory than it must.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.linalg.operators import LinearOperator


@dataclass(frozen=True)
class Iterate:
    """Between two iterations.

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
    preconditioner: LinearOperator,
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
    measure = target if beside is None else beside
    size = _dot(measure, preconditioner.matmat(measure))
    if start is None:
        value, residual = torch.zeros_like(target), target.clone()
    else:
        value, residual = start.clone(), target - operator.matmat(start)
    ahead = preconditioner.matmat(residual)
    count = torch.zeros((), dtype=torch.long)
    return Iterate(value, residual, ahead, _dot(residual, ahead), size, count)


def advance(iterate: Iterate, operator: LinearOperator, preconditioner: LinearOperator) -> Iterate:
    """One iteration; the vectors of ``iterate`` are used up.

    Raises:
        CosetError: If a product is not finite or the operator is not positive definite.

    >>> from coset.linalg import Diagonal
    >>> operator, one = Diagonal(torch.tensor([2.0, 4.0])), Diagonal(torch.ones(2))
    >>> state = begin(operator, torch.ones(2, 1), one)
    >>> for _ in range(2):
    ...     state = advance(state, operator, one)
    >>> state.value.flatten()
    tensor([0.5000, 0.2500])
    """
    value, residual, direction = iterate.value, iterate.residual, iterate.direction
    tiny = torch.finfo(value.dtype).tiny
    product = operator.matmat(direction)
    bent = _dot(direction, product)
    _check(bent, iterate)
    step = iterate.inner / bent.clamp_min(tiny)
    value.addcmul_(direction, step)
    residual.addcmul_(product, -step)
    del product
    ahead = preconditioner.matmat(residual)
    fresh = _dot(residual, ahead)
    direction.mul_(fresh / iterate.inner.clamp_min(tiny)).add_(ahead)
    return replace(iterate, inner=fresh, count=iterate.count + 1)


def _dot(a: Float[Tensor, "p k"], b: Float[Tensor, "p k"]) -> Float[Tensor, " k"]:
    # a column at a time: no product of the size of the stack is formed
    return torch.stack([torch.dot(x, y) for x, y in zip(a.unbind(1), b.unbind(1), strict=True)])


def _check(bent: Float[Tensor, " k"], iterate: Iterate) -> None:
    if not bool(bent.isfinite().all()):
        raise CosetError(
            f"got a product of the curvature that is not finite (iteration {int(iterate.count)})",
            "needed finite derivatives of the network",
            "check the inputs and the weights, or use float64",
        )
    if bool((bent < 0).any()):
        raise CosetError(
            f"got a direction of negative curvature (iteration {int(iterate.count)})",
            "needed a positive definite curvature, which rounding has destroyed",
            "use float64 weights and data, or a larger prior precision",
        )
