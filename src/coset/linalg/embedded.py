"""An operator on a few coordinates of a longer vector."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.linalg.operators import FromFunctions, LinearOperator, cast, diagonal, root, scale
from coset.printing import brief


@dataclass(frozen=True)
class Embedded:
    """``inner`` on the coordinates ``index`` of a vector of length ``size``, and zero elsewhere.

    >>> from coset.linalg import Diagonal
    >>> operator = Embedded(Diagonal(torch.tensor([2.0])), torch.tensor([1]), 3)
    >>> operator.matmat(torch.ones(3, 1)).flatten()
    tensor([0., 2., 0.])
    """

    inner: LinearOperator
    index: Int[Tensor, " k"]
    size: int

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.size, self.size

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The product."""
        return self.widen(self.inner.matmat(x[self.index]))

    def adjoint(self) -> "Embedded":
        """The transpose."""
        return replace(self, inner=self.inner.adjoint())

    def widen(self, few: Float[Tensor, "q ..."]) -> Float[Tensor, "p ..."]:
        """Zeros around the chosen coordinates."""
        result = few.new_zeros(self.size, *few.shape[1:])
        result[self.index] = few
        return result


@diagonal.register
def _(operator: Embedded) -> Tensor:
    return operator.widen(diagonal(operator.inner))


@root.register
def _(operator: Embedded) -> LinearOperator:
    inner = root(operator.inner)
    return FromFunctions(
        (operator.size, inner.shape[1]),
        lambda x: operator.widen(inner.matmat(x)),
        lambda x: inner.adjoint().matmat(x[operator.index]),
    )


@scale.register
def _(operator: Embedded, factor: float) -> LinearOperator:
    return replace(operator, inner=scale(operator.inner, factor))


@cast.register
def _(operator: Embedded, dtype: torch.dtype) -> LinearOperator:
    return replace(operator, inner=cast(operator.inner, dtype))
