"""A network as the search for scale invariances sees it: norms without epsilon, batch norms live.

A norm divides out the scale of its input up to its epsilon, and a batch norm only while it is
trained.  To check that, a graph is rewritten: every epsilon is (next to) nothing, and batch norms
take their statistics from their input.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coset.symmetry.analysis.rules.table import EPSILON
from coset.symmetry.graph import Graph, Node, Ref

NOTHING = 1e-30
"""In place of the epsilon of a norm: zero by zero is no number."""

NEXT_TO_NOTHING = 1e-16
"""In place of one that is added by hand, where a spread may be that of rounding only."""

ROUNDING = 1e-10
"""A spread that is smaller than this, relative to the numbers, is none."""


def idealised(graph: Graph) -> Graph:
    """The graph with norms that divide out the scale of their input exactly."""
    return replace(graph, nodes=tuple(_ideal(node, graph.nodes) for node in graph.nodes))


def _ideal(node: Node, nodes: Sequence[Node]) -> Node:
    arguments = node.arguments
    saved = arguments.get("running_var") is not None and not arguments.get("use_input_stats")
    if saved and ("batch_norm" in node.op or node.op == "instance_norm"):
        return _other(node, _batch_norm, *_BATCH_NORM)
    if node.op in _NORMS:
        return _other(node, *_NORMS[node.op])
    if "eps" in arguments:
        return replace(node, arguments={**arguments, "eps": NOTHING})
    return _without_epsilon(node, nodes)


def _without_epsilon(node: Node, nodes: Sequence[Node]) -> Node:
    """A sum or a bound by hand that keeps a norm from dividing by zero: left out."""
    arguments = node.arguments
    if node.op in ("add", "sub", "subtract", "rsub"):
        for kept, left in (("self", "other"), ("other", "self")):
            if _is_epsilon(arguments[left], nodes) and _has_shape(arguments[kept], node, nodes):
                # x - ε is x, and ε - x is -x; rsub is the other way round
                turned = node.op != "add" and (kept == "other") != (node.op == "rsub")
                return _other(node, partial(_shifted, sign=-1 if turned else 1), kept)
    if node.op in ("clamp", "clip", "clamp_min") and arguments.get("max") is None:
        low = arguments.get("min")
        if isinstance(low, (int, float)) and 0 < abs(low) <= EPSILON:
            return _other(node, _shifted, "self")
    return node


def _other(node: Node, function: Callable[..., Tensor], *names: str) -> Node:
    """The node with another function, of some of its arguments in this order."""
    arguments = {name: node.arguments.get(name) for name in names}
    several = bool(node.shape) and isinstance(node.shape[0], tuple)
    target = (lambda *given: (function(*given),)) if several else function
    return replace(node, op=f"ideal_{node.op}", arguments=arguments, target=target)


def _shifted(x: Tensor, sign: int = 1) -> Tensor:
    return sign * x + NEXT_TO_NOTHING


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
    axes = [axis for axis in range(input.dim()) if axis != 1]
    unit = input.abs().mean(axes, keepdim=True) + NOTHING
    shape = (1, -1, *[1] * (input.dim() - 2))
    outputs = (input / unit - mean.view(shape)) * variance.view(shape).rsqrt()
    return _affine(outputs, weight, bias)


def _group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    grouped = _normalised(x.reshape(x.shape[0], groups, -1))
    return _affine(grouped.reshape(x.shape), weight, bias)


def _instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return _group_norm(x, x.shape[1], weight, bias)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    outputs = _normalised(x.flatten(x.dim() - len(shape))).reshape(x.shape)
    outputs = outputs if weight is None else outputs * weight
    return outputs if bias is None else outputs + bias


def _normalised(x: Tensor) -> Tensor:
    """Centred and of spread one along the last axis; zero where all numbers are the same."""
    centred = x - x.mean(-1, keepdim=True)
    large = centred.abs() > ROUNDING * x.abs().amax(-1, keepdim=True)
    centred = torch.where(large, centred, 0.0)
    return centred / (centred.square().mean(-1, keepdim=True) + NOTHING).sqrt()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Times a weight and plus a bias of each channel."""
    shape = (1, -1, *[1] * (x.dim() - 2))
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


_BATCH_NORM = ("input", "weight", "bias", "running_mean", "running_var")
_NORMS: dict[str, tuple[Any, ...]] = {
    "group_norm": (_group_norm, "input", "num_groups", "weight", "bias"),
    "native_group_norm": (_group_norm, "input", "group", "weight", "bias"),
    "instance_norm": (_instance_norm, "input", "weight", "bias"),
    "layer_norm": (_layer_norm, "input", "normalized_shape", "weight", "bias"),
    "native_layer_norm": (_layer_norm, "input", "normalized_shape", "weight", "bias"),
}
