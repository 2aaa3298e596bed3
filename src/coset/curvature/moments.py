"""Second moments ``Σ s sᵀ``: of rows, and of the patches of a convolution."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.grad import conv2d_weight

from coset.curvature.patches import patches, with_ones

_STRIPES = 4
"""Parts in which the columns of a moment are taken: ten of sixteen blocks are on or above the
diagonal."""

_WIDE = 128
"""Columns from which that pays."""

_SHARED = 16
"""Positions of an example from which torch's gradient of a 1 × 1 convolution is faster."""

_CHUNK = 1 << 21
"""Entries of patches that are formed at a time."""


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
    groups: int = 1,
    *,
    ones: bool = False,
    **geometry: Any,
) -> Float[Tensor, "b i i"]:
    """``Σ v vᵀ`` over all patches ``v`` of a convolution, a few images at a time.

    All patches together are as many times larger than the images as the kernel has pixels.

    Args:
        images: What is convolved.
        kernel: Its sizes.
        groups: In which channels are convolved by themselves.
        ones: Whether patches end in a one, for a bias.
        geometry: Stride, padding and dilation, as :func:`patches` takes them.

    >>> symmetric(patch_moment(torch.tensor([[[1.0, 2.0, 3.0]]]), (2,)))[0]  # 1+4, 2+6, 4+9
    tensor([[ 5.,  8.],
            [ 8., 13.]])
    """
    size = images.shape[1] // groups * prod(kernel) + ones
    total = images.new_zeros(groups, size, size)
    for some in images.split(max(1, _CHUNK // (images[0].numel() * prod(kernel)))):
        rows = patches(some, kernel, groups, **geometry)
        add_moment(total, with_ones(rows) if ones else rows)
    return total
