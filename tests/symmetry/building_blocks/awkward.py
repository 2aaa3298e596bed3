"""Blocks on the last axis that bend labels or refuse them: order, constants, writes to views."""

from random import Random

import torch
from tests.symmetry.building_blocks.block import (
    Block,
    Made,
    activation,
    divisor,
    linear,
    weight,
    width,
)
from torch import Tensor, nn
from torch.nn import functional


def ordered(draw: Random, n: int) -> Made:
    """Operations that read the units in order."""
    operation = draw.choice(
        (
            lambda x: x.flip(-1),
            lambda x: x.cumsum(-1),
            lambda x: x.roll(1, -1),
            lambda x: x.sort(-1).values,
            lambda x: x.diff(dim=-1, prepend=x[..., :1]),
            lambda x: x.cummax(-1).values,
        )
    )
    return Block(lambda m, x: operation(x)), n


def largest(draw: Random, n: int) -> Made:
    return Block(lambda m, x: x.topk(2, -1).values), 2


def gathered(draw: Random, n: int) -> Made:
    """Indices that are constants: some units twice, some never."""
    index = [draw.randrange(n) for _ in range(draw.randint(2, n))]
    return Block(lambda m, x: x[..., torch.tensor(index)]), len(index)


def table_row(draw: Random, n: int) -> Made:
    """Rows of a learnt table, looked up by constants and added."""
    first, second = draw.randrange(4), draw.randrange(4)

    def run(m: Block, x: Tensor) -> Tensor:
        return x + functional.embedding(torch.tensor([first, second]), m.table).mean(0)

    return Block(run, table=torch.randn(4, n)), n


def written_view(draw: Random, n: int) -> Made:
    """Write into a view of a copy."""
    start = draw.randrange(n - 1)
    stop = draw.randint(start + 1, n)
    act, kind = activation(draw), draw.randrange(4)

    def run(m: Block, x: Tensor) -> Tensor:
        x = x.clone()
        if kind == 0:
            x[..., start:stop].relu_()
        elif kind == 1:
            x[..., start:stop] = act(x[..., start:stop].clone())
        elif kind == 2:
            x[..., start] = 0.0
        else:
            x[..., start:stop] += m.shift[start:stop]
        return x

    return Block(run, shift=torch.randn(n)), n


def unbound(draw: Random, n: int) -> Made:
    """Take groups apart, change one, put them back, perhaps in another order or on another axis."""
    groups = divisor(draw, n)
    if groups is None:
        return None
    size, axis, act = n // groups, draw.choice((-1, -2)), activation(draw)
    backwards, back = draw.random() < 0.5, draw.choice((-1, -2))
    changed = size if axis == -2 else groups

    def run(m: Block, x: Tensor) -> Tensor:
        first, *rest = x.unflatten(-1, (groups, size)).unbind(axis)
        parts = [act(m.layer(first)), *rest]
        return torch.stack(parts[::-1] if backwards else parts, back).flatten(-2)

    return Block(run, layer=linear(draw, changed, changed)), n


def padded(draw: Random, n: int) -> Made:
    before, after = draw.randrange(3), draw.randrange(3)
    value = draw.choice((0.0, 0.0, 0.5))
    return Block(lambda m, x: functional.pad(x, (before, after), value=value)), n + before + after


def crop(draw: Random, n: int) -> Made:
    if n < 4:
        return None
    start = draw.randrange(1, 3)
    return Block(lambda m, x: x[..., start:]), n - start


def scaled(draw: Random, n: int) -> Made:
    """Products with vectors and numbers that are learnt, saved or constant."""
    kind = draw.randrange(6)
    vector = torch.linspace(0.5, 1.5, n)
    if kind == 0:
        return Block(lambda m, x: x * m.gain, gain=torch.randn(n)), n
    if kind == 1:
        return Block(
            lambda m, x: x * m.gain + m.shift, gain=torch.randn(1), shift=torch.randn(1)
        ), n
    if kind == 2:
        return Block(lambda m, x: x * torch.linspace(0.5, 1.5, n, dtype=x.dtype)), n
    if kind == 3:
        return Block(lambda m, x: 0.5 * x + 1.0), n
    block = Block(lambda m, x: x * m.saved)
    block.register_buffer("saved", vector, persistent=kind == 4)
    return block, n


def compared(draw: Random, n: int) -> Made:
    kind = draw.randrange(4)
    layer = linear(draw, n, n)
    mask = [draw.random() < 0.5 for _ in range(n)]
    if kind == 0:
        return Block(lambda m, x: torch.maximum(x, m.layer(x)), layer=layer), n
    if kind == 1:
        return Block(lambda m, x: torch.minimum(x, m.level), level=torch.randn(n)), n
    if kind == 2:
        return Block(lambda m, x: torch.where(torch.tensor(mask), x, m.layer(x)), layer=layer), n
    return Block(lambda m, x: torch.where(x > 0, m.layer(x), x), layer=layer), n


def repeated(draw: Random, n: int) -> Made:
    kind = draw.randrange(3)
    if kind == 0:
        return Block(lambda m, x: x.repeat_interleave(2, -1)), 2 * n
    if kind == 1:
        return Block(lambda m, x: torch.cat([x, x], -1)), 2 * n
    return Block(lambda m, x: x.unsqueeze(-2).expand(*x.shape[:-1], 2, n).flatten(-2)), 2 * n


def crossed(draw: Random, n: int) -> Made:
    """A stream added to itself under another grouping: products that do not align."""
    groups = divisor(draw, n)
    if groups is None:
        return None
    act = activation(draw)

    def run(m: Block, x: Tensor) -> Tensor:
        shuffled = x.unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2)
        return act(m.layer(x)) + shuffled

    return Block(run, layer=linear(draw, n, n)), n


def reshaped_weight(draw: Random, n: int) -> Made:
    """One tensor read as a matrix and as a stack of matrices."""
    groups, size = draw.randint(2, 3), draw.randint(2, 4)
    tensor = weight(groups * size, n, fan_in=n)
    axis = draw.choice(("s", "g"))

    def run(m: Block, x: Tensor) -> Tensor:
        flat = (x @ m.tensor.T).unflatten(-1, (groups, size))
        stacked = torch.einsum(f"...i,gsi->...{axis}", x, m.tensor.view(groups, size, n))
        return (flat * stacked.unsqueeze(-2 if axis == "s" else -1)).flatten(-2)

    return Block(run, tensor=tensor), groups * size


def diagonal(draw: Random, n: int) -> Made:
    """Parts of a square matrix that look at both axes at once."""
    matrix = weight(n, n, fan_in=n)
    part = draw.choice((torch.triu, lambda w: w - torch.diag(w.diagonal()), lambda w: w + w.T))
    return Block(lambda m, x: x @ part(m.matrix), matrix=matrix), n


def recurrent(draw: Random, n: int) -> Made:
    """Three steps of a cell, gates cut from one product."""
    hidden = draw.randint(2, 6)

    def run(m: Block, x: Tensor) -> Tensor:
        state = x.new_zeros(*x.shape[:-1], hidden)
        for _ in range(2):
            keep, candidate = (m.inputs(x) + m.states(state)).chunk(2, -1)
            keep = keep.sigmoid()
            state = keep * state + (1 - keep) * candidate.tanh()
        return state

    return Block(
        run, inputs=linear(draw, n, 2 * hidden), states=linear(draw, hidden, 2 * hidden)
    ), hidden


def unit_length(draw: Random, n: int) -> Made:
    kind = draw.randrange(3)
    if kind == 0:
        return Block(lambda m, x: x / (x.norm(dim=-1, keepdim=True) + 1e-3)), n
    if kind == 1:
        return Block(lambda m, x: x - x.mean(-1, keepdim=True)), n
    return Block(lambda m, x: x / (1.0 + x.abs().sum(-1, keepdim=True))), n


def unused(draw: Random, n: int) -> Made:
    """A parameter nobody reads, and one that is read in part."""
    return Block(
        lambda m, x: x + m.table[0], table=torch.randn(2, n), spare=nn.Linear(n, width(draw))
    ), n


AWKWARD = (
    ordered,
    largest,
    gathered,
    table_row,
    written_view,
    written_view,
    unbound,
    unbound,
    padded,
    crop,
    scaled,
    scaled,
    compared,
    repeated,
    crossed,
    reshaped_weight,
    diagonal,
    recurrent,
    unit_length,
    unused,
)
