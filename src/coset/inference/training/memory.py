"""Memory that recordings keep from one replay to the next.

A recording computes the same intermediate values again and again.  If each is asked of the
operating system anew, touching fresh pages takes a quarter of the time of a leapfrog step.  So
every intermediate value is given its place once, where an earlier value has ended if possible.
"""

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten

_ENTRYWISE: dict[Any, tuple[Any, str]] = {
    _ATEN.relu.default: (_ATEN.clamp_min.out, "out"),
    _ATEN.add.Tensor: (_ATEN.add.out, "out"),
    _ATEN.sub.Tensor: (_ATEN.sub.out, "out"),
    _ATEN.mul.Tensor: (_ATEN.mul.out, "out"),
    **{
        getattr(_ATEN, name).default: (getattr(_ATEN, name).out, "out")
        for name in ("neg", "exp", "sin", "tanh", "sigmoid", "gelu", "silu", "softplus", "elu")
    },
    **{
        getattr(_ATEN, name).default: (getattr(_ATEN, name).grad_input, "grad_input")
        for name in (
            *("threshold_backward", "tanh_backward", "sigmoid_backward"),
            *("gelu_backward", "silu_backward", "softplus_backward", "elu_backward"),
        )
    },
}
"""Operations entry by entry, which may write where they read, and how to say where they write."""

_OTHERS: dict[Any, tuple[Any, str]] = {
    _ATEN.mm.default: (_ATEN.mm.out, "out"),
    _ATEN.addmm.default: (_ATEN.addmm.out, "out"),
    _ATEN.bmm.default: (_ATEN.bmm.out, "out"),
    _ATEN.baddbmm.default: (_ATEN.baddbmm.out, "out"),
    _ATEN.sum.dim_IntList: (_ATEN.sum.IntList_out, "out"),
    _ATEN._log_softmax.default: (_ATEN._log_softmax.out, "out"),
    _ATEN._log_softmax_backward_data.default: (_ATEN._log_softmax_backward_data.out, "out"),
    _ATEN.nll_loss2d_backward.default: (_ATEN.nll_loss2d_backward.grad_input, "grad_input"),
}


def keep_memory(graph: "GraphModule", *, lasting: bool) -> None:
    """Gives the intermediate values of a recording their places, in place.

    If results are ``lasting`` they are new in every replay, else the next one overwrites them.
    """
    nodes = list(graph.graph.nodes)
    owners = {node: _owner(node) for node in nodes}
    last: dict[Node, int] = {}
    for number, node in enumerate(nodes):
        last |= dict.fromkeys((owners[before] for before in node.all_input_nodes), number)
    returned = {owners[before] for before in nodes[-1].all_input_nodes} if lasting else ()
    free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
    held: dict[Node, Tensor] = {}
    for number, node in enumerate(nodes):
        ending = {owners[b] for b in node.all_input_nodes if last[owners[b]] == number}
        if node.target in _ENTRYWISE:
            _release(free, held, (owner for owner in ending if _may_overwrite(node, owner, owners)))
        if _is_placed(node) and node not in returned:
            value = node.meta["val"]
            key = (value.numel(), value.dtype)
            spare = free.get(key)
            held[node] = spare.pop() if spare else torch.empty(key[0], dtype=key[1])
            _write_into(graph, node, held[node].view(value.shape))
        _release(free, held, ending)
    graph.recompile()


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
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    shows = any(one.alias_info is not None for one in returns)
    if shows or node.target in (operator.getitem, _ATEN._unsafe_view.default):
        return _owner(node.all_input_nodes[0])
    return node


def _may_overwrite(node: "Node", owner: "Node", owners: "dict[Node, Node]") -> bool:
    """Whether every entry is read from where it is then written."""
    shape = node.meta["val"].shape
    shown = [before.meta["val"] for before in node.all_input_nodes if owners[before] is owner]
    return all(value.shape == shape and value.is_contiguous() for value in shown)


def _is_placed(node: "Node") -> bool:
    if node.target is _ATEN.clone.default or node.target in _ENTRYWISE or node.target in _OTHERS:
        value = node.meta["val"]
        return bool(value.is_contiguous()) and value.device.type == "cpu"
    return False


def _write_into(graph: "GraphModule", node: "Node", place: Tensor) -> None:
    """Lets a node write into ``place``."""
    name = f"_place_of_{node.name}"
    setattr(graph, name, place)  # no buffer: attributes of modules are found slowly
    with graph.graph.inserting_before(node):
        there = graph.graph.create_node("get_attr", name)
    if node.target is _ATEN.clone.default:
        node.target, node.args, node.kwargs = _ATEN.copy_.default, (there, node.args[0]), {}
        return
    if node.target is _ATEN.relu.default:
        node.args = (*node.args, 0)
    node.target, word = (_ENTRYWISE | _OTHERS)[node.target]
    node.kwargs = {**node.kwargs, word: there}
