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


def channels_last(images: Float[Tensor, "n c *axes"]) -> Float[Tensor, "n c *axes"]:
    """The same numbers, with the channels of a pixel side by side in memory.

    Convolutions of many channels are faster so, and the gradients of their outputs are matrices of
    positions and channels without a copy.

    >>> channels_last(torch.zeros(1, 2, 3, 3)).stride()
    (18, 1, 6, 2)
    """
    if images.dim() != 4:
        return images
    ordered = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = images.shape
    if channels > 1:
        return ordered
    # one channel lies in either order: say which, for convolutions go by the strides
    return ordered.as_strided(images.shape, (height * width, 1, width, 1))


def patches(
    inputs: Float[Tensor, "n c ..."],
    kernel: Sequence[int],
    groups: int,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
) -> Float[Tensor, "n b positions ck"]:
    """What a convolution reads at each position, group by group, pixel by pixel of the kernel.

    The channels of a pixel are neighbours: where they lie so in memory, whole rows are copied.

    >>> patches(torch.arange(6.0).reshape(1, 2, 3), (2,), 1)[0, 0]
    tensor([[0., 3., 1., 4.],
            [1., 4., 2., 5.]])
    """
    axes = len(kernel)
    strides, dilations = per_axis(stride, axes), per_axis(dilation, axes)
    padded = padded_images(inputs, kernel, padding, dilations)
    outer = positions_of(padded, kernel, strides, dilations)
    steps, width = padded.stride(), inputs.shape[1] // groups
    view = padded.as_strided(
        (len(padded), groups, *outer, *kernel, width),
        (
            steps[0],
            width * steps[1],
            *(step * s for step, s in zip(steps[2:], strides, strict=True)),
            *(step * d for step, d in zip(steps[2:], dilations, strict=True)),
            steps[1],
        ),
    )
    return view.reshape(len(padded), groups, prod(outer), -1)


def padded_images(
    inputs: Tensor, kernel: Sequence[int], padding: Sizes | str, dilations: Sequence[int]
) -> Tensor:
    """With the zeros around them that a convolution adds."""
    zeros = margins(padding, kernel, dilations)
    return functional.pad(inputs, [size for pair in reversed(zeros) for size in pair])


def positions_of(
    padded: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """How many outputs a convolution has along each spatial axis.

    >>> positions_of(torch.zeros(1, 1, 7), (3,), (2,), (1,))
    [3]
    """
    return [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]


def with_ones(columns: Float[Tensor, "*lead i"]) -> Float[Tensor, "*lead i"]:
    """One more column, of ones: a bias is a weight on a constant."""
    return torch.cat([columns, columns.new_ones((*columns.shape[:-1], 1))], dim=-1)
