"""A network as the search for scale invariances sees it: norms without epsilon, batch norms live.

A norm divides out the scale of its input up to its epsilon, and a batch norm only while it is
trained.  To check that, a graph is rewritten: every epsilon is (next to) nothing, and batch norms
take their statistics from their input.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coset.symmetry.analysis.rules.table import EPSILON
from coset.symmetry.graph import Graph, Node, Ref

NOTHING = 1e-30
"""In place of an epsilon: a single number has no spread, and zero by zero is no number."""


def idealised(graph: Graph) -> Graph:
    """The graph with norms that divide out the scale of their input exactly."""
    return replace(graph, nodes=tuple(_ideal(node, graph.nodes) for node in graph.nodes))


def _ideal(node: Node, nodes: Sequence[Node]) -> Node:
    arguments = node.arguments
    if "batch_norm" in node.op and arguments.get("running_var") is not None:
        used = ("input", "weight", "bias", "running_mean", "running_var")
        several = bool(node.shape) and isinstance(node.shape[0], tuple)
        target = _batch_norms if several else _batch_norm
        return _other(node, {name: arguments[name] for name in used}, target)
    if "eps" in arguments:
        return replace(node, arguments={**arguments, "eps": NOTHING})
    if node.op in ("add", "sub", "subtract", "rsub"):
        for kept, left in (("self", "other"), ("other", "self")):
            value = arguments[kept]
            if _is_epsilon(arguments[left], nodes) and _has_shape(value, node, nodes):
                # x - ε, but ε - x and, the other way round, x "from" ε
                turned = (node.op == "rsub") != (kept == "other" and node.op != "add")
                return _other(node, {"x": value}, torch.neg if turned else _same)
    if node.op in ("clamp", "clip", "clamp_min") and arguments.get("max") is None:
        low = arguments.get("min")
        if isinstance(low, (int, float)) and 0 < abs(low) <= EPSILON:
            return _other(node, {"x": arguments["self"]}, _same)
    return node


def _other(node: Node, arguments: dict[str, Any], target: Any) -> Node:
    """The node with another function of other arguments, in their order."""
    return replace(node, op=f"ideal_{node.op}", arguments=arguments, target=target)


def _same(x: Tensor) -> Tensor:
    return x


def _is_epsilon(item: Any, nodes: Sequence[Node]) -> bool:
    """Whether an added number or constant is one that the analysis leaves out."""
    if isinstance(item, Ref):
        constant = nodes[item.node].constant
        if not isinstance(constant, Tensor) or not constant.numel():
            return False
        item = float(constant.abs().max())
    return isinstance(item, (int, float)) and abs(item) <= EPSILON


def _has_shape(item: Any, node: Node, nodes: Sequence[Node]) -> bool:
    return isinstance(item, Ref) and nodes[item.node].shape == node.shape


def _batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor
) -> Tensor:
    """A batch norm whose statistics grow with its input.

    Their unit is the mean of ``|x|`` of each channel, which a single number has too.
    """
    shape = (1, -1, *[1] * (input.dim() - 2))
    axes = [axis for axis in range(input.dim()) if axis != 1]
    unit = input.abs().mean(axes, keepdim=True) + NOTHING
    outputs = (input / unit - mean.view(shape)) * variance.view(shape).rsqrt()
    outputs = outputs if weight is None else outputs * weight.view(shape)
    return outputs if bias is None else outputs + bias.view(shape)


def _batch_norms(*arguments: Any) -> tuple[Tensor]:
    return (_batch_norm(*arguments),)
