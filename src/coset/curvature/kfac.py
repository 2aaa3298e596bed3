"""Kronecker-factored curvature (Martens and Grosse 2015; Eschenhagen et al. 2023 for sharing).

The gradient of a block of weights is ``Σ_r u_r v_rᵀ``.  Its second moment is approximated by the
Kronecker product of the moments of ``u`` and of ``v``; the correction (George et al. 2018) keeps
the eigenvectors and puts the exact second moments along them in place of the eigenvalues.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.capture import Recorded, pair_of, record
from coset.curvature.maps import LinearMap, Pair
from coset.curvature.measure import (
    UNCUT,
    Block,
    Cuts,
    Measured,
    blocks_of,
    column_count,
    order_of,
    recordings,
    squares,
)
from coset.curvature.output_hessian import along, summed
from coset.errors import CosetError
from coset.linalg import BlockDiagonal, Kronecker
from coset.vocabulary import Weights
from coset.weights.layout import Layout

_CACHED = 1 << 28
"""Bytes of gradients and inputs of all layers that the correction keeps at a time."""

_SIDE_BY_SIDE = 32
"""Columns whose gradients the correction multiplies together."""


@dataclass(frozen=True)
class KFAC:
    """One Kronecker product for each layer, weights and bias together.

    Attributes:
        approximation: How positions that share weights are combined.  ``"expand"``: as if each
            were an example; exact for linear networks with one loss term a position.
            ``"reduce"``: summed first; exact where positions are averaged before the loss.
        corrected: Whether the eigenvalues are replaced by the exact diagonal in the eigenbasis,
            for one more pass over the data.
        memory: Bytes that the factors may take.

    >>> KFAC(approximation="reduce").corrected
    True
    """

    approximation: Literal["expand", "reduce"] = "expand"
    corrected: bool = True
    memory: int = 8 << 30

    def __post_init__(self) -> None:
        if self.approximation not in ("expand", "reduce"):
            raise CosetError(
                f"got the approximation {self.approximation!r}", "needed 'expand' or 'reduce'"
            )

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
        if previous is None or not self.corrected:
            previous = self._factors(problem, weights, layout, outputs, cuts)
        if not self.corrected:
            return previous
        return _correct(problem, weights, layout, outputs, cuts.separate, previous)

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
        start = 0
        for recorded, columns in recordings(problem, weights, layout, outputs, cuts.separate):
            if not blocks:
                blocks = blocks_of(recorded, layout)
                self._check_memory(blocks)
                sums = {b.names: _Moments(b, recorded, self.approximation) for b in blocks}
            at = _here(recorded, outputs, start)
            start += len(at)
            own = recorded.own
            if own is not None:
                count = column_count(problem.likelihood, at)
                sums[own].add_own(recorded.maps[own][0], summed(problem.likelihood, at), at, count)
            for column in columns if own is None or len(blocks) > 1 else ():
                for names, found in recorded.gradients(column).items():
                    if names != own:
                        sums[names].add(recorded.maps[names], found)
            for moments in sums.values():
                moments.flush()
        operators = [
            sums[block.names].kronecker(scaled=bool(cuts.rows & {*block.names})) for block in blocks
        ]
        operator = BlockDiagonal(tuple(operators), order_of(blocks))
        return Measured(operator, tuple(block.names for block in blocks))

    def _check_memory(self, blocks: list[Block]) -> None:
        sizes = {b.names: b.entries.shape for b in blocks}
        total = sum(16 * b * (o * o + i * i) for b, o, i in sizes.values())
        if total > self.memory:
            worst = max(sizes, key=lambda names: sum(size**2 for size in sizes[names][1:]))
            raise CosetError(
                f"got layers whose Kronecker factors take {total / 2**30:.1f} GiB, "
                f"the largest for {worst[0]!r}",
                f"needed at most {self.memory / 2**30:.1f} GiB",
                "use DiagonalOnly(), or a subset that leaves that layer out",
            )


class _Moments:
    """Running second moments of ``u`` and ``v`` of one block, in double precision over batches."""

    def __init__(self, block: Block, recorded: Recorded, approximation: str) -> None:
        blocks, rows, cols = block.entries.shape
        like = recorded.outputs
        self.left = torch.zeros(blocks, rows, rows, dtype=torch.float64, device=like.device)
        self.right = torch.zeros(blocks, cols, cols, dtype=torch.float64, device=like.device)
        self.examples, self.positions = 0, 1
        self._reduce = approximation == "reduce"
        self._batch = torch.zeros_like(self.left, dtype=like.dtype)
        self._right: Tensor | Callable[[], Tensor] | None = None
        self._repeats = 0  # a side that is the same for every column is multiplied only once

    def add(self, uses: Sequence[LinearMap], gradients: Sequence[Tensor]) -> None:
        """Adds one column of one batch."""
        right: Tensor | Callable[[], Tensor]
        if len(uses) == 1 and uses[0].moment is not None and not self._reduce:
            left, right = uses[0].left(gradients[0]), uses[0].moment
        else:
            left, right = pair_of(uses, gradients)
        self.examples += len(left)
        self.positions = left.shape[2]
        _add_moment(self._batch, left.sum(2, keepdim=True) if self._reduce else left)
        if self._right is not right:
            self._flush_right()
            self._right = right
        self._repeats += 1

    def add_own(self, use: LinearMap, moment: Tensor, at: Tensor, columns: int) -> None:
        """Adds all columns of a batch for the layer whose outputs are the network's."""
        self.examples += columns * len(at)
        self._batch += moment
        self._right, self._repeats = use.right(at), columns

    def flush(self) -> None:
        """Ends a batch."""
        self.left += self._batch
        self._batch.zero_()
        self._flush_right()

    def _flush_right(self) -> None:
        """Adds the right side that is waiting, as often as it came."""
        if isinstance(self._right, Tensor):
            side = self._right.sum(2, keepdim=True) if self._reduce else self._right
            found = torch.zeros_like(self.right, dtype=side.dtype)
            self.right.add_(_add_moment(found, side), alpha=self._repeats)
        elif self._right is not None:
            self.right.add_(self._right(), alpha=self._repeats)
        self._right, self._repeats = None, 0

    def kronecker(self, *, scaled: bool) -> Kronecker:
        """The product of the moments, in its eigenbasis; ``scaled``: that of rows of one size."""
        repeats = self.positions**2 if self._reduce else self.positions
        right, cols = _eigen(self.right / (self.examples * repeats))
        if not scaled:
            left, rows = _eigen(self.left)
            return Kronecker(left, right, rows.unsqueeze(-1) * cols.unsqueeze(-2))
        sizes = self.left.diagonal(dim1=1, dim2=2).sqrt()
        sizes = torch.where(sizes > 0, sizes, 1.0).unsqueeze(-1)
        left, rows = _eigen(self.left / sizes / sizes.mT)
        table = rows.unsqueeze(-1) * cols.unsqueeze(-2)
        return Kronecker(sizes * left, right, table, orthogonal=False)


def _add_moment(total: Float[Tensor, "b k k"], side: Float[Tensor, "n b r k"]) -> Tensor:
    """Adds ``Σ s sᵀ`` over examples and positions to the total, in place, without a copy of s."""
    blocks, positions, size = side.shape[1:]
    if size == 1:  # channels of a norm: many blocks of one number
        return total.add_(side.square().sum((0, 2)).unsqueeze(-1))
    if blocks == 1:
        rows = side[:, 0]
        if rows.is_contiguous() or positions < size:
            flat = rows.flatten(0, 1)
            total[0].addmm_(flat.mT, flat)
            return total
        return total.add_(torch.bmm(rows.mT, rows).sum(0))
    return total.add_(torch.matmul(side.mT, side).sum(0))


def _eigen(matrix: Float[Tensor, "b k k"]) -> tuple[Tensor, Float[Tensor, "b k"]]:
    if not bool(matrix.isfinite().all()):
        raise CosetError(
            "got gradients of the network that are not finite",
            "needed finite numbers at its own weights",
            "check the inputs and whether training diverged",
        )
    values, vectors = torch.linalg.eigh(matrix)
    return vectors, values.clamp_min(0)


def _correct(
    problem: Problem,
    weights: Weights,
    layout: Layout,
    outputs: Tensor | None,
    separate: frozenset[str],
    previous: Measured,
) -> Measured:
    """The exact diagonal in the eigenbasis of ``previous``."""
    operator = previous.operator
    assert isinstance(operator, BlockDiagonal)
    blocks: dict[tuple[str, ...], Kronecker] = {}
    for names, block in zip(previous.layers, operator.blocks, strict=True):
        assert isinstance(block, Kronecker)
        blocks[names] = block
    tables = {names: torch.zeros_like(block.table) for names, block in blocks.items()}
    bases: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
    rows, start = _rows_at_a_time(problem, weights, layout, separate), 0
    for recorded, columns in recordings(problem, weights, layout, outputs, separate, rows=rows):
        if not bases:
            bases = {names: _basis(block, recorded.outputs) for names, block in blocks.items()}
        at = _here(recorded, outputs, start)
        start += len(at)
        own = recorded.own
        if own is not None:
            right = _along(recorded.maps[own][0].right(at), bases[own][1])[:, 0, 0]
            sizes = along(problem.likelihood, at, bases[own][0][0])
            tables[own] += (sizes.mT @ right.square()).double()
        others = {names: basis for names, basis in bases.items() if names != own}
        while others and (some := list(islice(columns, _SIDE_BY_SIDE))):
            found = [recorded.gradients(column) for column in some]
            for names, basis in others.items():
                pairs = [pair_of(recorded.maps[names], part.pop(names)) for part in found]
                tables[names] += turned_squares(pairs, *basis).double()
    corrected = tuple(replace(block, table=tables[names]) for names, block in blocks.items())
    return Measured(BlockDiagonal(corrected, operator.order), previous.layers)


def _here(recorded: Recorded, outputs: Tensor | None, start: int) -> Tensor:
    """Where the output Hessian of a recorded run is taken."""
    if outputs is None:
        return recorded.outputs.detach()
    return outputs[start : start + len(recorded.outputs)]


def _basis(block: Kronecker, like: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates along the columns of ``L``: ``L⁻¹``, which is ``Lᵀ`` where it is orthogonal."""
    left = block.left if block.orthogonal else torch.linalg.inv(block.left).mT
    return left.to(like.dtype), block.right.to(like.dtype)


def _rows_at_a_time(
    problem: Problem, weights: Weights, layout: Layout, separate: frozenset[str]
) -> int:
    """Examples whose gradients of all columns, and the products they enter, fit the memory."""
    inputs, _ = next(iter(problem.train))
    one = inputs[:1] if isinstance(inputs, Tensor) else tuple(part[:1] for part in inputs)
    recorded = record(problem.network, weights, layout, one, separate=separate)
    columns = min(_SIDE_BY_SIDE, column_count(problem.likelihood, recorded.outputs))
    entries = 0
    for left, right in recorded.pairs(torch.ones_like(recorded.outputs)).values():
        shared = left.shape[1] * left.shape[3] * right.shape[3] if left.shape[2] > 1 else 0
        entries += columns * left.numel() + right.numel()
        entries = max(entries, 2 * columns * shared)
    return max(1, _CACHED // (entries * recorded.outputs.element_size()))


def turned_squares(
    pairs: Sequence[Pair], left_basis: Float[Tensor, "b o o"], right_basis: Float[Tensor, "b i i"]
) -> Float[Tensor, "b o i"]:
    """``Σ_n Σ_c (Lᵀ (Σ_r u_r v_rᵀ) R)²``, entry by entry, over examples and columns.

    Args:
        pairs: ``u`` and ``v`` of each column; usually all have the same ``v``.
        left_basis: ``L``.
        right_basis: ``R``.

    >>> one = torch.ones(1, 1, 1)
    >>> turned_squares([(torch.full((2, 1, 1, 1), 2.0), torch.full((2, 1, 1, 1), 3.0))], one, one)
    tensor([[[72.]]])
    """
    right = pairs[0][1]
    if any(pair[1] is not right for pair in pairs):
        return torch.stack(
            [squares((_along(u, left_basis), _along(v, right_basis))) for u, v in pairs]
        ).sum(0)
    positions, rows = right.shape[2], left_basis.shape[-1]
    if positions == 1:
        total = torch.stack([_along(u, left_basis).square() for u, _ in pairs]).sum(0)
        return torch.einsum("nbro,nbri->boi", total, _along(right, right_basis).square())
    lefts = torch.cat([u for u, _ in pairs], dim=-1)  # n b r (c o)
    # each side is turned before the positions are summed or after, whichever is less work
    before = positions < lefts.shape[-1], positions < right.shape[-1]
    if before[1]:
        lefts = _along(lefts.unflatten(-1, (-1, rows)).flatten(2, 3), left_basis)
        lefts = lefts.unflatten(2, (positions, -1)).flatten(3)
    products = torch.matmul(lefts.mT, _along(right, right_basis) if before[0] else right)
    if not before[0]:
        products = _along(products, right_basis)
    products = products.unflatten(2, (-1, rows))  # n b c o i
    if not before[1]:
        products = torch.matmul(left_basis.mT.unsqueeze(1), products)
    return products.square_().sum((0, 2))


def _along(side: Float[Tensor, "n b r k"], basis: Float[Tensor, "b k j"]) -> Tensor:
    """The coordinates of one side along the columns of a basis."""
    if len(basis) == 1:  # one product for all examples
        return torch.matmul(side, basis[0])
    return side * basis if basis.shape[-1] == 1 else torch.einsum("nbrk,bkj->nbrj", side, basis)
