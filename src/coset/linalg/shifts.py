"""One eigendecomposition for all multiples of a matrix and of the identity that are added to it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.linalg.operators import LinearOperator
from coset.linalg.structured import Dense, LowRankPlusDiagonal


@dataclass(frozen=True)
class Shifts:
    """A symmetric matrix ``V diag(h) Vᵀ``; what ``V`` does not span has eigenvalue zero.

    Attributes:
        basis: ``V``, orthonormal columns.
        values: ``h``.

    >>> shifts = shifts_of(Dense(torch.diag(torch.tensor([1.0, 3.0]))))
    >>> shifts.solve(2.0, 1.0, torch.tensor([3.0, 7.0]))  # 3 / (2 + 1) and 7 / (6 + 1)
    tensor([1., 1.])
    """

    basis: Float[Tensor, "p r"]
    values: Float[Tensor, " r"]

    def solve(self, factor: float, shift: float, x: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """``(factor · H + shift · I)⁻¹ x``."""
        along = self.basis.mT @ x
        inside = self.basis @ (along / (factor * self.values + shift))
        if self.basis.shape[0] == self.basis.shape[1]:
            return inside
        return inside + (x - self.basis @ along) / shift


def shifts_of(operator: LinearOperator) -> Shifts | None:
    """Decomposes a dense matrix, or one of low rank; ``None`` for other structures."""
    if isinstance(operator, Dense):
        values, vectors = torch.linalg.eigh(operator.matrix)
        return Shifts(vectors, values.clamp_min(0))
    if not isinstance(operator, LowRankPlusDiagonal) or bool(operator.entries.any()):
        return None
    factor = operator.factor
    values, vectors = torch.linalg.eigh(factor.mT @ factor)
    kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1:]
    values, vectors = values[kept], vectors[:, kept]
    return Shifts(factor @ (vectors / values.sqrt()), values)
