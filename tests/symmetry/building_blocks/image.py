"""Blocks on images (n, c, y, x) of four by four pixels, which they keep."""

from random import Random

import torch
from tests.symmetry.building_blocks.block import Block, Made, activation, divisor, width
from torch import Tensor, nn
from torch.nn import functional


def convolution(draw: Random, n: int) -> Made:
    act, kernel, out = activation(draw), draw.choice((1, 3)), width(draw)
    layer = nn.Conv2d(n, out, kernel, padding=kernel // 2, bias=draw.random() < 0.6)
    return Block(lambda m, x: act(m.layer(x)), layer=layer), out


def grouped(draw: Random, n: int) -> Made:
    groups = draw.choice((divisor(draw, n), n))
    if groups is None:
        return None
    act, out = activation(draw), groups * draw.randint(1, 3)
    return Block(lambda m, x: act(m.layer(x)), layer=nn.Conv2d(n, out, 1, groups=groups)), out


def depthwise(draw: Random, n: int) -> Made:
    act = activation(draw)
    return Block(lambda m, x: act(m.layer(x)), layer=nn.Conv2d(n, n, 3, padding=1, groups=n)), n


def transposed(draw: Random, n: int) -> Made:
    """Up by a transposed convolution, down by pooling."""
    groups = divisor(draw, n) if draw.random() < 0.4 else 1
    groups = groups or 1
    out = groups * draw.randint(2, 3)
    layer = nn.ConvTranspose2d(n, out, 2, stride=2, groups=groups)
    pool = draw.choice((functional.max_pool2d, functional.avg_pool2d))
    return Block(lambda m, x: pool(m.layer(x), 2), layer=layer), out


def normalised(draw: Random, n: int) -> Made:
    groups = divisor(draw, n) or n
    layer = draw.choice(
        (
            lambda: nn.BatchNorm2d(n),
            lambda: nn.BatchNorm2d(n),
            lambda: nn.GroupNorm(groups, n),
            lambda: nn.InstanceNorm2d(n, affine=True),
            lambda: nn.InstanceNorm2d(n),
            lambda: nn.LayerNorm([n, 4, 4]),
        )
    )()
    act = activation(draw)
    return Block(lambda m, x: act(m.layer(x)), layer=layer), n


def filter_response(draw: Random, n: int) -> Made:
    def run(m: Block, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-5)
        return torch.maximum(x * m.gain + m.shift, m.level)

    parts = {name: torch.randn(n, 1, 1) for name in ("gain", "shift", "level")}
    return Block(run, **parts), n


def residual(draw: Random, n: int) -> Made:
    act, inner = activation(draw), width(draw)
    up, down = nn.Conv2d(n, inner, 1), nn.Conv2d(inner, n, 3, padding=1)
    norm = nn.BatchNorm2d(inner) if draw.random() < 0.5 else nn.Identity()
    return Block(lambda m, x: x + m.down(act(m.norm(m.up(x)))), up=up, down=down, norm=norm), n


def dense(draw: Random, n: int) -> Made:
    act, out = activation(draw), draw.randint(2, 4)
    layer, norm = nn.Conv2d(n, out, 3, padding=1), nn.BatchNorm2d(n)
    return Block(
        lambda m, x: torch.cat([x, m.layer(act(m.norm(x)))], 1), layer=layer, norm=norm
    ), n + out


def excited(draw: Random, n: int) -> Made:
    act, inner = activation(draw), draw.randint(2, 4)
    down, up = nn.Conv2d(n, inner, 1), nn.Conv2d(inner, n, 1)

    def run(m: Block, x: Tensor) -> Tensor:
        return x * m.up(act(m.down(functional.adaptive_avg_pool2d(x, 1)))).sigmoid()

    return Block(run, down=down, up=up), n


def depth_to_space(draw: Random, n: int) -> Made:
    """Four channels become four pixels, or the other way round; pooled or enlarged back."""
    if n % 4 == 0 and n > 4:
        return Block(lambda m, x: functional.avg_pool2d(functional.pixel_shuffle(x, 2), 2)), n // 4
    if n <= 6:
        return Block(
            lambda m, x: functional.interpolate(functional.pixel_unshuffle(x, 2), scale_factor=2)
        ), 4 * n
    return None


def resampled(draw: Random, n: int) -> Made:
    mode = draw.choice(("nearest", "bilinear"))
    pool = draw.choice((functional.max_pool2d, functional.avg_pool2d))

    def run(m: Block, x: Tensor) -> Tensor:
        flags = {} if mode == "nearest" else {"align_corners": False}
        return functional.interpolate(pool(x, 2), scale_factor=2, mode=mode, **flags)

    return Block(run), n


def shuffled(draw: Random, n: int) -> Made:
    groups = divisor(draw, n)
    if groups is None:
        return None
    return Block(lambda m, x: functional.channel_shuffle(x, groups)), n


def padded_channels(draw: Random, n: int) -> Made:
    before, after = draw.randrange(3), draw.randrange(1, 3)

    def run(m: Block, x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, 0, 0, before, after)) + m.layer(x)

    out = n + before + after
    return Block(run, layer=nn.Conv2d(n, out, 1)), out


def skip(draw: Random, n: int) -> Made:
    """A small U: pooled path enlarged and concatenated."""
    act, out = activation(draw), draw.randint(2, 5)
    layer, up = nn.Conv2d(n, n, 1), nn.ConvTranspose2d(n, out, 2, stride=2)

    def run(m: Block, x: Tensor) -> Tensor:
        return torch.cat([x, m.up(act(m.layer(functional.max_pool2d(x, 2))))], 1)

    return Block(run, layer=layer, up=up), n + out


def parametric(draw: Random, n: int) -> Made:
    return nn.PReLU(draw.choice((1, n))), n


def generated(draw: Random, n: int) -> Made:
    """A kernel that is the product of two weights."""
    out, inner = width(draw), draw.randint(2, 3)
    parts = {"left": torch.randn(out, inner), "right": torch.randn(inner, n) / n**0.5}
    return Block(
        lambda m, x: functional.conv2d(x, (m.left @ m.right)[..., None, None]), **parts
    ), out


IMAGE = (
    convolution,
    convolution,
    grouped,
    grouped,
    depthwise,
    transposed,
    normalised,
    normalised,
    filter_response,
    residual,
    residual,
    dense,
    excited,
    depth_to_space,
    resampled,
    shuffled,
    padded_channels,
    skip,
    parametric,
    generated,
)
