"""A traced network reduced to what a picture shows: layers, junctions, and who feeds whom."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coset.symmetry.describing.describe import site_axes
from coset.symmetry.graph import Graph, Node, refs_in
from coset.symmetry.group import SymmetryGroup

_SYMBOLS = {"add": "+", "sub": "−", "mul": "×", "div": "÷", "cat": "‖", "stack": "‖"}


@dataclass(frozen=True)
class Box:
    """One thing in the picture.

    Attributes:
        kind: A layer, the meeting of two branches, an input or the output.
        name: The owning module, or a symbol for a junction.
        tensors: The tensors that the layer reads.
    """

    kind: Literal["layer", "junction", "input", "output"]
    name: str
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outline:
    """Boxes in the order in which they run, and edges between their places."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Segment:
    """A piece of an axis: one strip for each of its digits, outer ones on top.

    Attributes:
        length: Indices in the piece.
        sizes: Sizes of its digits.
        factors: Which factor moves each digit; ``None`` for a pinned one.
    """

    length: int
    sizes: tuple[int, ...]
    factors: tuple[str | None, ...]


def outline(graph: Graph) -> Outline:
    """Keeps operations with parameters and those where branches meet; all else is passed through.

    Operations that share an owning module are one box, however often it is used.
    """
    sketch = _Sketch()
    for node in graph.nodes:
        sketch.visit(node)
    return sketch.finished(graph)


def owner_of(tensor: str) -> str:
    """The module that owns a tensor, or the tensor itself at the top.

    >>> owner_of("layer1.0.conv1.weight"), owner_of("scale")
    ('layer1.0.conv1', 'scale')
    >>> owner_of("linear.parametrizations.weight.original0")
    'linear'
    """
    return (
        tensor.partition(".parametrizations.")[0]
        if "parametrizations" in tensor
        else (tensor.rpartition(".")[0] or tensor)
    )


def axis_segments(group: SymmetryGroup, tensor: str) -> list[list[Segment]]:
    """For every axis of a tensor its pieces, in order, with the factors that move them."""
    shape = group.shapes[tensor]
    found: list[dict[tuple[tuple[int, int, int], ...], tuple[list[int], list[str | None]]]] = [
        {} for _ in shape
    ]
    for factor in group.permutations:
        for site in factor.sites:
            if site.tensor != tensor:
                continue
            for axis, digits in enumerate(site_axes(site, shape)):
                if not set(digits) & set(site.digits):
                    continue
                key = tuple(cut[1:] for cut in site.block if cut[0] == axis)
                sizes = [site.view[d] for d in digits]
                known = found[axis].setdefault(key, (sizes, [None] * len(sizes)))
                if known[0] == sizes:
                    for k, digit in enumerate(digits):
                        if digit in site.digits:
                            known[1][k] = factor.name
    return [_pieces(length, own) for length, own in zip(shape, found, strict=True)]


def _pieces(
    length: int,
    found: Mapping[tuple[tuple[int, int, int], ...], tuple[list[int], list[str | None]]],
) -> list[Segment]:
    """Pieces in the order of the axis; what no factor moves is pinned."""
    pieces = [
        Segment(math.prod(sizes), tuple(sizes), tuple(factors))
        for _, (sizes, factors) in sorted(found.items(), key=lambda item: [c[1] for c in item[0]])
    ]
    rest = length - sum(piece.length for piece in pieces)
    return [*pieces, Segment(rest, (rest,), (None,))] if rest > 0 else pieces


class _Sketch:
    """The outline while it grows."""

    def __init__(self) -> None:
        self.kinds: list[tuple[Literal["layer", "junction", "input", "output"], str]] = []
        self.tensors: list[dict[str, None]] = []
        self.edges: dict[tuple[int, int], None] = {}
        self.layers: dict[tuple[str, ...], int] = {}
        self.origin: list[int | None] = []
        self.read: list[tuple[str, ...]] = []

    def visit(self, node: Node) -> None:
        """Notes which box a node's value comes from, or which parameters it is made of."""
        origin: int | None = None
        read: tuple[str, ...] = ()
        if node.op == "parameter":
            read = (node.name,)
        elif node.op == "input":
            origin = self._new("input", node.name)
        elif node.op != "constant":
            refs = [ref.node for ref in refs_in(node.arguments)]
            read = tuple(dict.fromkeys(name for ref in refs for name in self.read[ref]))
            sources = dict.fromkeys(o for ref in refs if (o := self.origin[ref]) is not None)
            if sources:
                origin, read = self._place(node, read, list(sources)), ()
        self.origin.append(origin)
        self.read.append(read)

    def _place(self, node: Node, read: tuple[str, ...], sources: list[int]) -> int:
        if read:
            owners = tuple(sorted({owner_of(name) for name in read}))
            if owners not in self.layers:
                self.layers[owners] = self._new("layer", ", ".join(owners))
            box = self.layers[owners]
            self.tensors[box].update(dict.fromkeys(read))
        elif len(sources) == 1:
            return sources[0]
        else:
            box = self._new("junction", _SYMBOLS.get(node.op, "·"))
        for source in sources:
            if source != box:
                self.edges[(source, box)] = None
        return box

    def _new(self, kind: Literal["layer", "junction", "input", "output"], name: str) -> int:
        self.kinds.append((kind, name))
        self.tensors.append({})
        return len(self.kinds) - 1

    def finished(self, graph: Graph) -> Outline:
        """The outline with its output."""
        last = self._new("output", "output")
        for ref in graph.outputs:
            origin = self.origin[ref.node]
            if origin is not None:
                self.edges[(origin, last)] = None
        boxes = tuple(
            Box(kind, name, tuple(tensors))
            for (kind, name), tensors in zip(self.kinds, self.tensors, strict=True)
        )
        return Outline(boxes, tuple(self.edges))
