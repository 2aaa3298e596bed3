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

from coset.curvature.tangent import Point, Tangent
from coset.errors import CosetError
from coset.linalg import LinearOperator

_MEMORY = 1 << 28
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
    def outputs(self) -> Tensor:
        """Those of the tangent model where the search is."""
        moved = (self.place @ self.changes).reshape(self.base.outputs.shape)
        return self.base.outputs + moved

    @property
    def point(self) -> Point:
        """Where the search is."""
        return Point(self.base.flat + self.place @ self.directions, self.outputs)

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
    penalty = _Penalty.on(span, precision)
    span, value = _lowest(tangent, penalty, span)
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
        penalty = penalty.widened(wider, precision)
        span, fresh = _lowest(tangent, penalty, wider)
        gain, value = value - fresh, fresh
        if gain <= tolerance * (1 + abs(value)):
            break
    return span


@dataclass(frozen=True)
class _Penalty:
    """``½ |θ|²_Λ`` as a function of the place on a span, without the weights.

    Attributes:
        base: At the base of the span.
        tilt: Its slope there, along each direction.
        curve: Its curvature.
    """

    base: float
    tilt: Float[Tensor, " k"]
    curve: Float[Tensor, "k k"]

    @staticmethod
    def on(span: Span, precision: Float[Tensor, " p"]) -> "_Penalty":
        flat = span.base.flat
        weighed = precision * flat
        rows = [span.directions @ (precision * row) for row in span.directions]
        return _Penalty(
            float((weighed * flat).sum(dtype=torch.float64)) / 2,
            span.directions @ weighed,
            torch.stack(rows) if rows else flat.new_zeros(0, 0),
        )

    def widened(self, span: Span, precision: Float[Tensor, " p"]) -> "_Penalty":
        """After one direction more: only that is multiplied, unless older ones were given up."""
        if len(span.place) != len(self.tilt) + 1:
            return _Penalty.on(span, precision)
        weighed = precision * span.directions[-1]
        row = span.directions @ weighed
        curve = torch.cat([torch.cat([self.curve, row[:-1, None]], 1), row[None]])
        return _Penalty(self.base, torch.cat([self.tilt, (span.base.flat @ weighed)[None]]), curve)

    def at(self, place: Float[Tensor, " k"]) -> float:
        return self.base + float(place.double() @ (self.tilt + self.curve @ place / 2).double())


def _lowest(tangent: Tangent, penalty: _Penalty, span: Span) -> tuple[Span, float]:
    """The minimum over the span by Newton's method, and the negative log-joint there."""
    place, outputs = span.place, span.outputs
    value = penalty.at(place) - tangent.exact_log_likelihood(outputs)
    for _ in range(20 if len(place) else 0):
        slope = span.changes @ tangent.slope(outputs).flatten() + penalty.curve @ place
        curve = (tangent.curve_along(outputs, span.changes) + penalty.curve).double()
        step = _newton(curve, (slope + penalty.tilt).double()).to(place)
        length = 1.0
        while length > 1e-3:
            moved = replace(span, place=place - length * step)
            outputs = moved.outputs
            fresh = penalty.at(moved.place) - tangent.exact_log_likelihood(outputs)
            if fresh <= value:
                break
            length /= 2
        if not fresh < value:
            break
        gain, span, place, value = value - fresh, moved, moved.place, fresh
        if gain <= 1e-6 * (1 + abs(value)):
            break
    return span, value


def _newton(curvature: Float[Tensor, "k k"], slope: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The Newton step where directions may depend on each other."""
    values, vectors = torch.linalg.eigh(curvature)
    kept = values > 1e-10 * values[-1]
    coordinates = (vectors.mT @ slope)[kept] / values[kept]
    step: Tensor = vectors[:, kept] @ coordinates
    return step
