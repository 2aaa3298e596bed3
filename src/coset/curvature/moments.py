"""Second moments ``Σ s sᵀ``: of rows, and of the patches of a convolution without forming them."""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.grad import conv2d_weight

from coset.curvature.patches import Sizes, padded_images, patches, per_axis, positions_of

_STRIPES = 4
"""Parts in which the columns of a moment are taken: ten of sixteen blocks are on or above the
diagonal."""

_WIDE = 128
"""Columns from which that pays."""

_SHARED = 16
"""Positions of an example from which torch's gradient of a 1 × 1 convolution is faster."""


def add_moment(
    total: Float[Tensor, "b k k"], side: Float[Tensor, "n b r k"], times: int = 1
) -> None:
    """Adds ``Σ s sᵀ`` over examples and positions to a total, in place, without a copy of ``s``.

    Only what is on and above the diagonal is to be read: see :func:`symmetric`.
    """
    blocks, positions, size = side.shape[1:]
    rows = side[:, 0]
    if size == 1:  # channels of a norm: many blocks of one number
        total.add_(side.square().sum((0, 2)).unsqueeze(-1), alpha=times)
    elif blocks > 1:
        total.add_(torch.einsum("nbri,nbrj->bij", side, side), alpha=times)
    elif rows.is_contiguous() and positions >= _SHARED and rows.dtype == torch.float32:
        total[0].add_(_of_positions(rows), alpha=times)
    elif rows.is_contiguous() or positions < size:
        _add_upper(total[0], rows.flatten(0, 1), times)
    else:
        total.add_(torch.bmm(rows.mT, rows).sum(0), alpha=times)


def symmetric(upper: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b k k"]:
    """The symmetric matrix of which this is the upper triangle.

    >>> symmetric(torch.tensor([[1.0, 2.0], [7.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return upper.triu() + upper.triu(1).mT


def _of_positions(rows: Float[Tensor, "n r k"]) -> Float[Tensor, "k k"]:
    """``Σ s sᵀ`` as the gradient of a 1 × 1 convolution in its weights.

    It is made for sums over many examples and positions with few columns, as products of matrices
    are not.
    """
    examples, positions, size = rows.shape
    pixels = rows.as_strided(
        (examples, size, positions, 1), (positions * size, 1, size, size), rows.storage_offset()
    )
    found: Tensor = conv2d_weight(pixels, (size, size, 1, 1), pixels)
    return found[:, :, 0, 0]


def _add_upper(total: Float[Tensor, "k k"], rows: Float[Tensor, "n k"], times: int) -> None:
    size = len(total)
    for stripe in torch.arange(size).tensor_split(_STRIPES if size >= _WIDE else 1):
        begin, end = int(stripe[0]), int(stripe[-1]) + 1
        part = torch.mm(rows[:, begin:end].mT, rows[:, begin:])
        total[begin:end, begin:].add_(part, alpha=times)


def patch_moment(
    images: Float[Tensor, "n c ..."],
    kernel: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    ones: bool = False,
) -> Float[Tensor, "1 i i"]:
    """``Σ v vᵀ`` over all patches ``v`` of a convolution with stride one along its first axis.

    Args:
        images: What is convolved.
        kernel: Its sizes.
        stride: One along the first axis.
        padding: As convolutions take it.
        dilation: As convolutions take it.
        ones: Whether patches end in a one, for a bias.

    >>> patch_moment(torch.tensor([[[1.0, 2.0, 3.0]]]), (2,))[0]  # 1+4, 2+6, 4+9
    tensor([[ 5.,  8.],
            [ 8., 13.]])
    """
    axes = len(kernel)
    strides, steps = per_axis(stride, axes), per_axis(dilation, axes)
    padded = padded_images(images, kernel, padding, steps)
    sizes = positions_of(padded, kernel, strides, steps)
    found = (
        _in_plane(padded, kernel, steps, sizes)
        if strides == (1, 1)
        else _by_rows(padded, kernel, strides, steps, sizes)
    )
    if ones:
        column = _sums(padded, kernel, strides, steps).unsqueeze(1)
        count = found.new_full((1, 1), len(images) * prod(sizes))
        found = torch.cat([torch.cat([found, column], 1), torch.cat([column.mT, count], 1)])
    return found.unsqueeze(0)


def _in_plane(
    padded: Float[Tensor, "n c y x"],
    kernel: Sequence[int],
    steps: Sequence[int],
    sizes: Sequence[int],
) -> Float[Tensor, "i i"]:
    """The moment of patches of pictures: pixels are multiplied once for each distance.

    Pixels ``a`` and ``b`` of the kernel give ``S_ab = Σ_p P_{p+a} P_{p+b}ᵀ``.  Gradients of a
    convolution in its weights are such sums.  Two of them give all distances from the first row of
    the kernel, of ``a`` at its first pixel and of ``a`` at its last with ``b`` below on its left.
    Moved by one, ``S_{a+1,b+1}`` differs from ``S_ab`` by what comes in and what falls out at the
    edges.
    """
    (high, wide), (down, right), (rows, columns) = kernel, steps, sizes
    channels = padded.shape[1]
    table = padded.new_zeros(high, wide, channels, high, wide, channels)

    def distances(begin: int, below: int, shape: tuple[int, int]) -> Tensor:
        start = padded[:, :, :rows, begin : begin + columns]
        bottom, end = below + rows + down * (shape[0] - 1), columns + right * (shape[1] - 1)
        reached, size = padded[:, :, below:bottom, :end], (channels, channels, *shape)
        found: Tensor = conv2d_weight(reached, size, start, dilation=(down, right))
        return found.permute(0, 2, 3, 1)

    row = table[0]
    row[0] = distances(0, 0, (high, wide))
    if min(kernel) > 1:
        row[-1, :, 1:, :-1] = distances(right * (wide - 1), down, (high - 1, wide - 1))
    if wide > 1:
        width = right * (wide - 1)
        crops = padded[..., :width], padded[..., columns : columns + width]
        left, own = (_matrix(crop, (high, wide - 1), steps) for crop in crops)
        top = (wide - 1) * channels
        change = torch.mm(left[:, :top].mT, left) - torch.mm(own[:, :top].mT, own)
        _move_along(row, change.view(wide - 1, channels, high, wide - 1, channels))
    if high > 1:
        height = down * (high - 1)
        crops = padded[:, :, :height], padded[:, :, rows : rows + height]
        above, own = (_matrix(crop, (high - 1, wide), steps) for crop in crops)
        change = torch.mm(above.mT, above) - torch.mm(own.mT, own)
        change = change.view(high - 1, *row.shape[:2], high - 1, wide, -1)
        for a in range(high - 1):
            table[a + 1, :, :, a + 1 :] = table[a, :, :, a:-1] - change[a, :, :, a:]
    return symmetric(table.view(high * wide * channels, -1))


def _matrix(images: Tensor, kernel: Sequence[int], steps: Sequence[int]) -> Float[Tensor, "r i"]:
    return patches(images, kernel, 1, dilation=steps).flatten(0, 2)


def _move_along(row: Float[Tensor, "w c h w c"], change: Float[Tensor, "v c h v c"]) -> None:
    """Fills in the first row of pixels ``a`` from its first and its last, in place."""
    wide = len(row)
    for a in range(wide - 1):  # b not left of a
        row[a + 1, :, :, a + 1 :] = row[a, :, :, a:-1] - change[a, :, :, a:]
    for a in range(wide - 2, 0, -1):  # b below on the left
        row[a, :, 1:, :a] = row[a + 1, :, 1:, 1 : a + 1] + change[a, :, 1:, :a]
    for a in range(1, wide):  # b beside on the left
        row[a, :, 0, :a] = row[:a, :, 0, a].permute(2, 0, 1)


def _by_rows(
    padded: Float[Tensor, "n c ..."],
    kernel: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int],
    sizes: Sequence[int],
) -> Float[Tensor, "i i"]:
    """The moment of any patches with stride one along their first axis.

    Patches are formed along the other axes only.  Entries at the rows ``a`` and ``b`` of the kernel
    give ``S_ab = Σ_y P_{y+a} P_{y+b}ᵀ``, and ``S_{a+1,b+1}`` differs from ``S_ab`` by one row that
    comes in and one that falls out: with ``k`` rows, ``k`` products in place of ``k²``.
    """
    rows = _rows(padded, kernel, strides, steps, sizes)
    height, step, count, size = kernel[0], steps[0], sizes[0], rows.shape[-1]

    def product(first: int, second: int, begin: int, end: int) -> Tensor:
        left = rows[first * step + begin : first * step + end].flatten(0, 1)
        right = rows[second * step + begin : second * step + end].flatten(0, 1)
        return torch.mm(left.mT, right)

    table = rows.new_zeros(height, size, height, size)
    for b in range(height):
        for a in range(b + 1):
            if a == 0 or count <= 2 * step:
                entry = product(a, b, 0, count)
            else:
                entry = table[a - 1, :, b - 1] - product(a - 1, b - 1, 0, step)
                entry += product(a - 1, b - 1, count, count + step)
            table[a, :, b] = entry
    return symmetric(table.view(height * size, -1))


def _rows(
    padded: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int],
    sizes: Sequence[int],
) -> Float[Tensor, "rows positions k"]:
    """Row by row of the images, the patches along the other axes, channels last."""
    moved = padded.movedim((2, 0), (0, 1)).movedim(2, -1).contiguous()  # y n x… c
    far, channels = moved.stride(), moved.shape[-1]
    view = moved.as_strided(
        (*moved.shape[:2], *sizes[1:], *kernel[1:], channels),
        (
            *far[:2],
            *(step * s for step, s in zip(far[2:-1], strides[1:], strict=True)),
            *(step * d for step, d in zip(far[2:-1], steps[1:], strict=True)),
            1,
        ),
    )
    return view.reshape(len(moved), -1, prod(kernel[1:]) * channels)


def _sums(
    padded: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int],
) -> Float[Tensor, " i"]:
    """The sum of all patches."""
    total = padded.sum(0, keepdim=True)
    found = patches(total, kernel, 1, stride=strides, dilation=steps)
    return found.sum((0, 1, 2))
