"""Gradients as recorded lists of tensor operations.

A sampler evaluates the same small program many thousand times, and the Python of ``vmap`` and
autograd around it takes longer than its arithmetic.  So the operations of one evaluation, forward
and backward, are written down once and then only replayed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Program = Callable[..., tuple[Tensor, ...]]

_STEP = 0.01


def record(program: Program, examples: Sequence[Tensor]) -> Program:
    """The same program without the Python around its operations, or the program itself.

    What cannot be written down, because it looks at its own numbers or draws random ones, is
    noticed and left as it is: a recording must give the program's values at another place too.

    >>> square = record(lambda x: (torch.func.grad(lambda y: (y * y).sum())(x),), [torch.ones(2)])
    >>> square(torch.tensor([1.0, 3.0]))
    (tensor([2., 6.]),)
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    elsewhere = [_moved(example) for example in examples]
    try:
        graph = make_fx(program)(*examples)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        with torch.no_grad():
            replayed = graph(*elsewhere)
        if not _alike(replayed, program(*elsewhere)):
            return program
    except Exception:  # whatever tracing cannot do: the program itself decides what is an error
        return program

    def replay(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = tuple(graph(*inputs))
        return outputs

    return replay


def _moved(example: Tensor) -> Tensor:
    return example * (1 + _STEP) + _STEP if example.is_floating_point() else example


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )
