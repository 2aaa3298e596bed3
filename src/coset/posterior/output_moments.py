"""Mean and covariance of the outputs of a network that is linearised at a Gaussian's mean.

``S(x) = J(x) Σ J(x)ᵀ`` for each input.  For Kronecker and diagonal covariances ``J`` is not formed:
the outer products ``u vᵀ`` it consists of go through the eigenbasis one layer at a time.  Outputs
with pixels have one covariance a pixel; no more pixels are at work than the memory allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.capture import Recorded, record
from coset.curvature.columns import unit_columns
from coset.curvature.correction import in_cache, same_right, turned_products
from coset.curvature.maps import Pair, outer
from coset.curvature.measure import blocks_of, has_order
from coset.curvature.rows import gradient_rows, rows_by_example
from coset.linalg import (
    BlockDiagonal,
    Diagonal,
    Embedded,
    Kronecker,
    LinearOperator,
    RowBlocks,
)
from coset.posterior.gaussian import Gaussian
from coset.vocabulary import Inputs
from coset.weights.inputs import count_rows, map_parts, parts_of, split_rows
from coset.weights.network import Network

_ENTRIES = 1 << 23
"""Entries of a Jacobian that is formed for a chunk of inputs."""

_KEPT = 1 << 26
"""Entries of the gradients and inputs of all layers, where no Jacobian is formed."""

_ROWS = 256
"""Inputs of a chunk at most."""


@dataclass(frozen=True)
class Entries:
    """Variances of a block's own entries: a diagonal covariance, layer by layer."""

    table: Float[Tensor, "b o i"]


BlockCovariance: TypeAlias = LinearOperator | Entries


@runtime_checkable
class OutputDeviations(Protocol):
    """A posterior given by samples of the linearised outputs."""

    def output_deviations(
        self, network: Network, inputs: Inputs
    ) -> tuple[Float[Tensor, "n c *pixels"], Float[Tensor, "m n c *pixels"]]:
        """The network's outputs, and how far each sample lies from them."""
        ...

    def output_moments(
        self, network: Network, inputs: Inputs
    ) -> tuple[Float[Tensor, "n c *pixels"], Float[Tensor, "n c c *pixels"]]:
        """Mean and covariance of the outputs."""
        ...


def output_moments(
    posterior: Gaussian | OutputDeviations, network: Network, inputs: Inputs
) -> tuple[Float[Tensor, "n c *pixels"], Float[Tensor, "n c c *pixels"]]:
    """Mean and covariance of the outputs of the linearised network.

    Inputs that require gradients keep their graph; the whole Jacobian of a chunk is formed then.
    """
    if isinstance(posterior, OutputDeviations):
        return posterior.output_moments(network, inputs)
    one = next(split_rows(inputs, 1))
    outputs = network.apply(posterior.centre(network), one)
    rows = min(_ROWS, count_rows(inputs), _rows_that_fit(posterior, network, one, outputs.shape[1]))
    step = _moments if outputs.dim() == 2 else _pixel_moments
    parts = [
        step(posterior, network, chunk, rows)
        for chunk in split_rows(inputs, rows if outputs.dim() == 2 else max(1, rows // 16))
    ]
    means, covariances = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(covariances)


def needs_graph(inputs: Inputs) -> bool:
    """Whether somebody wants gradients in the inputs."""
    return torch.is_grad_enabled() and any(part.requires_grad for part in parts_of(inputs))


def _rows_that_fit(posterior: Gaussian, network: Network, one: Inputs, outputs: int) -> int:
    """Inputs of a chunk, by what is formed for each."""
    covariance, layout = posterior.covariance, posterior.layout
    columns = layout.size
    if isinstance(covariance, Embedded):
        columns = max(len(covariance.index), max(layout.sizes) // 8)
    elif isinstance(covariance, BlockDiagonal | Diagonal) and not needs_graph(one):
        recorded = record(network, posterior.centre(network), layout, one)
        if not recorded.foreign:
            pairs = recorded.pairs(torch.ones_like(recorded.outputs)).values()
            kept = sum(outputs * left.numel() + right.numel() for left, right in pairs)
            return max(1, _KEPT // max(1, kept))
    return max(1, _ENTRIES // max(1, outputs * columns))


def _moments(
    posterior: Gaussian, network: Network, inputs: Inputs, rows: int
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c c"]]:
    blocks = covariance_blocks(posterior, network, inputs)
    known = None if blocks is None else blocks[0].outputs.detach()
    outputs = _outputs(posterior, network, inputs) if known is None else known
    directions = list(unit_columns(outputs.detach()))
    return outputs, _spread(posterior, network, inputs, directions, blocks)


def _outputs(posterior: Gaussian, network: Network, inputs: Inputs) -> Tensor:
    with torch.set_grad_enabled(needs_graph(inputs)):
        return network.apply(posterior.centre(network), inputs)


def _pixel_moments(
    posterior: Gaussian, network: Network, inputs: Inputs, rows: int
) -> tuple[Float[Tensor, "n c *pixels"], Float[Tensor, "n c c *pixels"]]:
    """Every input as often as pixels fit into a chunk, each time with directions in one pixel."""
    outputs = _outputs(posterior, network, inputs)
    count, channels, *pixels = outputs.shape
    total = outputs[0, 0].numel()
    found = []
    for chosen in torch.arange(total).split(max(1, rows // count)):
        repeats = len(chosen)
        repeated = map_parts(partial(torch.repeat_interleave, repeats=repeats, dim=0), inputs)
        hot = torch.eye(total, dtype=outputs.dtype, device=outputs.device)[chosen]
        directions = []
        for channel in range(channels):
            direction = outputs.new_zeros(count, repeats, channels, total)
            direction[:, :, channel] = hot
            directions.append(direction.reshape(-1, channels, *pixels))
        blocks = covariance_blocks(posterior, network, repeated)
        spread = _spread(posterior, network, repeated, directions, blocks)
        found.append(spread.reshape(count, repeats, channels, channels))
    covariance = torch.cat(found, dim=1).movedim(1, -1)
    return outputs, covariance.reshape(count, channels, channels, *pixels)


def _spread(
    posterior: Gaussian,
    network: Network,
    inputs: Inputs,
    directions: Sequence[Tensor],
    blocks: "Blocks | None",
) -> Float[Tensor, "n c c"]:
    """``D J Σ Jᵀ Dᵀ`` with one row of ``D`` a direction in the outputs."""
    if blocks is None:
        found = jacobian_rows(posterior, network, inputs, directions)
        rows = posterior.widened(found)
        spread = times_covariance(posterior, rows.flatten(0, 1)).reshape(rows.shape)
        return (rows @ spread.mT).to(found)
    recorded, operators = blocks
    pairs = [recorded.pairs(direction) for direction in directions]
    total: Tensor | None = None
    for names, operator in operators.items():
        part = block_covariance([found[names] for found in pairs], operator)
        total = part if total is None else total + part
    assert total is not None
    return total


Blocks: TypeAlias = tuple[Recorded, Mapping[tuple[str, ...], BlockCovariance]]
"""A recorded run, and the covariance of each of its layers."""


def covariance_blocks(posterior: Gaussian, network: Network, inputs: Inputs) -> Blocks | None:
    """Where prediction can go layer by layer; else nothing, and Jacobians are needed."""
    if needs_graph(inputs):
        return None
    weights, layout = posterior.centre(network), posterior.layout
    covariance = posterior.covariance
    if isinstance(covariance, BlockDiagonal) and posterior.layers:
        separate = frozenset(names[0] for names in posterior.layers if len(names) == 1)
        recorded = record(network, weights, layout, inputs, separate=separate)
        if has_order(recorded, layout, posterior.layers, covariance.order):
            return recorded, dict(zip(posterior.layers, covariance.blocks, strict=True))
        return None
    if isinstance(covariance, Diagonal):
        recorded = record(network, weights, layout, inputs)
        if not recorded.foreign:
            return recorded, {
                block.names: Entries(covariance.entries[block.entries])
                for block in blocks_of(recorded, layout)
            }
    return None


def jacobian_rows(
    posterior: Gaussian, network: Network, inputs: Inputs, directions: Sequence[Tensor]
) -> Float[Tensor, "n r p"]:
    """Rows of the Jacobian in the coordinates that are uncertain."""
    weights, layout = posterior.centre(network), posterior.layout
    index = posterior.covariance.index if isinstance(posterior.covariance, Embedded) else None
    if needs_graph(inputs):
        rows = rows_by_example(network, weights, layout, inputs, directions)
        return rows if index is None else rows[:, :, index]
    return gradient_rows(network, weights, layout, inputs, index=index, directions=directions)


def times_covariance(posterior: Gaussian, rows: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
    """Rows of :func:`jacobian_rows` times the covariance."""
    covariance = posterior.covariance
    inner = covariance.inner if isinstance(covariance, Embedded) else covariance
    return inner.matmat(rows.mT).mT


def block_covariance(pairs: Sequence[Pair], operator: BlockCovariance) -> Float[Tensor, "n c c"]:
    """``J Σ Jᵀ`` of one block, from the outer products of each output."""
    unshared = one_position(pairs)
    if unshared is not None:
        return _unshared(*unshared, operator)
    if isinstance(operator, RowBlocks):  # its matrices are read once for several examples
        return torch.cat([_by_rows(some, operator) for some in in_cache(pairs, 8)])
    return torch.cat([_shared(some, operator) for some in in_cache(pairs)])


def _shared(pairs: Sequence[Pair], operator: BlockCovariance) -> Float[Tensor, "n c c"]:
    """Several positions: the outer products of a few examples are formed."""
    assert isinstance(operator, Kronecker | Entries)
    flat = turned_gradients(pairs, operator).mul_(operator.table.sqrt()).flatten(2)
    return torch.matmul(flat, flat.mT)


def _by_rows(pairs: Sequence[Pair], operator: RowBlocks) -> Float[Tensor, "n c c"]:
    """One matrix over the rows for each column, all examples and outputs together.

    Products are written where the next one reads them: to rearrange so many numbers takes as long
    as to multiply them.
    """
    parts = []
    for block, roots in enumerate(operator.roots):
        columns = _columns(pairs, operator, block)
        count, outputs = columns.shape[1], len(pairs)
        spread = columns.new_empty(count * outputs, *roots.shape[:2])
        rows = columns.view(len(roots), count * outputs, -1)
        torch.bmm(rows, roots, out=spread.transpose(0, 1))
        flat = spread.view(count, outputs, -1)
        parts.append(flat @ flat.mT)
    return torch.stack(parts).sum(0)


def _columns(pairs: Sequence[Pair], operator: RowBlocks, block: int) -> Float[Tensor, "i n co"]:
    """Gradients in a block's weights, by column of the turned inputs, contiguous."""
    if not same_right(pairs):
        turned = turned_gradients(pairs, operator)[:, :, block]  # n c o i
        return turned.permute(3, 0, 1, 2).flatten(2).contiguous()
    right, basis = pairs[0][1][:, block], operator.right[block]
    lefts = torch.cat([left[:, block] for left, _ in pairs], dim=-1)  # n r (c o)
    columns = lefts.new_empty(len(basis), len(lefts), lefts.shape[-1])
    if right.shape[1] < lefts.shape[-1]:  # fewer positions than rows: turned before they are summed
        first, second = torch.matmul(right, basis).mT, lefts
    else:
        first, second = basis.mT.expand(len(lefts), -1, -1), torch.matmul(right.mT, lefts)
    torch.bmm(first, second, out=columns.transpose(0, 1))
    return columns


def one_position(
    pairs: Sequence[Pair],
) -> tuple[Float[Tensor, "n c b o"], Float[Tensor, "n b i"]] | None:
    """Both sides of the outer products where each is one, with the same inputs for all outputs."""
    right = pairs[0][1]
    if right.shape[2] > 1 or not same_right(pairs):
        return None
    return torch.stack([left[:, :, 0] for left, _ in pairs], 1), right[:, :, 0]


def turned_gradients(
    pairs: Sequence[Pair], operator: BlockCovariance
) -> Float[Tensor, "n c b o i"]:
    """Gradients in the block's weights, in the operator's own basis."""
    right = pairs[0][1]
    if same_right(pairs):
        if isinstance(operator, Kronecker):
            return turned_products(pairs, operator.left, operator.right).transpose(1, 2)
        # turn the inputs once, and form the outer products of all outputs together
        lefts = torch.stack([_turned(left, operator, "left") for left, _ in pairs], dim=2)
        lefts = lefts.transpose(3, 4).flatten(2, 3)  # n b (c o) r
        found = lefts @ _turned(right, operator, "right")
        split: Tensor = found.unflatten(2, (len(pairs), -1))
        return split.transpose(1, 2)
    turned = [(_turned(u, operator, "left"), _turned(v, operator, "right")) for u, v in pairs]
    return torch.stack([outer(u, v) for u, v in turned], dim=1)


def _turned(
    side: Float[Tensor, "n b r k"], operator: BlockCovariance, which: str
) -> Float[Tensor, "n b r k"]:
    """One side of the outer products in the operator's own basis."""
    if isinstance(operator, Kronecker):
        return torch.matmul(side, operator.left if which == "left" else operator.right)
    if isinstance(operator, RowBlocks) and which == "right":
        return torch.matmul(side, operator.right)
    return side


def _unshared(
    lefts: Float[Tensor, "n c b o"], right: Float[Tensor, "n b i"], operator: BlockCovariance
) -> Float[Tensor, "n c c"]:
    """One position: ``S_cd = Σ_o u_co u_do w_o`` with ``w = table · v²``, no outer product."""
    if isinstance(operator, RowBlocks):
        turned = torch.einsum("nbi,bij->nbj", right, operator.right)
        middle = torch.einsum("nbj,bjxy->nbxy", turned.square(), operator.middle)
        return torch.einsum("ncbx,nbxy,ndby->ncd", lefts, middle, lefts)
    lefts, right = turned_sides(lefts, right, operator)
    assert isinstance(operator, Kronecker | Entries)
    weight = torch.einsum("boi,nbi->nbo", operator.table, right.square())
    scaled = (lefts * weight.unsqueeze(1)).flatten(2)
    return scaled @ lefts.flatten(2).mT


def turned_sides(
    lefts: Float[Tensor, "n c b o"], right: Float[Tensor, "n b i"], operator: BlockCovariance
) -> tuple[Float[Tensor, "n c b o"], Float[Tensor, "n b i"]]:
    """Both sides in the eigenbasis of a Kronecker product."""
    if not isinstance(operator, Kronecker):
        return lefts, right
    return (
        torch.einsum("ncbx,bxo->ncbo", lefts, operator.left),
        torch.einsum("nbx,bxi->nbi", right, operator.right),
    )
