"""Gradients as recorded lists of tensor operations.

Sampling and training evaluate the same small program many thousand times, and the Python of
``vmap`` and autograd around it can take longer than its arithmetic.  So the operations of one
evaluation, forward and backward, are written down once and then only replayed.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coset.inference.training.memory import keep_memory

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

Program = Callable[..., tuple[Tensor, ...]]

_STEP = 0.01

_TRACING = threading.Lock()
"""Stacks that train in threads are recorded one after the other."""

_ATEN = torch.ops.aten
_SHAPED = (_ATEN.ones_like.default, _ATEN.zeros_like.default)
_PLAIN = (
    *(_ATEN.neg.default, _ATEN.expand.default, _ATEN.view.default, _ATEN.unsqueeze.default),
    *(_ATEN.mul.Tensor, _ATEN.div.Scalar, _ATEN.squeeze.dim, _ATEN.permute.default),
)
"""Operations without side effects whose leading arguments are tensors."""


def record(program: Program, examples: Sequence[Tensor], *, lasting: bool = True) -> Program:
    """The same program without the Python around its operations, or the program itself.

    What cannot be written down, because it looks at its own numbers or draws random ones, is
    noticed and left as it is: a recording must give the program's values at another place too.
    Results that need not be ``lasting`` may be overwritten by the next replay.

    >>> square = record(lambda x: (torch.func.grad(lambda y: (y * y).sum())(x),), [torch.ones(2)])
    >>> square(torch.tensor([1.0, 3.0]))
    (tensor([2., 6.]),)
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    elsewhere = [_moved(example) for example in examples]
    try:
        with _TRACING:
            graph = make_fx(partial(program))(*examples)  # tracing counts the self of a method
        shorten(graph)
        keep_memory(graph, lasting=lasting)
        with torch.no_grad():
            graph(*examples)  # leaves its traces in kept memory
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


def shorten(graph: "GraphModule") -> None:
    """Takes out of a recording what changes no number, in place.

    Detached values are the values, a view of a view is one view, and what depends on nothing but
    shapes (the ones that a backward pass begins with) is computed here.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        source: Any = node.args[0] if node.args else None
        if node.target is _ATEN.detach.default:
            node.replace_all_uses_with(source)
        elif node.target is _ATEN.view.default and source.target is _ATEN.view.default:
            node.update_arg(0, source.args[0])
        elif node.target in _SHAPED or (
            node.all_input_nodes
            and node.target in _PLAIN
            and all(before.op == "get_attr" for before in node.all_input_nodes)
        ):
            _settle(graph, node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _settle(graph: "GraphModule", node: "Node") -> None:
    """Replaces a node by its value, which the inputs of the recording do not change."""
    value = node.meta["val"]
    if node.target in _SHAPED:
        one = node.target is _ATEN.ones_like.default
        found = (torch.ones if one else torch.zeros)(
            value.shape, dtype=value.dtype, device=value.device
        )
    else:
        fixed = [getattr(graph, str(before.target)) for before in node.all_input_nodes]
        found = node.target(*fixed, *node.args[len(fixed) :], **node.kwargs)  # type: ignore[operator]
    name = f"_settled_{node.name}"
    graph.register_buffer(name, found)
    with graph.graph.inserting_before(node):
        settled = graph.graph.get_attr(name)
    settled.meta["val"] = found
    node.replace_all_uses_with(settled)


def _moved(example: Tensor) -> Tensor:
    return example * (1 + _STEP) + _STEP if example.is_floating_point() else example


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )
