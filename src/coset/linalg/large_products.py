"""Large products of matrices on processors where torch's own take twice as long.

torch multiplies matrices with MKL, which on a processor of AMD takes vectors of 256 bits even where
it has 512; oneDNN, which torch convolves with, multiplies matrices too, with all of them.  The
choice follows from the processor, the type and the shapes, never from a clock: on one machine,
equal seeds give equal bits.  Double precision is always left to torch.
"""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_LARGE = 1 << 22
"""Multiplications from which on a product takes longer than the call of a Python function."""


def linear(
    rows: Float[Tensor, "*n i"],
    weight: Float[Tensor, "o i"],
    bias: Float[Tensor, " o"] | None = None,
) -> Float[Tensor, "*n o"]:
    """``torch.nn.functional.linear`` with derivatives, under ``vmap`` too.

    >>> linear(torch.ones(3, 2), torch.tensor([[1.0, 2.0]])).tolist()
    [[3.0], [3.0], [3.0]]
    """
    matrices = rows.dim() > 1 and weight.dim() == 2
    large = matrices and rows.numel() * len(weight) >= _LARGE
    if not (large and mkl_is_slow() and all(map(_single_on_cpu, (rows, weight)))):
        return torch.nn.functional.linear(rows, weight, bias)
    found: Tensor = _Linear.apply(rows.flatten(0, -2), weight).unflatten(0, rows.shape[:-1])
    return found if bias is None else found + bias


@cache
def mkl_is_slow() -> bool:
    """Whether MKL multiplies with half of what this processor has, and oneDNN is there."""
    told = Path("/proc/cpuinfo")
    processor = told.read_text(errors="replace") if told.exists() else platform.processor()
    return (
        "AuthenticAMD" in processor
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _single_on_cpu(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


class _Linear(torch.autograd.Function):
    """The product of two matrices, and its derivatives, by oneDNN."""

    @staticmethod
    def forward(rows: Tensor, weight: Tensor) -> Tensor:
        return _product(rows, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        to_rows, to_weight = ctx.needs_input_grad
        return (
            _Linear.apply(pull, weight.mT) if to_rows else None,
            _Linear.apply(pull.mT, rows.mT) if to_weight else None,
        )

    @staticmethod
    def jvp(ctx: Any, rows_move: Tensor, weight_move: Tensor) -> Tensor:
        rows, weight = ctx.saved_tensors
        found: Tensor = _Linear.apply(rows_move, weight) + _Linear.apply(rows, weight_move)
        return found

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], rows: Tensor, weight: Tensor
    ) -> tuple[Tensor, int]:
        along, across = in_dims
        if across is None:  # one weight for all: more rows
            found = _Linear.apply(rows.movedim(along or 0, 0).flatten(0, 1), weight)
            return found.unflatten(0, (info.batch_size, -1)), 0
        weight = weight.movedim(across, 0)
        if along is None:  # the same rows for all: more columns
            found = _Linear.apply(rows, weight.flatten(0, 1))
            return found.unflatten(1, (info.batch_size, -1)), 1
        pairs = zip(rows.movedim(along, 0), weight, strict=True)
        return torch.stack([_Linear.apply(*pair) for pair in pairs]), 0


def _product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.T``; oneDNN has slow ways only for gaps between rows or columns."""
    dense = [s if s.mT.is_contiguous() else s.contiguous() for s in (left, right)]
    found: Tensor = torch.ops.mkldnn._linear_pointwise(*dense, None, "none", [], "")
    return found
