"""The exact Gauss-Newton matrix, and its diagonal."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.checks import check_gradients
from coset.curvature.columns import column_count
from coset.curvature.measure import UNCUT, Cuts, Measured, blocks_of, recordings, squares
from coset.curvature.rows import gradient_rows
from coset.errors import CosetError
from coset.linalg import Dense, Diagonal, LowRankPlusDiagonal
from coset.vocabulary import Weights
from coset.weights.inputs import count_rows, split_rows, take_rows
from coset.weights.layout import Layout

_CHUNK = 1 << 25
"""Entries of the Jacobian that are formed at a time."""


@dataclass(frozen=True)
class Full:
    """The exact matrix ``Σ Jᵀ B J``, over the weights or over the outputs, whichever is smaller.

    With fewer outputs in all than weights only the rows of ``B^½ J`` are kept, and every
    determinant and inverse is one of the size of the outputs.

    Attributes:
        memory: Bytes that the matrix may take.

    >>> Full(memory=1024).memory
    1024
    """

    memory: int = 4 << 30

    def build(
        self,
        problem: Problem,
        weights: Weights,
        layout: Layout,
        *,
        outputs: Tensor | None = None,
        previous: Measured | None = None,
        cuts: Cuts = UNCUT,
    ) -> Measured:
        """Measures the curvature."""
        return self.of_columns(problem, weights, layout, outputs, None)

    def of_columns(
        self,
        problem: Problem,
        weights: Weights,
        layout: Layout,
        outputs: Tensor | None,
        index: Int[Tensor, " k"] | None,
    ) -> Measured:
        """The matrix over some of the weights; ``None``: over all."""
        first, _ = next(iter(problem.train))
        found = problem.network.apply(weights, take_rows(first, slice(1)))
        rows = problem.train.size * column_count(problem.likelihood, found)
        count = layout.size if index is None else len(index)
        size = min(rows, count) * count * 8
        if size > self.memory:
            raise CosetError(
                f"got {count:,} weights and {rows:,} rows: the full matrix takes "
                f"{size / 2**30:.1f} GiB",
                f"needed at most {self.memory / 2**30:.1f} GiB",
                "use KFAC() or DiagonalOnly(), or a smaller subset such as LastLayer()",
            )
        parts = weighted_rows(problem, weights, layout, outputs, index)
        if rows < count:
            factor = torch.cat(list(parts)).double().mT.contiguous()
            check_gradients(factor)
            return Measured(LowRankPlusDiagonal(factor.new_zeros(count), factor))
        total = torch.zeros(count, count, dtype=torch.float64, device=found.device)
        for part in parts:
            wide = part.double()  # rounded products would leave eigenvalues below zero
            total += wide.mT @ wide
        check_gradients(total)
        return Measured(Dense(total))


@dataclass(frozen=True)
class DiagonalOnly:
    """The diagonal of the exact matrix: ``Σ Σ_c (s_cᵀ J)²`` over the columns of ``B^½``.

    >>> DiagonalOnly()
    DiagonalOnly()
    """

    def build(
        self,
        problem: Problem,
        weights: Weights,
        layout: Layout,
        *,
        outputs: Tensor | None = None,
        previous: Measured | None = None,
        cuts: Cuts = UNCUT,
    ) -> Measured:
        """Measures the curvature."""
        total = torch.zeros(layout.size, dtype=torch.float64)
        for recorded, _, columns in recordings(problem, weights, layout, outputs):
            if recorded.foreign:
                return self._by_rows(problem, weights, layout, outputs)
            total = total.to(recorded.outputs.device)
            blocks = {b.names: b.entries.flatten() for b in blocks_of(recorded, layout)}
            for column in columns:
                for names, pair in recorded.pairs(column).items():
                    total[blocks[names]] += squares(pair).flatten().double()
        check_gradients(total)
        return Measured(Diagonal(total))

    def _by_rows(
        self, problem: Problem, weights: Weights, layout: Layout, outputs: Tensor | None
    ) -> Measured:
        parts = weighted_rows(problem, weights, layout, outputs)
        sums = [part.double().square().sum(0) for part in parts]
        total = torch.stack(sums).sum(0)
        check_gradients(total)
        return Measured(Diagonal(total))


def weighted_rows(
    problem: Problem,
    weights: Weights,
    layout: Layout,
    outputs: Tensor | None,
    index: Int[Tensor, " k"] | None = None,
) -> Iterator[Float[Tensor, "r p"]]:
    """The rows of ``B^½ J`` for all data, some examples at a time."""
    start = 0
    for inputs, targets in problem.train:
        found = problem.network.apply(weights, take_rows(inputs, slice(1)))
        columns = layout.size if index is None else max(len(index), max(layout.sizes) // 4)
        each = column_count(problem.likelihood, found) * columns
        few = max(1, _CHUNK // each)
        for part, labels in zip(split_rows(inputs, few), targets.split(few), strict=True):
            count = count_rows(part)
            at = None if outputs is None else outputs[start : start + count]
            rows = gradient_rows(
                problem.network,
                weights,
                layout,
                part,
                problem.likelihood,
                at,
                index,
                targets=labels,
            )
            yield rows.flatten(0, 1)
            start += count
