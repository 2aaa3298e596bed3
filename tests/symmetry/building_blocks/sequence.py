"""Blocks on sequences (n, t, c): attention in several layouts, mixing over time."""

from collections.abc import Callable
from random import Random

import torch
from tests.symmetry.building_blocks.block import Block, Made, activation, linear, weight, width
from torch import Tensor, nn
from torch.nn import functional

Layout = Callable[[Tensor, int, int], tuple[Tensor, ...]]
LAYOUTS: tuple[Layout, ...] = (
    lambda x, h, d: tuple(p.unflatten(-1, (h, d)).transpose(1, 2) for p in x.chunk(3, -1)),
    lambda x, h, d: x.unflatten(-1, (3, h, d)).permute(2, 0, 3, 1, 4).unbind(0),
    lambda x, h, d: x.unflatten(-1, (h, 3 * d)).transpose(1, 2).split(d, -1),
    lambda x, h, d: x.unflatten(-1, (d, h, 3)).permute(0, 3, 1, 2, 4).unbind(-1),
)


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1) @ value


def by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("nhsd,nhtd->nhst", query, key)
    return torch.einsum("nhst,nhtd->nhsd", scores.softmax(-1), value)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query @ (key.transpose(-1, -2) @ value)


ATTENTIONS = (
    by_hand,
    by_einsum,
    causal,
    functional.scaled_dot_product_attention,
    linear_attention,
)


def attention(draw: Random, n: int) -> Made:
    """Fused projection, any layout; with or without a residual."""
    heads, size = draw.choice(((2, 2), (2, 3), (3, 2), (1, 4), (2, 4)))
    layout, attend, residual = draw.choice(LAYOUTS), draw.choice(ATTENTIONS), draw.random() < 0.5

    def run(m: Block, x: Tensor) -> Tensor:
        mixed = attend(*layout(m.project(x), heads, size)).transpose(1, 2).flatten(2)
        return x + m.out(mixed) if residual else m.out(mixed)

    project, out = linear(draw, n, 3 * heads * size), linear(draw, heads * size, n)
    return Block(run, project=project, out=out), n


def split_attention(draw: Random, n: int) -> Made:
    """The input itself is query, key and value, or two of them share a matrix."""
    size = draw.randint(2, 4)
    kind = draw.randrange(3)

    def run(m: Block, x: Tensor) -> Tensor:
        query, value = m.query(x), m.value(x)
        key = query if kind == 0 else value if kind == 1 else m.key(x)
        return by_hand(query, key, value)

    layers = {name: linear(draw, n, size) for name in ("query", "key", "value")}
    return Block(run, **layers), size


def grouped_queries(draw: Random, n: int) -> Made:
    shared, size = 2, draw.randint(2, 3)

    def heads(x: Tensor, count: int) -> Tensor:
        return x.unflatten(-1, (count, size)).transpose(1, 2)

    def run(m: Block, x: Tensor) -> Tensor:
        key, value = (
            heads(part, 2).repeat_interleave(shared, 1) for part in m.pair(x).chunk(2, -1)
        )
        return by_hand(heads(m.query(x), 2 * shared), key, value).transpose(1, 2).flatten(2)

    query, pair = linear(draw, n, 2 * shared * size), linear(draw, n, 4 * size)
    return Block(run, query=query, pair=pair), 2 * shared * size


def rotary(draw: Random, n: int) -> Made:
    """Rotated queries and keys, one head."""
    half = draw.randint(2, 3)

    def rotate(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        angle = place * torch.arange(1, half + 1, dtype=x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat(
            [
                first * angle.cos() - second * angle.sin(),
                second * angle.cos() + first * angle.sin(),
            ],
            -1,
        )

    def run(m: Block, x: Tensor) -> Tensor:
        return by_hand(rotate(m.query(x)), rotate(m.key(x)), m.value(x))

    out = width(draw)
    layers = {"query": 2 * half, "key": 2 * half, "value": out}
    return Block(run, **{k: linear(draw, n, size) for k, size in layers.items()}), out


def position(draw: Random, n: int) -> Made:
    return Block(lambda m, x: x + m.table[: x.shape[1]], table=torch.randn(4, n)), n


def mixed_time(draw: Random, n: int) -> Made:
    """A layer over the sequence axis."""
    act, inner = activation(draw), draw.randint(2, 4)
    first, second = weight(inner, 3, fan_in=3), weight(3, inner, fan_in=inner)

    def run(m: Block, x: Tensor) -> Tensor:
        return x + torch.einsum(
            "ti,nic->ntc", m.second, act(torch.einsum("it,ntc->nic", m.first, x))
        )

    return Block(run, first=first, second=second), n


def mean_time(draw: Random, n: int) -> Made:
    reduce = draw.choice((lambda x: x.mean(1, keepdim=True), lambda x: x.amax(1, keepdim=True)))
    return Block(lambda m, x: x + m.layer(reduce(x)), layer=linear(draw, n, n)), n


def causal_convolution(draw: Random, n: int) -> Made:
    groups = draw.choice((1, n))
    layer = nn.Conv1d(n, n, 2, groups=groups)
    return Block(lambda m, x: m.layer(functional.pad(x.mT, (1, 0))).mT, layer=layer), n


def unrolled(draw: Random, n: int) -> Made:
    """A recurrent cell over the steps, outputs stacked."""
    hidden, act = draw.randint(2, 6), draw.choice((torch.tanh, torch.relu))

    def run(m: Block, x: Tensor) -> Tensor:
        state, states = x.new_zeros(x.shape[0], hidden), []
        for step in x.unbind(1):
            state = act(m.inputs(step) + m.states(state))
            states.append(state)
        return torch.stack(states, 1)

    return Block(run, inputs=linear(draw, n, hidden), states=linear(draw, hidden, hidden)), hidden


def class_token(draw: Random, n: int) -> Made:
    """A learnt token in front; the last one falls out."""

    def run(m: Block, x: Tensor) -> Tensor:
        return torch.cat([m.token.expand(x.shape[0], 1, -1), x[:, :-1]], 1)

    return Block(run, token=torch.randn(1, n)), n


SEQUENCE = (
    attention,
    attention,
    attention,
    split_attention,
    grouped_queries,
    rotary,
    position,
    mixed_time,
    mean_time,
    causal_convolution,
    unrolled,
    class_token,
)
