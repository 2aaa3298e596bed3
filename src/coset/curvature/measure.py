"""What all curvatures share: one pass over the data, column by column of the output Hessian."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.capture import Recorded, record
from coset.curvature.checks import check_finite
from coset.curvature.columns import columns
from coset.curvature.maps import Pair, outer
from coset.errors import CosetError
from coset.linalg import LinearOperator
from coset.vocabulary import Weights
from coset.weights.inputs import split_rows
from coset.weights.layout import Layout
from coset.weights.memory import activations

_RUN = 1 << 28
"""Bytes of activations of a recorded run."""

_UNFOLDED = 10
"""Times that a layer's inputs are held, at most: those of a 3 × 3 convolution, side by side."""


@dataclass(frozen=True)
class Cuts:
    """Where the groups of a prior cut through layers, so that blocks can respect them.

    Attributes:
        separate: Weights whose bias has another precision: the two get a block each.
        rows: Weights with several precisions, one a row or a few rows: their eigenbasis is taken
            after the rows have been brought to one scale, so that it follows any rescaling.
    """

    separate: frozenset[str] = frozenset()
    rows: frozenset[str] = frozenset()


UNCUT = Cuts()
"""Groups of whole layers."""


@dataclass(frozen=True)
class Measured:
    """A curvature, and which tensors each of its blocks covers.

    Attributes:
        operator: The generalised Gauss-Newton matrix ``Σ Jᵀ B J``, or what stands for it.
        layers: The tensors of each block of a block-diagonal operator; empty for other structures.
        notes: What a reader should know of how it was measured.
    """

    operator: LinearOperator
    layers: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


class Curvature(Protocol):
    """A recipe for the curvature of the likelihood: a frozen dataclass."""

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
        """Measures the curvature.

        Args:
            problem: Network, likelihood and data.
            weights: Where the network is linearised.
            layout: The tensors that are covered.
            outputs: Where the output Hessian ``B`` is taken, one row an example.  ``None``: at the
                network's own outputs.
            previous: An earlier result for other ``outputs``, parts of which may be used again.
            cuts: Where groups of the prior cut through layers.
        """
        ...


@dataclass(frozen=True)
class Place:
    """Where the output Hessian of some examples is taken, and which targets count there."""

    outputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Block:
    """Some tensors as matrices, and where their entries lie in the flat vector."""

    names: tuple[str, ...]
    entries: Int[Tensor, "b o i"]


def recordings(
    problem: Problem,
    weights: Weights,
    layout: Layout,
    outputs: Tensor | None,
    separate: frozenset[str] = frozenset(),
    *,
    rows: int | None = None,
) -> Iterator[tuple[Recorded, Place, Iterator[Tensor]]]:
    """The recorded runs of a few rows at a time, with the columns to send back.

    Without a number of rows there are as many as keep their activations within the memory.
    """
    start = 0
    for inputs, targets in problem.train:
        if rows is None:
            each = activations(problem.network, weights, next(split_rows(inputs, 1)))
            rows = max(1, _RUN // (2 * each.total + _UNFOLDED * each.largest + 1))
        few = min(rows, len(targets))
        for part, labels in zip(split_rows(inputs, few), targets.split(few), strict=True):
            recorded = record(problem.network, weights, layout, part, separate=separate)
            check_finite(recorded.outputs)
            own = recorded.outputs.detach()
            at = own if outputs is None else outputs[start : start + len(own)]
            start += len(own)
            yield recorded, Place(at, labels), columns(problem.likelihood, at, labels)


def blocks_of(recorded: Recorded, layout: Layout) -> list[Block]:
    """The blocks of a recorded run; tensors that no known layer reads are refused by name."""
    if recorded.foreign:
        listed = [f"{name!r} (read by {who})" for name, who in recorded.foreign.items()]
        raise CosetError(
            f"got {', '.join(listed[:4])}" + (" …" if len(listed) > 4 else "") + " in the layout",
            "needed weights of layers that KFAC knows, or that are added to or multiplied with "
            "data, with the examples along one axis of their own",
            "use Full() or DiagonalOnly(), or leave them out with subset=(…)",
        )
    index = layout.unflatten(torch.arange(layout.size))
    return [
        Block(names, uses[0].join([index[name] for name in names]))
        for names, uses in recorded.maps.items()
    ]


def order_of(blocks: list[Block]) -> Int[Tensor, " p"]:
    """The flat positions in the order of the blocks."""
    return torch.cat([block.entries.flatten() for block in blocks])


def has_order(
    recorded: Recorded, layout: Layout, layers: Sequence[tuple[str, ...]], order: Tensor
) -> bool:
    """Whether blocks for these layers, in this order of their entries, are those of a run.

    An operator that an older version wrote may list the weights of a convolution otherwise.
    """
    blocks = {block.names: block for block in blocks_of(recorded, layout)}
    return set(layers) == set(blocks) and torch.equal(
        order_of([blocks[names] for names in layers]), order.cpu()
    )


def squares(pair: Pair, limit: int = 1 << 24) -> Float[Tensor, "b o i"]:
    """``Σ_n (Σ_r u_r v_rᵀ)²``: the sum of squared gradients of each entry.

    One position: the squares of an outer product are the product of the squares.  Several: the
    outer products are formed for as many examples at a time as fit ``limit`` entries.

    >>> squares((torch.full((2, 1, 1, 1), 2.0), torch.full((2, 1, 1, 1), 3.0))).item()
    72.0
    """
    left, right = pair
    if left.shape[2] == 1:
        return torch.einsum("nbo,nbi->boi", left[:, :, 0].square(), right[:, :, 0].square())
    each = left.shape[1] * left.shape[3] * right.shape[3]
    step = max(1, limit // each)
    parts = zip(left.split(step), right.split(step), strict=True)
    return torch.stack([outer(u, v).square().sum(0) for u, v in parts]).sum(0)
