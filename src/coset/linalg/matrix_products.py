"""Products of matrices by the faster of the two libraries that torch comes with.

torch multiplies matrices with MKL and convolves with oneDNN.  On a processor of AMD, MKL takes
vectors of 256 bits even where it has 512, at half its speed or less; oneDNN looks at what the
processor can do, and multiplies matrices too.  So large products in single precision are given to
oneDNN on such processors, and all others stay where they are: those of tensors with torch, those of
arrays with numpy.

The choice follows from shapes and from the processor, never from a clock: equal seeds give equal
bits.  What needs gradients stays with torch as well.
"""

import platform
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[np.floating[Any]]

_LEAST_WORK, _LEAST_SIDE, _LEAST_COLUMNS = 1 << 22, 32, 64
"""Multiplications, summed terms, and columns beside a transposed left side, that repay a call."""


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """The product along the last two axes, as ``torch.matmul``; the right side may be one matrix.

    >>> matmul(torch.ones(2, 1, 3), torch.ones(3, 2)).shape
    torch.Size([2, 1, 2])
    """
    if right.dim() == 2:
        found, lead = mm(left.flatten(0, -2), right), left.shape[:-1]
    elif left.shape[:-2] == right.shape[:-2]:
        found, lead = bmm(left.flatten(0, -3), right.flatten(0, -3)), left.shape[:-2]
    else:
        return torch.matmul(left, right)
    return found.view(*lead, *found.shape[1:])


def mm(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product of two matrices, as ``torch.mm``.

    >>> mm(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    if not _goes_to_onednn(left, right):
        return torch.mm(left, right, out=out)
    found = _onednn(left, right)
    return found if out is None else out.copy_(found)


def dot(left: Array, right: Array) -> Array:
    """The product of two matrices that are arrays, as ``numpy.dot``.

    >>> dot(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    if left.size * right.shape[1] >= _LEAST_WORK and left.dtype == right.dtype == np.float32:
        sides = torch.from_numpy(left), torch.from_numpy(right)
        if _goes_to_onednn(*sides):
            return _onednn(*sides).numpy()
    found: Array = np.dot(left, right)
    return found


def addmm(bias: Tensor, left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product of two matrices and a bias, as ``torch.addmm``."""
    if not _goes_to_onednn(left, right):
        return torch.addmm(bias, left, right, out=out)
    return torch.add(_onednn(left, right), bias, out=out)


def bmm(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The products of two stacks of matrices, as ``torch.bmm``."""
    if not _goes_to_onednn(left, right):
        return torch.bmm(left, right, out=out)
    found = left.new_empty(*left.shape[:2], right.shape[2]) if out is None else out
    for place, one, other in zip(found, left, right, strict=True):
        place.copy_(_onednn(one, other))
    return found


def baddbmm(bias: Tensor, left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The products of two stacks of matrices and a bias, as ``torch.baddbmm``."""
    if not _goes_to_onednn(left, right):
        return torch.baddbmm(bias, left, right, out=out)
    found = left.new_empty(*left.shape[:2], right.shape[2]) if out is None else out
    for place, one, other, more in zip(found, left, right, bias.expand_as(found), strict=True):
        torch.add(_onednn(one, other), more, out=place)
    return found


def _onednn(left: Tensor, right: Tensor) -> Tensor:
    sides = _dense(left), _dense(right).mT
    found: Tensor = torch.ops.mkldnn._linear_pointwise(*sides, None, "none", [], "")
    return found


def _dense(side: Tensor) -> Tensor:
    """The same without gaps between its rows or columns, for which oneDNN has slow ways only."""
    return side if side.is_contiguous() or side.mT.is_contiguous() else side.contiguous()


def _goes_to_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether each product is large, of a shape that oneDNN is good at, and better off there."""
    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    return (
        rows * inner * columns >= _LEAST_WORK
        and inner >= _LEAST_SIDE
        and min(rows, columns) >= _LEAST_SIDE // 4
        and (left.stride(-1) == 1 or columns >= _LEAST_COLUMNS)
        and left.dtype == torch.float32
        and left.device.type == "cpu"
        and not (torch.is_grad_enabled() and (left.requires_grad or right.requires_grad))
        and mkl_is_slow()
    )


@cache
def mkl_is_slow() -> bool:
    """Whether MKL multiplies with half of what this processor has, and oneDNN is there."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and "AuthenticAMD" in _processor()
    )


def _processor() -> str:
    """What the system tells of the processor."""
    told = Path("/proc/cpuinfo")
    return told.read_text(errors="replace") if told.exists() else platform.processor()
