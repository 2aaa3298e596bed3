"""Walks a graph with the rules until the structure of its parameters is settled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coset.symmetry.analysis.atoms import Atoms
from coset.symmetry.analysis.digits import Block, Cut, Digit, Plain, Value, map_leaves
from coset.symmetry.analysis.forms import Form, single
from coset.symmetry.analysis.log import dependencies
from coset.symmetry.analysis.primitives import freeze
from coset.symmetry.analysis.rules import RULES, unknown
from coset.symmetry.analysis.transforms import constant
from coset.symmetry.analysis.values import Algebra
from coset.symmetry.graph import Graph, Node, Ref, substitute


@dataclass(frozen=True)
class Part:
    """A plain part of a parameter in its final form.

    Attributes:
        tensor: The parameter's name.
        block: Where the part lies in it.
        axes: The atoms of its digits, axis by axis.
    """

    tensor: str
    block: Block
    axes: tuple[tuple[int, ...], ...]

    @property
    def digits(self) -> tuple[int, ...]:
        """The atoms of all digits, row-major."""
        return tuple(atom for axis in self.axes for atom in axis)


@dataclass(frozen=True)
class Unknown:
    """An unknown exponent: of one digit of a part, or of the part as a whole (digit None)."""

    part: int
    digit: int | None


@dataclass(frozen=True)
class Equations:
    """What one walk over scales found.

    Attributes:
        forms: Linear forms in the unknowns that vanish.
        log: Who was seen together, with the exponents along the digits.
        shifts: The epsilon that scales along with a running variance, by unknown.
    """

    forms: tuple[Form, ...]
    log: tuple[Plain, ...]
    shifts: Mapping[int, float]


@dataclass(frozen=True)
class Structure:
    """The settled axes of a network."""

    graph: Graph
    atoms: Atoms
    parts: tuple[Part, ...]
    unknowns: tuple[Unknown, ...]
    above: Mapping[int, set[int]]
    axis_atoms: Mapping[tuple[str, int], int]

    def values(self) -> list[Value | None]:
        """Walks once more; what each node's result looks like, if it is one tensor."""
        algebra = Algebra(self.atoms)
        initial = _initial(self.graph, self.axis_atoms)
        start = {name: algebra.resolve(value) for name, value in initial.items()}
        found = _walk(self.graph, algebra, start)
        return [algebra.resolve(v) if isinstance(v, (Plain, Cut)) else None for v in found]

    def equations(self, field: str) -> Equations:
        """Walks once more, following scales over a field."""
        algebra = Algebra(self.atoms, field)
        start, counter = {}, iter(range(len(self.unknowns)))

        def labelled(leaf: Plain) -> Plain:
            axes = tuple(
                tuple(Digit(digit.atom, single(next(counter))) for digit in axis)
                for axis in leaf.axes
            )
            return Plain(axes, single(next(counter)))

        for name, value in _initial(self.graph, self.axis_atoms).items():
            start[name] = map_leaves(labelled, algebra.resolve(value))
        _walk(self.graph, algebra, start)
        log = {leaf: None for entry in algebra.scaled_log for leaf in algebra.settled(entry)}
        return Equations(tuple(dict.fromkeys(algebra.equations)), tuple(log), algebra.shifts)


def settle(graph: Graph) -> Structure:
    """Walks until the parameters' structure no longer changes."""
    atoms = Atoms()
    axis_atoms = {
        (name, axis): atoms.new(size, f"parameter {name} axis {axis}")
        for name, place in graph.parameters.items()
        for axis, size in enumerate(graph.nodes[place].shape)
        if size > 1
    }
    previous: Any = None
    while True:
        algebra = Algebra(atoms)
        initial = _initial(graph, axis_atoms)
        _walk(graph, algebra, {name: algebra.resolve(value) for name, value in initial.items()})
        parts = tuple(
            Part(name, block, tuple(tuple(d.atom for d in axis) for axis in leaf.axes))
            for name, value in initial.items()
            for block, leaf in algebra.leaves(algebra.resolve(value))
        )
        pins = tuple(atoms.pin_of(atom) is None for part in parts for atom in part.digits)
        if (parts, pins) == previous:
            break
        previous = (parts, pins)
    unknowns = tuple(
        Unknown(p, k) for p, part in enumerate(parts) for k in (*range(len(part.digits)), None)
    )
    return Structure(graph, atoms, parts, unknowns, dependencies(algebra.log), axis_atoms)


def _initial(graph: Graph, axis_atoms: Mapping[tuple[str, int], int]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, place in graph.parameters.items():
        axes = tuple(
            (Digit(axis_atoms[(name, axis)]),) if (name, axis) in axis_atoms else ()
            for axis in range(len(graph.nodes[place].shape))
        )
        values[name] = Plain(axes)
    return values


def _walk(graph: Graph, algebra: Algebra, start: Mapping[str, Value]) -> list[Any]:
    """One pass over the graph; returns what each node looks like."""
    for value in start.values():
        algebra.record_axes(value)
    results: list[Any] = []
    for node in graph.nodes:
        algebra.reason = f"{node.op} at {node.source}" if node.source else node.op
        results.append(_visit(node, algebra, results, start))
    algebra.reason = "output"
    for ref in graph.outputs:
        if not isinstance(results[ref.node], Tensor):
            freeze(algebra, results[ref.node], "an output")
    return results


def _visit(node: Node, algebra: Algebra, results: Sequence[Any], start: Mapping[str, Value]) -> Any:
    if node.op == "parameter":
        return start[node.name]
    if node.op == "input":
        axes = tuple(
            (Digit(algebra.atoms.new(size, f"input {node.name}", "an input")),) if size > 1 else ()
            for size in node.shape
        )
        return Plain(axes)
    if node.op == "constant":
        return node.constant

    def value_of(ref: Ref) -> Any:
        # a constant is a new value each time it is used: two users of one tensor of zeros have
        # nothing to do with each other
        result = results[ref.node]
        return constant(algebra, result) if isinstance(result, Tensor) else result

    arguments = substitute(node.arguments, value_of)
    if node.op == "getitem":
        # results that are seldom wanted (where a maximum was) are made when they are
        result = arguments["x"][arguments["index"]]
        return result() if callable(result) else result
    return RULES.get(node.op, unknown)(algebra, node.shape, **arguments)
