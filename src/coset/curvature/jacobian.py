"""The Jacobian of a network over a data set, as an operator of shape ``(n c, p)``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp

from coset.bayes.problem import Problem
from coset.curvature.measure import gradient_rows
from coset.linalg import FromFunctions
from coset.vocabulary import Weights
from coset.weights.layout import Layout

_KEPT = 1 << 28
"""Bytes of a Jacobian that is kept as a matrix."""

_CHUNK = 1 << 24
"""Entries that are formed at a time."""


@dataclass(frozen=True)
class Jacobian:
    """Rows are outputs, example by example; columns are weights.

    Attributes:
        shape: Outputs in all, and weights.
        matrix: The whole of it, where it is small; products then are matrix products.
        problem: Network and data.
        weights: Where it is taken.
        layout: The weights of the columns.
    """

    shape: tuple[int, int]
    matrix: Float[Tensor, "nc p"] | None
    problem: Problem
    weights: Weights
    layout: Layout

    @staticmethod
    def of(
        problem: Problem, weights: Weights, layout: Layout, outputs: Tensor, *, kept: int = _KEPT
    ) -> "Jacobian":
        """The Jacobian at ``weights``; ``outputs`` are those of all data."""
        shape = (outputs.numel(), layout.size)
        matrix = None
        if shape[0] * shape[1] * outputs.element_size() <= kept:
            step = max(1, _CHUNK // max(1, outputs[0].numel() * layout.size))
            parts = [
                gradient_rows(problem.network, weights, layout, part).flatten(0, 1)
                for inputs, _ in problem.train
                for part in inputs.split(step)
            ]
            matrix = torch.cat(parts)
        return Jacobian(shape, matrix, problem, weights, layout)

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "nc k"]:
        """``J x``: how the outputs change with the weights."""
        if self.matrix is not None:
            return self.matrix @ x
        return torch.stack([self._forward(column) for column in x.unbind(1)], dim=1)

    def adjoint(self) -> FromFunctions:
        """``Jᵀ``."""
        return FromFunctions((self.shape[1], self.shape[0]), self.pull, self.matmat)

    def pull(self, x: Float[Tensor, "nc k"]) -> Float[Tensor, "p k"]:
        """``Jᵀ x``: the gradient in the weights."""
        if self.matrix is not None:
            return self.matrix.mT @ x
        return torch.stack([self._backward(column) for column in x.unbind(1)], dim=1)

    def __matmul__(self, x: Tensor) -> Tensor:
        """``J x`` for a vector or a matrix."""
        return self.matmat(x) if x.dim() > 1 else self.matmat(x.unsqueeze(1)).squeeze(1)

    def _forward(self, direction: Float[Tensor, " p"]) -> Float[Tensor, " nc"]:
        tangent = self.layout.unflatten(direction)
        parts = []
        for apply in self._batches():
            parts.append(jvp(apply, (self.layout.restrict(self.weights),), (tangent,))[1].flatten())
        return torch.cat(parts).detach()

    def _backward(self, cotangent: Float[Tensor, " nc"]) -> Float[Tensor, " p"]:
        total, start = cotangent.new_zeros(self.shape[1]), 0
        for apply in self._batches():
            pulled = vjp(apply, self.layout.restrict(self.weights))
            outputs, pull = pulled[0], pulled[1]
            part = cotangent[start : start + outputs.numel()].reshape(outputs.shape)
            total = total + self.layout.flatten(pull(part)[0])
            start += outputs.numel()
        return total.detach()

    def _batches(self) -> Iterator[Callable[[Weights], Tensor]]:
        for inputs, _ in self.problem.train:
            yield self._on(inputs)

    def _on(self, inputs: Tensor) -> Callable[[Weights], Tensor]:
        return lambda given: self.problem.network.apply({**self.weights, **given}, inputs)
