"""One Newton step from the network, where the mode itself is not sought."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.tangent import Point, Tangent
from coset.linalg import LinearOperator, LowRankPlusDiagonal, shift, solve


@dataclass(frozen=True)
class NewtonStep:
    """A step with the *same* curvature ``K`` on both sides: ``θ = (K + Λ)⁻¹ (K θ̃ - d)``.

    Attributes:
        model: The tangent model.
        start: The network ``θ̃``.
        curvature: ``K``.
        precision: ``Λ``, one a weight.
        kept: A curvature of low rank, to whose directions the gradient ``d`` of the data is held:
            along others nothing but the prior would hold a step back, which has no end as that
            shrinks.
    """

    model: Tangent
    start: Point
    curvature: LinearOperator
    precision: Float[Tensor, " p"]
    kept: LinearOperator | None = None

    @cached_property
    def point(self) -> Point:
        """Where it leads."""
        start = self.start
        target = self.curvature.matmat(start.flat.double().unsqueeze(1)) - self._slope
        flat = solve(self._system, target).squeeze(1).to(start.flat)
        change = (self.model.jacobian @ (flat - start.flat)).reshape(start.outputs.shape)
        return Point(flat, start.outputs + change)

    @property
    def gain(self) -> float:
        """What it promises: ``½ gᵀ (K + Λ)⁻¹ g`` with ``g = d + Λ θ̃``."""
        pull = (self.precision * self.start.flat.double()).unsqueeze(1)
        gradient = self._slope + pull
        return float((gradient * solve(self._system, gradient)).sum()) / 2

    @cached_property
    def _system(self) -> LinearOperator:
        return shift(self.curvature, self.precision)

    @cached_property
    def _slope(self) -> Float[Tensor, "p 1"]:
        zero = torch.zeros_like(self.start.flat)
        slope = self.model.gradient(self.start, zero).double().unsqueeze(1)
        if self.kept is None:
            return slope
        assert isinstance(self.kept, LowRankPlusDiagonal)
        basis: Tensor = torch.linalg.qr(self.kept.factor).Q
        return basis @ (basis.mT @ slope)
