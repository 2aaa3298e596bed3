"""Blocks on the last axis, whatever stands before it."""

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


def rows(norm: nn.Module, x: Tensor) -> Tensor:
    """A module that wants (n, c), on any leading axes."""
    return norm(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def plain_linear(draw: Random, n: int) -> Made:
    act, out = activation(draw), width(draw)
    return Block(lambda m, x: act(m.layer(x)), layer=linear(draw, n, out)), out


def pointwise(draw: Random, n: int) -> Made:
    act = activation(draw)
    return Block(lambda m, x: act(x)), n


def prelu(draw: Random, n: int) -> Made:
    slopes = torch.rand(draw.choice((1, n)))
    return Block(lambda m, x: torch.where(x > 0, x, m.slopes * x), slopes=slopes), n


def residual_branch(draw: Random, n: int) -> Made:
    act, hidden = activation(draw), width(draw)
    up, down = linear(draw, n, hidden), linear(draw, hidden, n)
    return Block(lambda m, x: x + m.down(act(m.up(x))), up=up, down=down), n


def halves(draw: Random, n: int) -> Made:
    """Cut in two equal pieces and combine."""
    if n % 2:
        return None
    act = activation(draw)
    combine = draw.choice(
        (
            lambda a, b: a * act(b),
            lambda a, b: a + act(b),
            lambda a, b: torch.maximum(a, b),
            lambda a, b: torch.cat([b, act(a)], -1),
            lambda a, b: torch.cat([a * b, a - b], -1),
        )
    )
    block = Block(lambda m, x: combine(*x.chunk(2, -1)))
    return block, combine(torch.ones(1, n // 2), torch.ones(1, n // 2)).shape[-1]


def uneven_cut(draw: Random, n: int) -> Made:
    """Cut at a random place; transform one piece; join in a random order."""
    place, act = draw.randrange(1, n), activation(draw)
    swap = draw.random() < 0.5

    def run(m: Block, x: Tensor) -> Tensor:
        first, second = x.split([place, n - place], -1)
        second = act(m.layer(second))
        return torch.cat([second, first] if swap else [first, second], -1)

    out = width(draw)
    return Block(run, layer=linear(draw, n - place, out)), place + out


def grow(draw: Random, n: int) -> Made:
    """Concatenate the input with something made of it."""
    act, out = activation(draw), draw.randint(2, 5)
    return Block(
        lambda m, x: torch.cat([x, act(m.layer(x))], -1), layer=linear(draw, n, out)
    ), n + out


def shuffle(draw: Random, n: int) -> Made:
    groups = divisor(draw, n)
    if groups is None:
        return None
    return Block(lambda m, x: x.unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2)), n


def self_product(draw: Random, n: int) -> Made:
    if n > 6:
        return Block(lambda m, x: x * m.layer(x), layer=linear(draw, n, n)), n
    return Block(lambda m, x: (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)), n * n


def bilinear(draw: Random, n: int) -> Made:
    out = width(draw)
    form = weight(out, n, n, fan_in=n)
    return Block(lambda m, x: torch.einsum("...i,oij,...j->...o", x, m.form, x), form=form), out


def shared_over_groups(draw: Random, n: int) -> Made:
    """The same layer for every group."""
    groups = divisor(draw, n)
    if groups is None:
        return None
    act, out = activation(draw), draw.randint(2, 4)
    layer = linear(draw, n // groups, out)
    run = Block(lambda m, x: act(m.layer(x.unflatten(-1, (groups, -1)))).flatten(-2), layer=layer)
    return run, groups * out


def own_for_groups(draw: Random, n: int) -> Made:
    """A layer of its own for every group, as an axis of the weight."""
    groups = divisor(draw, n)
    if groups is None:
        return None
    act, out = activation(draw), draw.randint(2, 4)
    matrix = weight(groups, n // groups, out, fan_in=n // groups)

    def run(m: Block, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (groups, -1))
        return act(torch.einsum("...gi,gio->...go", grouped, m.matrix)).flatten(-2)

    return Block(run, matrix=matrix), groups * out


def strided(draw: Random, n: int) -> Made:
    """Every second unit, or the even ones before the odd ones."""
    start = draw.randrange(2)
    if draw.random() < 0.5:
        return Block(lambda m, x: x[..., start::2]), len(range(start, n, 2))
    return Block(lambda m, x: torch.cat([x[..., start::2], x[..., 1 - start :: 2]], -1)), n


def weight_product(draw: Random, n: int) -> Made:
    inner, out = draw.randint(2, 4), width(draw)
    left, right = weight(n, inner, fan_in=n), weight(inner, out, fan_in=inner)
    return Block(lambda m, x: x @ (m.left @ m.right), left=left, right=right), out


def normalised_weight(draw: Random, n: int) -> Made:
    out = width(draw)
    norm = draw.choice(
        (
            lambda w: w.norm(dim=1, keepdim=True),
            lambda w: w.norm(dim=0, keepdim=True),
            lambda w: w.norm(),
            lambda w: w.abs().amax(1, keepdim=True),
            lambda w: (w.square().sum(1, keepdim=True) + 1e-5).sqrt(),
        )
    )
    matrix, gain = weight(out, n, fan_in=n), torch.randn(out)
    return Block(
        lambda m, x: (x @ (m.matrix / norm(m.matrix)).T) * m.gain, matrix=matrix, gain=gain
    ), out


def used_twice(draw: Random, n: int) -> Made:
    act = activation(draw)
    if draw.random() < 0.5:
        return Block(lambda m, x: m.layer(act(m.layer(x))), layer=linear(draw, n, n)), n
    return Block(lambda m, x: m.layer(x) + act(m.layer(act(x))), layer=linear(draw, n, n)), n


def tied_transpose(draw: Random, n: int) -> Made:
    act, inner = activation(draw), width(draw)
    return Block(lambda m, x: act(x @ m.matrix.T) @ m.matrix, matrix=weight(inner, n, fan_in=n)), n


def sliced_weight(draw: Random, n: int) -> Made:
    """Two cuts of one matrix, read by two branches."""
    act, out = activation(draw), draw.randint(2, 5)
    matrix = weight(2 * out, n, fan_in=n)
    if draw.random() < 0.5:
        return Block(
            lambda m, x: act(x @ m.matrix[:out].T) * (x @ m.matrix[out:].T), matrix=matrix
        ), out
    return Block(lambda m, x: act(x @ m.matrix[::2].T) + (x @ m.matrix[1::2].T), matrix=matrix), out


def norm(draw: Random, n: int) -> Made:
    groups = divisor(draw, n) or n
    layer = draw.choice(
        (
            lambda: nn.LayerNorm(n),
            lambda: nn.RMSNorm(n, eps=1e-5),
            lambda: nn.BatchNorm1d(n),
            lambda: nn.BatchNorm1d(n),
            lambda: nn.BatchNorm1d(n, affine=False),
            lambda: nn.GroupNorm(groups, n),
        )
    )()
    return Block(lambda m, x: rows(m.layer, x), layer=layer), n


def norm_of_join(draw: Random, n: int) -> Made:
    """A norm over a concatenated axis ties its parts."""
    first, second = draw.randint(2, 5), draw.randint(2, 5)
    size = first + second
    layer = draw.choice((nn.LayerNorm(size), nn.BatchNorm1d(size), nn.RMSNorm(size, eps=1e-5)))

    def run(m: Block, x: Tensor) -> Tensor:
        return rows(m.layer, torch.cat([m.first(x), m.second(x)], -1))

    return Block(
        run, layer=layer, first=linear(draw, n, first), second=linear(draw, n, second)
    ), size


def soft_maximum(draw: Random, n: int) -> Made:
    groups = divisor(draw, n)
    if groups is None or draw.random() < 0.5:
        return Block(lambda m, x: x * torch.softmax(m.layer(x), -1), layer=linear(draw, n, n)), n
    axis = draw.choice((-1, -2))
    return Block(lambda m, x: x.unflatten(-1, (groups, -1)).softmax(axis).flatten(-2)), n


def gate(draw: Random, n: int) -> Made:
    act = draw.choice((torch.sigmoid, torch.tanh, torch.relu, functional.hardsigmoid))
    return Block(lambda m, x: x * act(m.layer(x)), layer=linear(draw, n, n)), n


def glu(draw: Random, n: int) -> Made:
    out = width(draw)
    return Block(lambda m, x: functional.glu(m.layer(x), -1), layer=linear(draw, n, 2 * out)), out


def squeeze_excite(draw: Random, n: int) -> Made:
    act, inner = activation(draw), draw.randint(2, 4)
    down, up = linear(draw, n, inner), linear(draw, inner, n)
    return Block(lambda m, x: x * torch.sigmoid(m.up(act(m.down(x)))), down=down, up=up), n


def over_pieces(draw: Random, n: int) -> Made:
    """Reduce groups or what is inside them."""
    groups = divisor(draw, n)
    if groups is None:
        return None
    axis = draw.choice((-1, -2))
    reduce = draw.choice(
        (
            lambda t: t.amax(axis),
            lambda t: t.amin(axis),
            lambda t: t.mean(axis),
            lambda t: t.sum(axis),
            lambda t: t.logsumexp(axis),
            lambda t: t.square().sum(axis),
            lambda t: t.var(axis, unbiased=False),
        )
    )
    return Block(
        lambda m, x: reduce(x.unflatten(-1, (groups, -1)))
    ), groups if axis == -1 else n // groups


def against_group_mean(draw: Random, n: int) -> Made:
    groups = divisor(draw, n)
    if groups is None:
        return None
    axis = draw.choice((-1, -2))
    combine = draw.choice((torch.sub, torch.mul, torch.add))

    def run(m: Block, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (groups, -1))
        return combine(grouped, grouped.mean(axis, keepdim=True)).flatten(-2)

    return Block(run), n


EVERYWHERE = (
    plain_linear,
    plain_linear,
    plain_linear,
    pointwise,
    prelu,
    residual_branch,
    residual_branch,
    halves,
    uneven_cut,
    grow,
    shuffle,
    self_product,
    bilinear,
    shared_over_groups,
    own_for_groups,
    strided,
    weight_product,
    normalised_weight,
    used_twice,
    tied_transpose,
    sliced_weight,
    norm,
    norm,
    norm_of_join,
    soft_maximum,
    gate,
    glu,
    squeeze_excite,
    over_pieces,
    against_group_mean,
)
