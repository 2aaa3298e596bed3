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
    padded = _padded(inputs, kernel, padding, dilations)
    outer = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]
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


def _padded(
    inputs: Tensor, kernel: Sequence[int], padding: Sizes | str, dilations: Sequence[int]
) -> Tensor:
    zeros = margins(padding, kernel, dilations)
    return functional.pad(inputs, [size for pair in reversed(zeros) for size in pair])


def second_moment(
    inputs: Float[Tensor, "n c ..."],
    kernel: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    ones: bool = False,
) -> Float[Tensor, "1 i i"]:
    """``Σ v vᵀ`` over all patches ``v`` of a convolution with stride one along its first axis.

    Patches are formed along the other axes only.  Entries at the rows ``a`` and ``b`` of the kernel
    give ``S_ab = Σ_y P_{y+a} P_{y+b}ᵀ``, and ``S_{a+1,b+1}`` differs from ``S_ab`` by one row that
    comes in and one that falls out: with ``k`` rows, ``k`` products in place of ``k²``.

    Args:
        inputs: Images.
        kernel: Its sizes.
        stride: One along the first axis.
        padding: As convolutions take it.
        dilation: As convolutions take it.
        ones: Whether patches end in a one, for a bias.

    >>> second_moment(torch.tensor([[[1.0, 2.0, 3.0]]]), (2,))[0]  # 1+4, 2+6, 4+9
    tensor([[ 5.,  8.],
            [ 8., 13.]])
    """
    axes, height = len(kernel), kernel[0]
    strides, dilations = per_axis(stride, axes), per_axis(dilation, axes)
    rows = _rows(_padded(inputs, kernel, padding, dilations), kernel, strides, dilations)
    step = dilations[0]
    count = len(rows) - step * (height - 1)

    def product(first: int, second: int, begin: int, end: int) -> Tensor:
        left = rows[first * step + begin : first * step + end].flatten(0, 1)
        return left.mT @ rows[second * step + begin : second * step + end].flatten(0, 1)

    size = rows.shape[-1]
    table = rows.new_empty(height, size, height, size)
    for b in range(height):
        for a in range(b + 1):
            if a == 0 or count <= 2 * step:
                entry = product(a, b, 0, count)
            else:
                entry = table[a - 1, :, b - 1] - product(a - 1, b - 1, 0, step)
                entry += product(a - 1, b - 1, count, count + step)
            table[a, :, b], table[b, :, a] = entry, entry.mT
    found = table.reshape(height * size, -1)
    if ones:
        means = torch.stack([rows[a * step : a * step + count].sum((0, 1)) for a in range(height)])
        column = means.reshape(-1, 1)
        total = found.new_full((1, 1), count * rows.shape[1])
        found = torch.cat([torch.cat([found, column], 1), torch.cat([column.mT, total], 1)])
    return found.unsqueeze(0)


def _rows(
    padded: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Float[Tensor, "rows positions k"]:
    """Row by row of the images, the patches along the other axes, channels last."""
    moved = padded.movedim((2, 0), (0, 1)).movedim(2, -1).contiguous()  # y n x… c
    outer = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(
            moved.shape[2:-1], kernel[1:], strides[1:], dilations[1:], strict=True
        )
    ]
    steps, channels = moved.stride(), moved.shape[-1]
    view = moved.as_strided(
        (*moved.shape[:2], *outer, *kernel[1:], channels),
        (
            *steps[:2],
            *(step * s for step, s in zip(steps[2:-1], strides[1:], strict=True)),
            *(step * d for step, d in zip(steps[2:-1], dilations[1:], strict=True)),
            1,
        ),
    )
    return view.reshape(len(moved), -1, prod(kernel[1:]) * channels)


def with_ones(columns: Float[Tensor, "*lead i"]) -> Float[Tensor, "*lead i"]:
    """One more column, of ones: a bias is a weight on a constant."""
    return torch.cat([columns, columns.new_ones((*columns.shape[:-1], 1))], dim=-1)
