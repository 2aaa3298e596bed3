"""Which tensors can be read: dense, in memory, of numbers that torch computes with."""

import torch
from torch import Tensor

from coset.errors import CosetError

_TYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)


def require_plain(tensor: Tensor, what: str) -> None:
    """Refuses tensors without numbers, and those that do not hold one number after the other.

    >>> require_plain(torch.zeros(2, device="meta"), "inputs")
    Traceback (most recent call last):
    coset.errors.CosetError: got inputs on the meta device; needed tensors that hold numbers
    """
    if tensor.is_meta:
        raise CosetError(f"got {what} on the meta device", "needed tensors that hold numbers")
    if tensor.is_nested:
        raise CosetError(
            f"got nested {what}",
            "needed tensors whose rows are alike",
            "pad them to one length, with a mask",
        )
    if tensor.layout is not torch.strided:
        raise CosetError(
            f"got {what} of layout {tensor.layout}", "needed dense tensors", "use .to_dense()"
        )
    if tensor.is_quantized:
        raise CosetError(
            f"got quantised {what} of type {tensor.dtype}",
            "needed plain numbers",
            "use .dequantize()",
        )
    if tensor.dtype not in _TYPES:
        raise CosetError(
            f"got {what} of type {tensor.dtype}",
            "needed numbers that torch computes with",
            "convert them, with .float() or .long()",
        )


def require_real(tensor: Tensor, what: str) -> None:
    """Refuses complex numbers where one part would be lost."""
    if tensor.is_complex():
        raise CosetError(
            f"got {what} of the complex type {tensor.dtype}",
            "needed real numbers",
            "give real and imaginary parts apart: torch.view_as_real",
        )
