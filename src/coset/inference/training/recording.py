"""Gradients as recorded lists of tensor operations.

Sampling and training evaluate the same small program many thousand times, and the Python of
``vmap`` and autograd around it can take longer than its arithmetic.  So the operations of one
evaluation, forward and backward, are written down once and then only replayed.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coset.inference.training.memory import (
    Program,
    fixed,
    keep_memory,
    mark_steady,
    part_views,
)
from coset.inference.training.writing import write_down

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_STEP = 0.01

_ATEN = torch.ops.aten
_SHAPED = (_ATEN.ones_like.default, _ATEN.zeros_like.default)
_PLAIN = (
    *(_ATEN.neg.default, _ATEN.expand.default, _ATEN.view.default, _ATEN.unsqueeze.default),
    *(_ATEN.mul.Tensor, _ATEN.div.Scalar, _ATEN.squeeze.dim, _ATEN.permute.default),
)
"""Operations without side effects whose leading arguments are tensors."""

_VIEWS = (_ATEN.view.default, _ATEN.permute.default, _ATEN.expand.default)
_WEIGHED, _REDUCTION = (_ATEN.nll_loss_backward.default, _ATEN.nll_loss2d_backward.default), 4
"""Gradients that take the sum of class weights, and the place of their kind of reduction."""


def record(
    program: Program,
    examples: Sequence[Tensor],
    *,
    lasting: bool = True,
    again: bool = False,
    steady: int = 0,
) -> Program:
    """The same program without the Python around its operations, or the program itself.

    What cannot be written down, because it looks at its own numbers or draws random ones, is
    noticed and left as it is: a recording must give the program's values at another place too.

    Args:
        program: From tensors to tensors.
        examples: Arguments of the shapes of all others.
        lasting: Whether results may not be overwritten by the next replay.
        again: Whether the same tensors, with other numbers, come again and again, so that they and
            their views are worth keeping.
        steady: How many of the last arguments keep even their numbers then; what follows from them
            alone is computed once.

    >>> square = record(lambda x: (torch.func.grad(lambda y: (y * y).sum())(x),), [torch.ones(2)])
    >>> square(torch.tensor([1.0, 3.0]))
    (tensor([2., 6.]),)
    """
    elsewhere = [_moved(example) for example in examples]
    try:
        graph = write_down(program, examples)
        shorten(graph)
        mark_steady(graph, steady)
        keep_memory(graph, lasting=lasting)
        replay = _replay(graph, again=again)
        replay(*examples)  # leaves its traces in kept memory
        return replay if _alike(replay(*elsewhere), program(*elsewhere)) else program
    except Exception:  # whatever cannot be written down: the program decides what is an error
        return program


def _replay(graph: "GraphModule", *, again: bool) -> Program:
    """Runs a graph; its views of arguments only when these are other tensors than before."""
    look, work = part_views(graph)
    seen: tuple[Tensor, ...] = ()
    views: tuple[Tensor, ...] = ()

    def replay(*inputs: Tensor) -> tuple[Tensor, ...]:
        nonlocal seen, views
        with torch.no_grad():
            if not again:
                return work(*look(*inputs))
            if len(seen) != len(inputs) or any(map(operator.is_not, seen, inputs)):
                seen, views = inputs, look(*inputs)
            return work(*views)

    return replay


def shorten(graph: "GraphModule") -> None:
    """Takes out of a recording what changes no number, in place.

    Detached values are the values, a view of a view is one view, a view of the same shape is none,
    and what depends on nothing but shapes (the ones that a backward pass begins with) is computed
    here.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        source: Any = node.args[0] if node.args else None
        if node.target in _WEIGHED and node.args[_REDUCTION] == 0:
            _only_targets(graph, node)
        elif node.target is _ATEN.detach.default or _shows_the_same(node):
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


def _shows_the_same(node: "Node") -> bool:
    """Whether a view has the shape and the order of what it views."""
    if node.target not in _VIEWS:
        return False
    value, before = node.meta["val"], node.all_input_nodes[0].meta["val"]
    return bool(value.shape == before.shape and value.stride() == before.stride())


def _only_targets(graph: "GraphModule", node: "Node") -> None:
    """Frees the gradient of single losses from all but the targets.

    Only means need the sum of class weights, and of the log-probabilities only their shape counts.
    Where the losses themselves are not asked for, they need not be computed then.
    """
    for place in (1, _REDUCTION + 2):
        value: Any = node.args[place]
        like = value.meta["val"]
        unused = torch.zeros(like.shape, dtype=like.dtype, device=value.meta["device"])
        node.update_arg(place, fixed(graph, node, f"_unused_{place}_{node.name}", unused))


def _settle(graph: "GraphModule", node: "Node") -> None:
    """Replaces a node by its value, which the inputs of the recording do not change."""
    value = node.meta["val"]
    if node.target in _SHAPED:
        one = node.target is _ATEN.ones_like.default
        found = (torch.ones if one else torch.zeros)(
            value.shape, dtype=value.dtype, device=node.meta["device"]
        )
    else:
        given = [getattr(graph, str(before.target)) for before in node.all_input_nodes]
        assert callable(node.target)  # only operations are settled, never methods by their name
        found = node.target(*given, *node.args[len(given) :], **node.kwargs)
    node.replace_all_uses_with(fixed(graph, node, f"_settled_{node.name}", found))


def _moved(example: Tensor) -> Tensor:
    return example * (1 + _STEP) + _STEP if example.is_floating_point() else example


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )
