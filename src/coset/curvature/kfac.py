"""Kronecker-factored curvature (Martens and Grosse 2015; Eschenhagen et al. 2023 for sharing).

The gradient of a block of weights is ``Σ_r u_r v_rᵀ``.  Its second moment is approximated by the
Kronecker product of the moments of ``u`` and of ``v``; the correction (George et al. 2018) keeps
the eigenvectors and puts the exact second moments along them in place of the eigenvalues.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.capture import Recorded, pair_of
from coset.curvature.columns import column_count, pixels_note, with_random_columns
from coset.curvature.correction import correct
from coset.curvature.kronecker_factors import Sums, kronecker
from coset.curvature.maps import LinearMap
from coset.curvature.measure import UNCUT, Block, Cuts, Measured, blocks_of, order_of, recordings
from coset.curvature.moments import add_moment, symmetric
from coset.curvature.output_hessian import summed
from coset.errors import CosetError, require_counts, require_kinds
from coset.linalg import BlockDiagonal, Kronecker
from coset.vocabulary import Weights
from coset.weights.inputs import take_rows
from coset.weights.layout import Layout

_BATCHES = 16
"""Batches that are added up in the precision of the network, before they go into the total."""


@dataclass(frozen=True)
class KFAC:
    """One Kronecker product for each layer, weights and bias together.

    Attributes:
        approximation: How positions that share weights are combined.  ``"expand"``: as if each
            were an example; exact for linear networks with one loss term a position.
            ``"reduce"``: summed first; exact where positions are averaged before the loss.  Sums
            that vanish (before a group norm; more inputs of a layer than examples) leave
            eigenvectors open: there they are those of ``"expand"``.
        corrected: Whether the eigenvalues are replaced by the exact diagonal in the eigenbasis,
            for one more pass over the data.
        columns: The most columns of the output Hessian's root that are sent back, one a class and
            pixel.  Where there are more, so many random ones stand for them, which is unbiased
            for everything that is linear in the Hessian; ``None``: always all.
        memory: Bytes that the factors may take.

    >>> KFAC(approximation="reduce").corrected
    True
    """

    approximation: Literal["expand", "reduce"] = "expand"
    corrected: bool = True
    columns: int | None = 100
    memory: int = 8 << 30

    def __post_init__(self) -> None:
        require_kinds(self)
        if self.columns is not None:
            require_counts(columns=self.columns)

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
        """Measures the curvature; with ``previous``, only the correction in its eigenbasis."""
        count, pixels = self._too_many(problem, weights)
        notes: tuple[str, ...] = ()
        if count and self.columns is not None:
            problem = with_random_columns(problem, self.columns, again=previous is not None)
            told = (
                f"curvature from {self.columns} random columns of the output Hessian in place of "
                f"{count}; KFAC(columns=None) takes all"
            )
            notes = (told, *filter(None, [pixels]))
        if previous is None or not self.corrected:
            previous = self._factors(problem, weights, layout, outputs, cuts)
        if self.corrected:
            previous = correct(problem, weights, layout, outputs, cuts.separate, previous)
        return replace(previous, notes=notes)

    def _too_many(self, problem: Problem, weights: Weights) -> tuple[int, str]:
        """How many columns there are, where random ones stand for them, or zero; and of pixels."""
        inputs, _ = next(iter(problem.train))
        one = problem.network.apply(weights, take_rows(inputs, slice(1)))
        count = column_count(problem.likelihood, one)
        if self.columns is None or count <= self.columns:
            return 0, ""
        return count, pixels_note(problem.likelihood, one)

    def _factors(
        self,
        problem: Problem,
        weights: Weights,
        layout: Layout,
        outputs: Tensor | None,
        cuts: Cuts,
    ) -> Measured:
        sums: dict[tuple[str, ...], _Moments] = {}
        blocks: list[Block] = []
        for recorded, at, columns in recordings(problem, weights, layout, outputs, cuts.separate):
            if not blocks:
                blocks = blocks_of(recorded, layout)
                self._check_memory(blocks)
                sums = {b.names: _Moments(b, recorded, self.approximation) for b in blocks}
            own = recorded.own
            if own is not None:
                count = column_count(problem.likelihood, at.outputs)
                moment = summed(problem.likelihood, at.outputs, at.targets)
                sums[own].add_own(recorded.maps[own][0], moment, at.outputs, count)
            for column in columns if own is None or len(blocks) > 1 else ():
                recorded.visit(column, partial(_add_unless_own, sums, recorded, own))
            for moments in sums.values():
                moments.flush()
        operators = [
            sums[block.names].kronecker(scaled=bool(cuts.rows & {*block.names})) for block in blocks
        ]
        operator = BlockDiagonal(tuple(operators), order_of(blocks))
        return Measured(operator, tuple(block.names for block in blocks))

    def _check_memory(self, blocks: list[Block]) -> None:
        sizes = {b.names: b.entries.shape for b in blocks}
        each = 32 if self.approximation == "reduce" else 16  # bytes; sums and single positions
        total = sum(each * b * (o * o + i * i) for b, o, i in sizes.values())
        if total > self.memory:
            worst = max(sizes, key=lambda names: sum(size**2 for size in sizes[names][1:]))
            raise CosetError(
                f"got layers whose Kronecker factors take {total / 2**30:.1f} GiB, "
                f"the largest for {worst[0]!r}",
                f"needed at most {self.memory / 2**30:.1f} GiB",
                "use DiagonalOnly(), or a subset that leaves that layer out",
            )


def _add_unless_own(
    sums: Mapping[tuple[str, ...], "_Moments"],
    recorded: Recorded,
    own: tuple[str, ...] | None,
    names: tuple[str, ...],
    gradients: list[Tensor],
) -> None:
    """Adds a column of one block; the layer whose outputs are the network's has all of them."""
    if names != own:
        sums[names].add(recorded.maps[names], gradients)


class _Moments:
    """Running second moments of ``u`` and ``v`` of one block.

    A few batches are added up in the precision of the network and then in double precision.
    """

    def __init__(self, block: Block, recorded: Recorded, approximation: str) -> None:
        blocks, rows, cols = block.entries.shape
        like = recorded.outputs
        self.left = torch.zeros(blocks, rows, rows, dtype=torch.float64, device=like.device)
        self.right = torch.zeros(blocks, cols, cols, dtype=torch.float64, device=like.device)
        self.examples, self.positions = 0, 1
        self._reduce = approximation == "reduce"
        # sums over positions may vanish where single positions do not
        self._single: _Moments | None = None
        if self._reduce:
            self._single = _Moments(block, recorded, "expand")
        self._recent = (
            torch.zeros_like(self.left, dtype=like.dtype),
            torch.zeros_like(self.right, dtype=like.dtype),
        )
        self._batches = 0
        self._right: Tensor | Callable[[], Tensor] | None = None
        self._repeats = 0  # a side that is the same for every column is multiplied only once

    def add(self, uses: Sequence[LinearMap], gradients: Sequence[Tensor]) -> None:
        """Adds one column of one batch."""
        if self._single is not None:
            self._single.add(uses, gradients)
        right: Tensor | Callable[[], Tensor]
        if len(uses) == 1 and uses[0].moment is not None and not self._reduce:
            left, right = uses[0].left(gradients[0]), uses[0].moment
        else:
            left, right = pair_of(uses, gradients)
        self.examples += len(left)
        self.positions = left.shape[2]
        add_moment(self._recent[0], left.sum(2, keepdim=True) if self._reduce else left)
        if self._right is not right:
            self._flush_right()
            self._right = right
        self._repeats += 1

    def add_own(self, use: LinearMap, moment: Tensor, at: Tensor, columns: int) -> None:
        """Adds all columns of a batch for the layer whose outputs are the network's."""
        if self._single is not None:
            self._single.add_own(use, moment, at, columns)
        self.examples += columns * len(at)
        self._recent[0].add_(moment)
        self._right, self._repeats = use.right(at), columns

    def flush(self) -> None:
        """Ends a batch."""
        if self._single is not None:
            self._single.flush()
        self._flush_right()
        self._batches += 1
        if self._batches % _BATCHES == 0:
            self._settle()

    def _flush_right(self) -> None:
        """Adds the right side that is waiting, as often as it came."""
        if isinstance(self._right, Tensor):
            side = self._right.sum(2, keepdim=True) if self._reduce else self._right
            add_moment(self._recent[1], side, self._repeats)
        elif self._right is not None:
            self._recent[1].add_(self._right(), alpha=self._repeats)
        self._right, self._repeats = None, 0

    def _settle(self) -> None:
        for total, recent in zip((self.left, self.right), self._recent, strict=True):
            total.add_(recent)
            recent.zero_()

    def sums(self) -> Sums:
        """``Σ u uᵀ`` and ``Σ v vᵀ`` over all batches so far."""
        self._settle()
        return Sums(symmetric(self.left), symmetric(self.right))

    def kronecker(self, *, scaled: bool) -> Kronecker:
        """Their product, in its eigenbasis; ``scaled``: that of rows of one size."""
        share = 10 * torch.finfo(self._recent[0].dtype).eps
        return kronecker(
            self.sums(),
            self.examples * (self.positions**2 if self._reduce else self.positions),
            single=None if self._single is None else self._single.sums(),
            rounding=(share, share**2 * self.positions),
            scaled=scaled,
        )
