"""The Jacobian of a network over a data set, as an operator of shape ``(n c, p)``."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.products import Linearisation
from coset.curvature.rows import gradient_rows
from coset.linalg import FromFunctions
from coset.vocabulary import Weights
from coset.weights.inputs import split_rows
from coset.weights.layout import Layout

_KEPT = 1 << 28
"""Bytes of a Jacobian that is kept as a matrix."""

_COLUMNS = 100
"""Outputs of an example up to which a matrix is worth its making: a search for a mode needs about
as many products."""

DIRECT = 1 << 32
"""Multiplications that a direct Newton step may take; beyond, conjugate gradients."""

_CHUNK = 1 << 24
"""Entries that are formed at a time."""

_ACTIVATIONS = 1 << 30
"""Bytes of activations that a product holds at a time."""


@dataclass(frozen=True)
class Jacobian:
    """Rows are outputs, example by example; columns are weights.

    Attributes:
        shape: Outputs in all, and weights.
        matrix: The whole of it, where it is small; products then are matrix products.
        problem: Network and data.
        weights: Where it is taken.
        layout: The weights of the columns.
        memory: Bytes of activations that a product may hold at a time.
    """

    shape: tuple[int, int]
    matrix: Float[Tensor, "nc p"] | None
    problem: Problem
    weights: Weights
    layout: Layout
    memory: int = _ACTIVATIONS

    def __repr__(self) -> str:
        formed = "formed" if self.matrix is not None else "by products"
        return f"Jacobian(shape={self.shape}, {formed})"

    @staticmethod
    def of(
        problem: Problem,
        weights: Weights,
        layout: Layout,
        outputs: Tensor,
        *,
        kept: int = _KEPT,
        memory: int = _ACTIVATIONS,
    ) -> "Jacobian":
        """The Jacobian at ``weights``; ``outputs`` are those of all data.

        Args:
            problem: Network and data.
            weights: Where it is taken.
            layout: The weights of the columns.
            outputs: Those of all data.
            kept: Bytes of a matrix that may be kept; ``0``: products only.
            memory: Bytes of activations that a product may hold at a time.
        """
        shape = (outputs.numel(), layout.size)
        matrix = None
        worth = outputs[0].numel() <= _COLUMNS or min(shape) * shape[0] * shape[1] <= DIRECT
        if worth and shape[0] * shape[1] * outputs.element_size() <= kept:
            step = max(1, _CHUNK // max(1, outputs[0].numel() * layout.size))
            parts = [
                gradient_rows(problem.network, weights, layout, part).flatten(0, 1)
                for inputs, _ in problem.train
                for part in split_rows(inputs, step)
            ]
            matrix = torch.cat(parts)
        return Jacobian(shape, matrix, problem, weights, layout, memory)

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "nc k"]:
        """``J x``: how the outputs change with the weights."""
        if self.matrix is not None:
            return self.matrix @ x
        directions = x.mT.contiguous()
        parts = [self._line.push(inputs, directions) for inputs, _ in self.problem.train]
        return torch.cat([part.flatten(1) for part in parts], dim=1).mT

    def adjoint(self) -> FromFunctions:
        """``Jᵀ``."""
        return FromFunctions((self.shape[1], self.shape[0]), self.pull, self.matmat)

    def pull(self, x: Float[Tensor, "nc k"]) -> Float[Tensor, "p k"]:
        """``Jᵀ x``: the gradient in the weights."""
        if self.matrix is not None:
            return self.matrix.mT @ x
        total = x.new_zeros(x.shape[1], self.shape[1])
        cotangents, start = x.mT.reshape(x.shape[1], self.problem.train.size, -1), 0
        for inputs, targets in self.problem.train:
            rows = len(targets)
            total += self._line.pull(inputs, cotangents[:, start : start + rows])
            start += rows
        return total.mT

    def __matmul__(self, x: Tensor) -> Tensor:
        """``J x`` for a vector or a matrix."""
        return self.matmat(x) if x.dim() > 1 else self.matmat(x.unsqueeze(1)).squeeze(1)

    @cached_property
    def _line(self) -> Linearisation:
        return Linearisation(self.problem.network, self.weights, self.layout, self.memory)
