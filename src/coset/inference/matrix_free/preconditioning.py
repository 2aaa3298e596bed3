"""What stands for the curvature where only its rough shape matters."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.kfac import KFAC
from coset.curvature.matrix_free import ConjugateGradients, StochasticDescent
from coset.errors import CosetError
from coset.inference.matrix_free.model import Model, estimate_diagonal
from coset.linalg import (
    BlockDiagonal,
    Diagonal,
    LinearOperator,
    cast,
    inverse,
    logdet,
    root,
    scale,
    shift,
)

_WIDEST = 2_000
"""Side of the largest Kronecker factor that is decomposed unless it is asked for."""


@dataclass(frozen=True)
class Near:
    """``K + Λ``, close to ``H + Λ`` and easily inverted.

    Attributes:
        shifted: The operator, in double precision.
        dtype: Of the vectors it meets.
    """

    shifted: LinearOperator
    dtype: torch.dtype

    @cached_property
    def inverse(self) -> LinearOperator:
        """``(K + Λ)⁻¹``."""
        return cast(inverse(self.shifted), self.dtype)

    @cached_property
    def half(self) -> LinearOperator:
        """A root of the inverse."""
        return root(self.inverse)

    @property
    def log_determinant(self) -> float:
        """Of ``K + Λ``."""
        return float(logdet(self.shifted))


@dataclass(frozen=True)
class Rough:
    """A curvature at unit noise, and what a reader should know of the choice."""

    operator: LinearOperator
    notes: tuple[str, ...] = ()

    def near(self, model: Model, noise: float, precision: Float[Tensor, " p"]) -> Near:
        """``noise · K + Λ``; where a block can take one precision only, its geometric mean."""
        operator = self.operator if noise == 1 else scale(self.operator, noise)
        flat = precision.double()
        if isinstance(operator, BlockDiagonal):
            parts = flat[operator.order].log().split(operator.sizes)
            flat = operator.scatter(
                torch.cat([part.mean().exp().expand(len(part)) for part in parts])
            )
        return Near(shift(operator, flat), model.features.dtype)


def rough_curvature(
    solver: ConjugateGradients | StochasticDescent, model: Model, outputs: Tensor
) -> Rough:
    """Kronecker factors where they are wanted and possible, else an estimated diagonal."""
    wanted = solver.preconditioner if isinstance(solver, ConjugateGradients) else None
    tangent = model.tangent
    notes: tuple[str, ...] = ()
    automatic = wanted is None and isinstance(solver, ConjugateGradients) and _narrow(model)
    if isinstance(wanted, KFAC) or automatic:
        recipe = wanted if isinstance(wanted, KFAC) else KFAC(corrected=False)
        try:
            found = recipe.build(tangent.problem, tangent.weights, tangent.layout, outputs=outputs)
            return Rough(found.operator)
        except CosetError as error:
            if not automatic:
                raise
            notes = (f"preconditioned by an estimated diagonal, not by KFAC ({error})",)
    diagonal = estimate_diagonal(tangent, outputs, probes=model.samples, seed=model.seed)
    return Rough(Diagonal(diagonal.double()), notes)


def _narrow(model: Model) -> bool:
    shapes = model.tangent.layout.shapes
    return all(max((*shape[:1], math.prod(shape[1:]))) <= _WIDEST for shape in shapes)


def preconditioner_bytes(solver: ConjugateGradients | StochasticDescent, model: Model) -> int:
    """What the factors take: their double-precision moments, vectors and single inverses."""
    diagonal = 32 * model.tangent.layout.size
    if not isinstance(solver, ConjugateGradients):
        return diagonal
    wanted = solver.preconditioner
    if not (isinstance(wanted, KFAC) or (wanted is None and _narrow(model))):
        return diagonal
    return diagonal + sum(
        24 * (shape[0] ** 2 + math.prod(shape[1:]) ** 2)
        for shape in model.tangent.layout.shapes
        if shape
    )
