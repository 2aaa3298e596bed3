"""Memory that recordings keep from one replay to the next.

A recording computes the same intermediate values again and again.  If each is asked of the
operating system anew, touching fresh pages takes a quarter of the time of a leapfrog step.  So
every intermediate value is given its place once, where an earlier value has ended if possible.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coset.linalg import matrix_products

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

Program = Callable[..., tuple[Tensor, ...]]

_ATEN = torch.ops.aten

_ENTRYWISE: dict[Any, tuple[Any, str]] = {
    _ATEN.relu.default: (torch.clamp_min, "out"),
    _ATEN.add.Tensor: (torch.add, "out"),
    _ATEN.sub.Tensor: (torch.sub, "out"),
    _ATEN.mul.Tensor: (torch.mul, "out"),
    **{
        getattr(_ATEN, name).default: (getattr(torch, name), "out")
        for name in ("neg", "exp", "sin", "tanh", "sigmoid")
    },
    **{
        getattr(_ATEN, name).default: (getattr(_ATEN, name).out, "out")
        for name in ("gelu", "silu", "softplus", "elu")
    },
    **{
        getattr(_ATEN, name).default: (getattr(_ATEN, name).grad_input, "grad_input")
        for name in (
            *("threshold_backward", "tanh_backward", "sigmoid_backward"),
            *("gelu_backward", "silu_backward", "softplus_backward", "elu_backward"),
        )
    },
}
"""Operations entry by entry, which may write where they read, and how to say where they write.

Functions of ``torch`` where it has them: they are called faster than the operations behind them.
"""


def _gradient_of_slice(
    given: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int, *, out: Tensor
) -> Tensor:
    """Zeros but where the slice was taken; torch's own way of writing somewhere copies it there.

    >>> _gradient_of_slice(torch.ones(2), [4], 0, -2, 9, 1, out=torch.full((4,), 7.0))
    tensor([0., 0., 1., 1.])
    """
    places = range(sizes[dim])[start:end:step]
    if step == 1:
        out.narrow(dim, 0, places.start).zero_()
        out.narrow(dim, places.stop, sizes[dim] - places.stop).zero_()
        out.narrow(dim, places.start, len(places)).copy_(given)
        return out
    out.zero_().movedim(dim, 0)[places.start : places.stop : step] = given.movedim(dim, 0)
    return out


_OTHERS: dict[Any, tuple[Any, str]] = {
    _ATEN.slice_backward.default: (_gradient_of_slice, "out"),
    **{
        getattr(_ATEN, name).default: (getattr(matrix_products, name), "out")
        for name in ("mm", "addmm", "bmm", "baddbmm")
    },
    _ATEN.sum.dim_IntList: (torch.sum, "out"),
    _ATEN.cat.default: (torch.cat, "out"),
    _ATEN._log_softmax.default: (_ATEN._log_softmax.out, "out"),
    _ATEN._log_softmax_backward_data.default: (_ATEN._log_softmax_backward_data.out, "out"),
    _ATEN.nll_loss2d_backward.default: (_ATEN.nll_loss2d_backward.grad_input, "grad_input"),
}


def keep_memory(graph: "GraphModule", *, lasting: bool) -> None:
    """Gives the intermediate values of a recording their places, in place.

    If results are ``lasting`` they are new in every replay, else the next one overwrites them.
    """
    parts = {} if lasting else _join_in_place(graph)
    nodes = list(graph.graph.nodes)
    owners = {node: _owner(node) for node in nodes}
    last: dict[Node, int] = {}
    for number, node in enumerate(nodes):
        last |= dict.fromkeys((owners[before] for before in node.all_input_nodes), number)
    returned = {owners[before] for before in nodes[-1].all_input_nodes} if lasting else ()
    free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
    held: dict[Node, Tensor] = {}
    places: dict[Node, Node] = {}
    for number, node in enumerate(nodes):
        ending = {owners[b] for b in node.all_input_nodes if last[owners[b]] == number}
        if node.target in _ENTRYWISE:
            _release(free, held, (owner for owner in ending if _may_overwrite(node, owner, owners)))
        if _is_placed(node) and node not in returned:
            value = node.meta["val"]
            if node not in parts:
                key = (value.numel(), value.dtype)
                spare = free.get(key)
                held[node] = spare.pop() if spare else torch.empty(key[0], dtype=key[1])
            memory = parts[node] if node in parts else held[node]
            places[node] = fixed(graph, node, f"_place_{node.name}", memory.view(value.shape))
            _write_into(node, places[node])
        _release(free, held, ending)
    _look_once(graph, places)
    graph.recompile()


def _join_in_place(graph: "GraphModule") -> "dict[Node, Tensor]":
    """Takes out joins whose parts can be made side by side; says where each is to be made."""
    found: dict[Node, Tensor] = {}
    changed = _changed(graph)
    for node in list(graph.graph.nodes):
        if node.target is not _ATEN.cat.default:
            continue
        parts = node.all_input_nodes
        makers = [_owner(part) for part in parts]
        spoilt = {*changed, *found}
        if spoilt.isdisjoint([node, *makers]) and _lie_in_a_row(node, parts, makers):
            whole = torch.empty(node.meta["val"].numel(), dtype=node.meta["val"].dtype)
            sizes = [part.meta["val"].numel() for part in parts]
            found |= dict(zip(makers, whole.split(sizes), strict=True))
            place = fixed(graph, node, f"_place_{node.name}", whole.view(node.meta["val"].shape))
            node.replace_all_uses_with(place)
            graph.graph.erase_node(node)
    return found


def _lie_in_a_row(join: "Node", parts: "Sequence[Node]", makers: "Sequence[Node]") -> bool:
    """Whether joined values lie one after the other, each made by an operation of its own."""
    given: Any = join.args
    shape, along = join.meta["val"].shape, given[1] if len(given) > 1 else 0
    return (
        _is_placed(join)
        and shape[: range(len(shape))[along]].numel() == 1
        and len(given[0]) == len({*makers})
        and all(map(_is_placed, makers))
        and all(
            part.meta["val"].is_contiguous()
            and part.meta["val"].numel() == maker.meta["val"].numel()
            for part, maker in zip(parts, makers, strict=True)
        )
    )


def mark_steady(graph: "GraphModule", count: int) -> None:
    """Marks what follows from the last ``count`` arguments alone, as ``steady`` in its ``meta``."""
    arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
    changed = _changed(graph)
    known = set(arguments[len(arguments) - count :]) - changed
    for node in graph.graph.nodes:
        given = {before for before in node.all_input_nodes if before.op != "get_attr"}
        if node.op == "call_function" and given and given <= known and _owner(node) not in changed:
            known.add(node)
            node.meta["steady"] = True


def part_views(graph: "GraphModule") -> tuple[Program, Program]:
    """A graph in two parts: views of its arguments with what is steady, and the work on these."""
    *nodes, output = graph.graph.nodes
    arguments = [node for node in nodes if node.op == "placeholder"]
    views = set(arguments)
    for node in nodes:
        seen = node.all_input_nodes and _owner(node) in views and not _changes(node)
        if seen or "steady" in node.meta:
            views.add(node)
    shown = [node for node in nodes if node in views and not views.issuperset(node.users)]
    there = [node for node in nodes if node.op == "get_attr"]
    tensors = [getattr(graph, str(node.target)) for node in there]
    given = {*arguments, *there}
    look = _program([*there, *arguments], [node for node in nodes if node in views - given], shown)
    rest = [node for node in nodes if node not in views | given]
    work = _program([*there, *shown], rest, output.args[0])
    return partial(look, *tensors), partial(work, *tensors)


def _program(given: "Sequence[Node]", nodes: "Iterable[Node]", found: "Sequence[Node]") -> Program:
    """Some nodes of a graph as a function."""
    from torch.fx import Graph, GraphModule

    part = Graph()
    known = {node: part.placeholder(node.name) for node in given}
    for node in nodes:
        known[node] = part.node_copy(node, known.__getitem__)
    part.output(tuple(known[node] for node in found))
    program: Program = GraphModule(torch.nn.Module(), part).forward
    return program


def _look_once(graph: "GraphModule", places: "dict[Node, Node]") -> None:
    """Takes the views of kept places now, not in every replay."""
    for node in list(graph.graph.nodes):
        if node in places:
            node.replace_all_uses_with(places[node])
        elif _is_view(node) and node.all_input_nodes[0].op == "get_attr":
            seen = getattr(graph, str(node.all_input_nodes[0].target))
            view = node.target(seen, *node.args[1:], **node.kwargs)
            node.replace_all_uses_with(fixed(graph, node, f"_view_{node.name}", view))
            graph.graph.erase_node(node)


def fixed(graph: "GraphModule", node: "Node", name: str, value: Tensor) -> "Node":
    """A node, before another one, for a tensor whose memory stays where it is."""
    setattr(graph, name, value)  # no buffer: attributes of modules are found slowly
    with graph.graph.inserting_before(node):
        there = graph.graph.create_node("get_attr", name)
    there.meta.update(val=value, device=value.device)
    return there


def _release(
    free: dict[tuple[int, torch.dtype], list[Tensor]],
    held: "dict[Node, Tensor]",
    owners: "Iterable[Node]",
) -> None:
    for owner in owners:
        if owner in held:
            place = held.pop(owner)
            free.setdefault((place.numel(), place.dtype), []).append(place)


def _owner(node: "Node") -> "Node":
    """The node whose memory a node shows; itself if it makes its own."""
    if any(_aliases(node)) or node.target in (operator.getitem, _ATEN._unsafe_view.default):
        return _owner(node.all_input_nodes[0])
    return node


def _is_view(node: "Node") -> bool:
    """Whether a node is one tensor in the memory of its first argument, and changes nothing."""
    return any(_aliases(node)) and "val" in node.meta and not _changes(node)


def _changes(node: "Node") -> bool:
    """Whether an operation writes into its arguments."""
    return any(alias is not None and alias.is_write for alias in _aliases(node))


def _changed(graph: "GraphModule") -> "set[Node]":
    """The nodes whose memory is written into after it was made."""
    return {_owner(node.all_input_nodes[0]) for node in graph.graph.nodes if _changes(node)}


def _aliases(node: "Node") -> list[Any]:
    """What the results of an operation say of the memory that they share, if any."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return [one.alias_info for one in returns]


def _may_overwrite(node: "Node", owner: "Node", owners: "dict[Node, Node]") -> bool:
    """Whether every entry is read from where it is then written."""
    shape = node.meta["val"].shape
    shown = [before.meta["val"] for before in node.all_input_nodes if owners[before] is owner]
    return all(value.shape == shape and value.is_contiguous() for value in shown)


def _is_placed(node: "Node") -> bool:
    if "steady" in node.meta:
        return False
    if node.target is _ATEN.clone.default or node.target in _ENTRYWISE or node.target in _OTHERS:
        value = node.meta["val"]
        return bool(value.is_contiguous()) and node.meta["device"].type == "cpu"
    return False


def _write_into(node: "Node", place: "Node") -> None:
    """Lets a node write into a place."""
    if node.target is _ATEN.clone.default:
        node.target, node.args, node.kwargs = _ATEN.copy_.default, (place, node.args[0]), {}
        return
    if node.target is _ATEN.relu.default:
        node.args = (*node.args, 0)
    node.target, word = (_ENTRYWISE | _OTHERS)[node.target]
    node.kwargs = {**node.kwargs, word: place}
