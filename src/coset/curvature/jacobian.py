"""The Jacobian of a network over a data set, as an operator of shape ``(n c, p)``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.kept import KeptRun, keep
from coset.curvature.products import Linearisation
from coset.curvature.rows import gradient_rows
from coset.linalg import FromFunctions
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import count_rows, split_rows
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

_GRAPHS = 1 << 31
"""Bytes of activations that are kept for the next product."""

_PART = 1 << 28
"""Bytes of activations of one run."""


@dataclass(frozen=True)
class Jacobian:
    """Rows are outputs, example by example; columns are weights.

    Attributes:
        shape: Outputs in all, and weights.
        matrix: The whole of it, where it is small; products then are matrix products.
        problem: Network and data.
        weights: Where it is taken.
        layout: The weights of the columns.
        room: Bytes of activations that may be kept from one product to the next.
    """

    shape: tuple[int, int]
    matrix: Float[Tensor, "nc p"] | None
    problem: Problem
    weights: Weights
    layout: Layout
    room: int = _GRAPHS

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
        room: int = _GRAPHS,
    ) -> "Jacobian":
        """The Jacobian at ``weights``; ``outputs`` are those of all data.

        Without room for a matrix (``kept=0``) no activations are kept either.
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
        return Jacobian(shape, matrix, problem, weights, layout, room if kept else 0)

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "nc k"]:
        """``J x``: how the outputs change with the weights."""
        if self.matrix is not None:
            return self.matrix @ x
        directions = x.mT.contiguous()
        return torch.cat([part.push(directions).flatten(1) for part in self._parts()], dim=1).mT

    def adjoint(self) -> FromFunctions:
        """``Jᵀ``."""
        return FromFunctions((self.shape[1], self.shape[0]), self.pull, self.matmat)

    def pull(self, x: Float[Tensor, "nc k"]) -> Float[Tensor, "p k"]:
        """``Jᵀ x``: the gradient in the weights."""
        if self.matrix is not None:
            return self.matrix.mT @ x
        total = x.new_zeros(x.shape[1], self.shape[1])
        cotangents, start = x.mT.reshape(x.shape[1], self.problem.train.size, -1), 0
        for part in self._parts():
            total += part.pull(cotangents[:, start : start + part.rows])
            start += part.rows
        return total.mT

    def _parts(self) -> Iterator["KeptRun | _Fresh"]:
        """The data a few rows at a time: kept runs as far as the memory goes, then fresh ones."""
        runs = self._runs
        if runs and sum(run.rows for run in runs) == self.problem.train.size:
            yield from runs
            return
        room, number = self.room, 0
        for inputs, _ in self.problem.train:
            each = self._line.row_bytes(inputs, 0) // 2
            for chunk in split_rows(inputs, max(1, _PART // each)):
                size = each * count_rows(chunk)
                room -= size
                if number < len(runs):
                    yield runs[number]
                elif room >= 0 and self._can_keep:
                    runs.append(keep(self.problem.network, self.weights, self.layout, chunk))
                    yield runs[number]
                else:
                    yield _Fresh(self._line, chunk)
                number += 1

    @cached_property
    def _runs(self) -> list[KeptRun]:
        """Runs that are kept; a search for a mode needs a dozen products."""
        return []

    @cached_property
    def _can_keep(self) -> bool:
        """Whether kept runs give the derivatives of this network, as one example tells."""
        inputs, _ = next(iter(self.problem.train))
        one = next(split_rows(inputs, 1))
        like = self.layout.flatten(self.weights)
        noise = torch.randn(1, len(like), generator=torch.Generator().manual_seed(0))
        try:
            expected = self._line.push(one, noise.to(like))
            run = keep(self.problem.network, self.weights, self.layout, one)
            found = run.push(noise.to(like))
        except RuntimeError:  # an operation without a second derivative, say
            return False
        largest = float(expected.abs().max())
        return bool(found.sub(expected).abs().max() <= 1e-3 * largest)

    def __matmul__(self, x: Tensor) -> Tensor:
        """``J x`` for a vector or a matrix."""
        return self.matmat(x) if x.dim() > 1 else self.matmat(x.unsqueeze(1)).squeeze(1)

    @cached_property
    def _line(self) -> Linearisation:
        return Linearisation(self.problem.network, self.weights, self.layout)


@dataclass(frozen=True)
class _Fresh:
    """Some rows of data that are run anew for each product."""

    line: Linearisation
    inputs: Inputs

    @property
    def rows(self) -> int:
        return count_rows(self.inputs)

    def push(self, directions: Float[Tensor, "k p"]) -> Float[Tensor, "k n ..."]:
        return self.line.push(self.inputs, directions)

    def pull(self, cotangents: Float[Tensor, "k n ..."]) -> Float[Tensor, "k p"]:
        return self.line.pull(self.inputs, cotangents)
