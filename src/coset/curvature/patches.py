"""Convolutions as matrix products: the patches that each output position reads."""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Sizes = int | Sequence[int]


def per_axis(value: Sizes, axes: int) -> tuple[int, ...]:
    """One number for each spatial axis.

    >>> per_axis(3, 2), per_axis((1, 2), 2), per_axis((4,), 2)
    ((3, 3), (1, 2), (4, 4))
    """
    if isinstance(value, int):
        return (value,) * axes
    sizes = tuple(int(size) for size in value)
    return sizes * axes if len(sizes) == 1 else sizes


def margins(
    padding: Sizes | str, kernel: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeros before and after each spatial axis.

    >>> margins("same", (4,), (1,)), margins(2, (3,), (1,))
    ([(1, 2)], [(2, 2)])
    """
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    assert not isinstance(padding, str)
    return [(size, size) for size in per_axis(padding, len(kernel))]


def patches(
    inputs: Float[Tensor, "n c ..."],
    kernel: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
) -> Float[Tensor, "n c positions k"]:
    """What a convolution reads at each position, channel by channel.

    >>> patches(torch.tensor([[[1.0, 2.0, 3.0]]]), (2,))[0, 0]
    tensor([[1., 2.],
            [2., 3.]])
    """
    axes = len(kernel)
    strides, dilations = per_axis(stride, axes), per_axis(dilation, axes)
    zeros = margins(padding, kernel, dilations)
    padded = functional.pad(inputs, [size for pair in reversed(zeros) for size in pair])
    padded = padded.contiguous()
    outer = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]
    steps = padded.stride()
    view = padded.as_strided(
        (*padded.shape[:2], *outer, *kernel),
        (
            *steps[:2],
            *(step * s for step, s in zip(steps[2:], strides, strict=True)),
            *(step * d for step, d in zip(steps[2:], dilations, strict=True)),
        ),
    )
    return view.reshape(*padded.shape[:2], prod(outer), prod(kernel))


def with_ones(columns: Float[Tensor, "*lead i"]) -> Float[Tensor, "*lead i"]:
    """One more column, of ones: a bias is a weight on a constant."""
    return torch.cat([columns, columns.new_ones((*columns.shape[:-1], 1))], dim=-1)
