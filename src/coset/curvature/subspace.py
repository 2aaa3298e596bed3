"""The mode of the tangent model, sought in the span of all directions tried so far.

Outputs are linear in the weights, so with ``J d`` kept for each direction ``d`` the objective on
their span needs no network any more.  One preconditioned gradient widens the span; the minimum over
all of it is a convex problem of a few unknowns.  Other precisions begin with the old span, for
nothing, and seldom need more than one or two new directions.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.outputs import through_root
from coset.curvature.tangent import Point, Tangent
from coset.errors import CosetError
from coset.linalg import LinearOperator

_MEMORY = 1 << 30
"""Bytes that the directions and what they do to the outputs may take."""

_MOST = 32
"""Directions at most; then the older half is given up."""


@dataclass(frozen=True)
class Span:
    """Where a search has been.

    Attributes:
        base: Where it began.
        directions: In the weights.
        changes: What each does to the outputs.
        place: How far it went along each.
    """

    base: Point
    directions: Float[Tensor, "k p"]
    changes: Float[Tensor, "k nc"]
    place: Float[Tensor, " k"]

    @staticmethod
    def at(base: Point) -> "Span":
        """Nothing but a point."""
        flat, outputs = base.flat, base.outputs
        empty = flat.new_zeros(0, len(flat)), outputs.new_zeros(0, outputs.numel())
        return Span(base, *empty, flat.new_zeros(0))

    @property
    def point(self) -> Point:
        """Where the search is."""
        moved = (self.place @ self.changes).reshape(self.base.outputs.shape)
        return Point(self.base.flat + self.place @ self.directions, self.base.outputs + moved)

    def with_direction(self, direction: Tensor, change: Tensor) -> "Span":
        """One direction more; where there are too many, the point becomes the base."""
        span = self
        each = (direction.numel() + change.numel()) * direction.element_size()
        if len(self.place) >= max(2, min(_MOST, _MEMORY // each)):
            kept = len(self.place) // 2
            zeros = torch.zeros_like(self.place[-kept:])
            span = Span(self.point, self.directions[-kept:], self.changes[-kept:], zeros)
        return Span(
            span.base,
            torch.cat([span.directions, direction.reshape(1, -1)]),
            torch.cat([span.changes, change.reshape(1, -1)]),
            torch.cat([span.place, torch.zeros_like(direction[:1])]),
        )


def approach(
    tangent: Tangent,
    precision: Float[Tensor, " p"],
    span: Span,
    near: LinearOperator,
    *,
    tolerance: float = 1e-3,
    directions: int = 8,
) -> Span:
    """Comes closer to the mode, with one product with ``J`` and one with ``Jᵀ`` a direction.

    Args:
        tangent: The model.
        precision: Of each weight.
        span: Where earlier searches have been, under any precisions.
        near: An approximate inverse of ``H + Λ``.
        tolerance: The search ends when a direction gained less than this share of the log-joint.
        directions: New ones at most.
    """
    span, value = _lowest(tangent, precision, span)
    for _ in range(directions):
        gradient = tangent.gradient(span.point, precision)
        ahead = near.matmat(gradient.unsqueeze(1)).squeeze(1)
        size = float((gradient * ahead).sum())
        if not size < float("inf"):
            raise CosetError(
                "got a gradient of the tangent model that is not finite",
                "needed finite gradients of the network",
                "check the inputs, or use float64",
            )
        if size <= 0:
            break
        direction = ahead / size**0.5  # of length one to the preconditioner, whatever the units
        wider = span.with_direction(direction, tangent.jacobian @ direction)
        span, fresh = _lowest(tangent, precision, wider)
        gain, value = value - fresh, fresh
        if gain <= tolerance * (1 + abs(value)):
            break
    return span


def _lowest(tangent: Tangent, precision: Float[Tensor, " p"], span: Span) -> tuple[Span, float]:
    """The minimum over the span by Newton's method, and the negative log-joint there."""
    value = _cost(tangent, precision, span)
    if not len(span.place):
        return span, value
    own = (span.directions * precision) @ span.directions.mT
    tilt = span.directions @ (precision * span.base.flat)
    for _ in range(20):
        outputs = span.point.outputs
        slope = span.changes @ tangent.slope(outputs).flatten() + own @ span.place + tilt
        rows = through_root(tangent.root(outputs), span.changes.mT, outputs, transpose=True)
        step = _newton((rows.mT @ rows + own).double(), slope.double()).to(span.place)
        length = 1.0
        while length > 1e-3:
            moved = replace(span, place=span.place - length * step)
            fresh = _cost(tangent, precision, moved)
            if fresh <= value:
                break
            length /= 2
        if not fresh < value:
            break
        gain, span, value = value - fresh, moved, fresh
        if gain <= 1e-6 * (1 + abs(value)):
            break
    return span, value


def _cost(tangent: Tangent, precision: Float[Tensor, " p"], span: Span) -> float:
    point = span.point
    fit = float(tangent.log_likelihood(point.outputs.double()))
    return float((precision * point.flat.square()).sum(dtype=torch.float64)) / 2 - fit


def _newton(curvature: Float[Tensor, "k k"], slope: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The Newton step where directions may depend on each other."""
    values, vectors = torch.linalg.eigh(curvature)
    kept = values > 1e-10 * values[-1]
    coordinates = (vectors.mT @ slope)[kept] / values[kept]
    step: Tensor = vectors[:, kept] @ coordinates
    return step
