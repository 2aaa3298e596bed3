"""Eigenvalues of Kronecker factors replaced by the exact diagonal (George et al. 2018).

All columns of the output Hessian go through a layer together, a few examples at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot

from coset.bayes.problem import Problem
from coset.curvature.capture import pair_of, record
from coset.curvature.columns import column_count
from coset.curvature.maps import Pair
from coset.curvature.measure import Measured, recordings, squares
from coset.curvature.output_hessian import along
from coset.linalg import BlockDiagonal, Kronecker
from coset.vocabulary import Weights
from coset.weights.inputs import take_rows
from coset.weights.layout import Layout

_CACHED = 1 << 28
"""Bytes of gradients and inputs of all layers that the correction keeps at a time."""

_SIDE_BY_SIDE = 32
"""Columns whose gradients the correction multiplies together."""

_CACHE = 1 << 19
"""Entries of a product that is used again at once."""


def correct(
    problem: Problem,
    weights: Weights,
    layout: Layout,
    outputs: Tensor | None,
    separate: frozenset[str],
    previous: Measured,
) -> Measured:
    """The exact diagonal in the eigenbasis of ``previous``.

    Args:
        problem: Network, likelihood and data.
        weights: Where the network is linearised.
        layout: The tensors that are covered.
        outputs: Where the output Hessian is taken; ``None``: at the network's own outputs.
        separate: Weights that do not share a block with their bias.
        previous: Kronecker factors with any eigenvalues.
    """
    operator = previous.operator
    assert isinstance(operator, BlockDiagonal)
    blocks: dict[tuple[str, ...], Kronecker] = {}
    for names, block in zip(previous.layers, operator.blocks, strict=True):
        assert isinstance(block, Kronecker)
        blocks[names] = block
    tables = {names: torch.zeros_like(block.table) for names, block in blocks.items()}
    bases: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
    rows = _rows_at_a_time(problem, weights, layout, separate)
    for recorded, at, columns in recordings(problem, weights, layout, outputs, separate, rows=rows):
        if not bases:
            bases = {names: _basis(block, recorded.outputs) for names, block in blocks.items()}
        own = recorded.own
        if own is not None:
            right = _along(recorded.maps[own][0].right(at.outputs), bases[own][1])[:, 0, 0]
            sizes = along(problem.likelihood, at.outputs, at.targets, bases[own][0][0])
            tables[own] += (sizes.mT @ right.square()).double()
        others = {names: basis for names, basis in bases.items() if names != own}
        while others and (some := list(islice(columns, _SIDE_BY_SIDE))):
            found = [recorded.gradients(column) for column in some]
            for names, basis in others.items():
                pairs = [pair_of(recorded.maps[names], part.pop(names)) for part in found]
                tables[names] += turned_squares(pairs, *basis).double()
    corrected = tuple(replace(block, table=tables[names]) for names, block in blocks.items())
    return Measured(BlockDiagonal(corrected, operator.order), previous.layers)


def _basis(block: Kronecker, like: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates along the columns of ``L``: ``L⁻¹``, which is ``Lᵀ`` where it is orthogonal."""
    left = block.left if block.orthogonal else torch.linalg.inv(block.left).mT
    return left.to(like.dtype), block.right.to(like.dtype)


def _rows_at_a_time(
    problem: Problem, weights: Weights, layout: Layout, separate: frozenset[str]
) -> int:
    """Examples whose gradients of all columns, and the products they enter, fit the memory."""
    inputs, _ = next(iter(problem.train))
    one = take_rows(inputs, slice(1))
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
    if not same_right(pairs):
        return torch.stack(
            [squares((_along(u, left_basis), _along(v, right_basis))) for u, v in pairs]
        ).sum(0)
    if right.shape[2] == 1:
        total = torch.stack([_along(u, left_basis).square() for u, _ in pairs]).sum(0)
        return torch.einsum("nbro,nbri->boi", total, _along(right, right_basis).square())
    total = right.new_zeros(len(left_basis), left_basis.shape[-1], right_basis.shape[-1])
    for some in in_cache(pairs):
        total += turned_products(some, left_basis, right_basis).square_().sum((0, 2))
    return total


def same_right(pairs: Sequence[Pair]) -> bool:
    """Whether all columns have the same ``v``."""
    return all(pair[1] is pairs[0][1] for pair in pairs)


def in_cache(pairs: Sequence[Pair], least: int = 1) -> Iterator[list[Pair]]:
    """As many examples at a time as keep the outer products of all columns near the processor."""
    left, right = pairs[0]
    outer = left.shape[1] * left.shape[3] * right.shape[3]
    each = max(len(pairs) * outer, len(pairs) * left[0].numel(), right[0].numel())
    step = max(least, _CACHE // each)
    for start in range(0, len(left), step):
        here = slice(start, start + step)
        shared = right[here]
        yield [(u[here], shared if v is right else v[here]) for u, v in pairs]


def turned_products(
    pairs: Sequence[Pair], left_basis: Float[Tensor, "b o o"], right_basis: Float[Tensor, "b i i"]
) -> Float[Tensor, "n b c o i"]:
    """``Lᵀ (Σ_r u_r v_rᵀ) R`` of each example and column, for columns with the same ``v``.

    Each side is turned before the positions are summed or after, whichever is less work.

    >>> pair = torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 1)
    >>> turned_products([pair], torch.full((1, 1, 1), 3.0), torch.ones(1, 1, 1)).flatten()
    tensor([6.])
    """
    right = pairs[0][1]
    positions, rows = right.shape[2], left_basis.shape[-1]
    if rows == 1 and len(left_basis) > 1:  # channels of a norm: sums along the positions
        lines = [left.squeeze(-1) for left, _ in pairs]
        columns = right.unbind(-1)
        sums = [torch.stack([vecdot(line, v) for v in columns], dim=-1) for line in lines]
        return (_along(torch.stack(sums, dim=2), right_basis) * left_basis).unsqueeze(3)
    lefts = torch.cat([u for u, _ in pairs], dim=-1)  # n b r (c o)
    before = positions < lefts.shape[-1], positions < right.shape[-1]
    if before[1]:
        lefts = _along(lefts.unflatten(-1, (-1, rows)).flatten(2, 3), left_basis)
        lefts = lefts.unflatten(2, (positions, -1)).flatten(3)
    found = torch.matmul(lefts.mT, _along(right, right_basis) if before[0] else right)
    if not before[0]:
        found = _along(found, right_basis)
    found = found.unflatten(2, (-1, rows))  # n b c o i
    if not before[1]:
        found = torch.matmul(left_basis.mT.unsqueeze(1), found)
    return found


def _along(side: Float[Tensor, "n b r k"], basis: Float[Tensor, "b k j"]) -> Tensor:
    """The coordinates of one side along the columns of a basis."""
    if len(basis) == 1:  # one product for all examples
        return torch.matmul(side, basis[0])
    return side * basis if basis.shape[-1] == 1 else torch.einsum("nbrk,bkj->nbrj", side, basis)
