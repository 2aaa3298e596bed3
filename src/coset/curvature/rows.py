"""Rows of the Jacobian, example by example: from recorded layers, or of any network under vmap."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vjp, vmap

from coset.bayes.likelihood import Likelihood
from coset.curvature.capture import Recorded, record
from coset.curvature.checks import check_finite
from coset.curvature.columns import columns, unit_columns
from coset.curvature.maps import outer
from coset.curvature.measure import Block, blocks_of
from coset.curvature.plain_attention import PlainAttention
from coset.vocabulary import Inputs, Weights
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.inputs import map_parts, split_rows
from coset.weights.layout import Layout
from coset.weights.network import Network


def gradient_rows(
    network: Network,
    weights: Weights,
    layout: Layout,
    inputs: Inputs,
    likelihood: Likelihood | None = None,
    outputs: Tensor | None = None,
    index: Int[Tensor, " k"] | None = None,
    directions: Sequence[Tensor] | None = None,
    targets: Tensor | None = None,
) -> Float[Tensor, "n r p"]:
    """Rows of the Jacobian, or of ``Rᵀ J`` with ``R`` the root of the output Hessian.

    Args:
        network: The network.
        weights: All its weights.
        layout: The columns.
        inputs: Examples.
        likelihood: Whose Hessian weighs the rows; ``None``: plain Jacobian, one row an output.
        outputs: Where the Hessian is taken; ``None``: at the network's outputs.
        index: Some of the columns, in this order; no others are kept.
        directions: In the outputs, instead of the columns of the root; one row each.
        targets: Of the examples, for the Hessian.
    """
    recorded = record(network, weights, layout, inputs)
    check_finite(recorded.outputs)
    cotangents: Iterable[Tensor]
    if directions is not None:
        cotangents, count = directions, len(directions)
    elif likelihood is None:  # one at a time: all together they are the square of the outputs
        cotangents, count = unit_columns(recorded.outputs), recorded.outputs[0].numel()
    else:
        at = recorded.outputs if outputs is None else outputs
        assert targets is not None, "a Hessian is one at targets"
        cotangents = list(columns(likelihood, at, targets))
        count = len(cotangents)
    if recorded.foreign:
        rows = rows_by_example(network, weights, layout, inputs, [*cotangents]).detach()
        return rows if index is None else rows[:, :, index]
    chosen = torch.arange(layout.size) if index is None else index
    blocks = blocks_of(recorded, layout)
    if likelihood is None and directions is None:
        direct = _rows_of_last(recorded, blocks, layout)
        if direct is not None:
            return direct if index is None else direct[:, :, index]
    places = {b.names: _places(b.entries.flatten(), chosen) for b in blocks}
    rows = recorded.outputs.new_empty(len(recorded.outputs), count, len(chosen))
    for number, cotangent in enumerate(cotangents):
        for names, pair in recorded.pairs(cotangent).items():
            inside, columns_ = places[names]
            gradient = outer(*pair).flatten(1)
            rows[:, number, columns_] = gradient if index is None else gradient[:, inside]
    return rows.detach()


def _rows_of_last(
    recorded: Recorded, blocks: Sequence[Block], layout: Layout
) -> Float[Tensor, "n r p"] | None:
    """Rows of a network whose outputs are those of its only map: its inputs, put in place.

    Output ``o`` of a pixel moves with row ``o`` of the weights alone, by the inputs of that pixel.
    """
    map_ = recorded.last_map
    if map_ is None or len(blocks) != 1:
        return None
    outputs = recorded.outputs.detach().flatten(2)  # n o r
    inputs, entries = map_.right(outputs), blocks[0].entries[0]  # n 1 r i, o i
    rows = outputs.new_zeros(*outputs.shape, layout.size)
    for number, places in enumerate(entries):
        rows[:, number][..., places] = inputs[:, 0]
    return rows.flatten(1, 2)


def _places(
    entries: Int[Tensor, " q"], chosen: Int[Tensor, " k"]
) -> tuple[Int[Tensor, " j"], Int[Tensor, " j"]]:
    """Which entries of a block are chosen, and as which columns."""
    columns_ = torch.full((int(max(entries.max(), chosen.max())) + 1,), -1, dtype=torch.long)
    columns_[chosen] = torch.arange(len(chosen))
    found = columns_[entries]
    inside = (found >= 0).nonzero().squeeze(1)
    return inside, found[inside]


def rows_by_example(
    network: Network, weights: Weights, layout: Layout, inputs: Inputs, cotangents: Sequence[Tensor]
) -> Float[Tensor, "n r p"]:
    """Rows of the Jacobian of any network, with their graph: each example by itself, under vmap.

    A network that vmap cannot take (recurrent layers, say), or takes wrongly, is run example by
    example.
    """
    covered = layout.restrict(weights)

    def single(example: Inputs, directions: Tensor) -> Tensor:
        batch = map_parts(lambda part: part.unsqueeze(0), example)

        def apply(given: Weights) -> Tensor:
            return network.apply({**weights, **given}, batch)[0]

        pull = vjp(apply, covered)[1]
        return layout.flatten(vmap(lambda direction: pull(direction)[0])(directions))

    stacked = torch.stack(list(cotangents), dim=1)
    try:
        # fused attention has no rule for vmap, and no second derivative
        with PlainAttention(), _Wary():
            rows: Tensor = vmap(single)(inputs, stacked)
    except RuntimeError:
        return _rows_in_turn(network, weights, layout, inputs, stacked)
    return rows


class _Wary(Calls):
    """Stops at what torch differentiates wrongly under vmap: distances, for all but the first."""

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        if function is torch.cdist:
            raise RuntimeError("gradients of cdist are wrong under vmap")
        return function(*args, **given)


def _rows_in_turn(
    network: Network, weights: Weights, layout: Layout, inputs: Inputs, cotangents: Tensor
) -> Float[Tensor, "n r p"]:
    """Rows by plain backward passes, one an example and direction."""
    leaves = {
        name: tensor.detach().requires_grad_() for name, tensor in layout.restrict(weights).items()
    }
    rows = []
    for one, directions in zip(split_rows(inputs, 1), cotangents, strict=True):
        with torch.enable_grad():
            outputs = network.apply({**weights, **leaves}, one)[0]
        found = [
            torch.autograd.grad(
                outputs, list(leaves.values()), direction, retain_graph=True, allow_unused=True
            )
            for direction in directions
        ]
        zeros = [torch.zeros_like(leaf) for leaf in leaves.values()]
        filled = [
            torch.cat([(z if g is None else g).flatten() for g, z in zip(each, zeros, strict=True)])
            for each in found
        ]
        rows.append(torch.stack(filled))
    return torch.stack(rows)
