"""Graphs written node by node, so that an operation is met under its own name.

A tracer takes many operations apart before a rule sees them; here nothing does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coset.symmetry.graph import Graph, Node, Ref, refs_in, substitute

aten = torch.ops.aten


class Writer:
    """Writes a graph: ``writer.amax(h, [1])`` adds a node and gives a reference to its result."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.nodes: list[Node] = []
        self.values: list[Any] = []

    def parameter(self, name: str, *shape: int) -> Ref:
        value = torch.randn(shape, generator=self.generator)
        return self._put(
            Node("parameter", name, {}, shape), value.abs() if "var" in name else value
        )

    def input(self, *shape: int) -> Ref:
        return self._put(
            Node("input", "x", {}, shape), torch.randn(shape, generator=self.generator)
        )

    def constant(self, value: Tensor) -> Ref:
        return self._put(Node("constant", "c", {}, tuple(value.shape), constant=value), value)

    def item(self, ref: Ref, index: int) -> Ref:
        """One of several results."""
        value = self.values[ref.node][index]
        node = Node("getitem", "item", {"x": ref, "index": index}, tuple(value.shape))
        return self._put(node, value)

    def __getattr__(self, op: str) -> Callable[..., Ref]:
        return lambda *arguments, **keywords: self._call(op, arguments, keywords)

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return tuple(self.values[ref.node].shape)

    def _call(self, op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Ref:
        """Runs the first overload that takes these arguments."""
        values, named = substitute((arguments, keywords), lambda ref: self.values[ref.node])
        packet = getattr(aten, op)
        for overload in (getattr(packet, name) for name in packet.overloads()):
            try:
                found = overload(*values, **named)
            except (RuntimeError, NotImplementedError, TypeError):
                continue
            several = isinstance(found, (tuple, list))
            shape = tuple(tuple(part.shape) for part in found) if several else tuple(found.shape)
            filled = {
                argument.name: argument.default_value
                for argument in overload._schema.arguments
                if argument.has_default_value()
            }
            names = [argument.name for argument in overload._schema.arguments]
            filled |= dict(zip(names, arguments, strict=False)) | keywords
            return self._put(Node(op, op, filled, shape, target=overload), found)
        raise AssertionError(f"no overload of {op} takes {arguments} and {keywords}")

    def _put(self, node: Node, value: Any) -> Ref:
        assert all(0 <= ref.node < len(self.nodes) for ref in refs_in(node.arguments))
        self.nodes.append(node)
        self.values.append(value)
        return Ref(len(self.nodes) - 1)

    def finished(self, *outputs: Ref) -> tuple[Graph, dict[str, Tensor], list[Tensor]]:
        """The graph, its weights and its inputs."""
        pairs = list(zip(self.nodes, self.values, strict=True))
        weights = {node.name: value for node, value in pairs if node.op == "parameter"}
        inputs = [value for node, value in pairs if node.op == "input"]
        return Graph(tuple(self.nodes), outputs), weights, inputs
