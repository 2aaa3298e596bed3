"""Atoms: the indivisible index sets that axes are made of.

An axis of a tensor is a row-major list of *digits*; each digit runs over an atom.  Two axes that an
operation lines up get the same atoms (a union), a reshape may cut an atom into two digits (a
product), a slice may cut its range into pieces (a sum).  Everything is lazy: values written down
earlier look up what became of their atoms when they are used.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """The atom's index is a pair (outer, inner)."""

    outer: int
    inner: int


@dataclass(frozen=True)
class Sum:
    """The atom's range is cut in pieces; a piece of size one is ``None``."""

    pieces: tuple[int | None, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """The atom lived under ``over`` when that was cut: one instance for each of its pieces."""

    over: int
    instances: tuple[int, ...]


Expansion = Product | Sum | Family


@dataclass(frozen=True)
class Edge:
    """Why two atoms belong together, for explanations."""

    one: int
    other: int
    why: str


class Atoms:
    """A union–find over atoms that also remembers pins, expansions and reasons."""

    def __init__(self) -> None:
        self.size: list[int] = []
        self.label: list[str] = []
        self.edges: list[Edge] = []
        self.version = 0
        self._parent: list[int] = []
        self._pin: list[str | None] = []
        self._expansion: dict[int, Expansion] = {}

    def new(self, size: int, label: str, pin: str | None = None) -> int:
        """A fresh atom; with ``pin`` it is refused from the start, for that reason."""
        self.size.append(size)
        self.label.append(label)
        self._parent.append(len(self._parent))
        self._pin.append(pin)
        return len(self._parent) - 1

    def find(self, atom: int) -> int:
        """The atom that stands for this one's class."""
        while self._parent[atom] != atom:
            self._parent[atom] = self._parent[self._parent[atom]]
            atom = self._parent[atom]
        return atom

    def expansion(self, atom: int) -> Expansion | None:
        """What became of the atom, if it was cut."""
        return self._expansion.get(self.find(atom))

    def pin_of(self, atom: int) -> str | None:
        """Why the atom may not be permuted, or nothing."""
        return self._pin[self.find(atom)]

    def pin(self, atom: int, why: str) -> None:
        """Refuses every permutation of the atom; the first reason is kept."""
        root = self.find(atom)
        expansion = self._expansion.get(root)
        if expansion is not None:
            for part in _parts(expansion):
                self.pin(part, why)
        if self._pin[root] is None:
            self._pin[root] = why

    def union(self, one: int, other: int, why: str) -> None:
        """Makes two atoms of one size the same; the older one stands for both."""
        self.edges.append(Edge(one, other, why))
        one, other = sorted((self.find(one), self.find(other)))
        if one == other:
            return
        self._parent[other] = one
        if self._pin[one] is None:
            self._pin[one] = self._pin[other]

    def refine(self, atom: int, outer: int, why: str) -> None:
        """Cuts the index into (outer, inner) digits."""
        inner = self.size[atom] // outer
        self._expand(
            atom, Product(self._child(atom, outer, "outer"), self._child(atom, inner, "inner")), why
        )

    def split(self, atom: int, sizes: tuple[int, ...], why: str) -> None:
        """Cuts the range into pieces."""
        pieces = tuple(
            self._child(atom, size, f"piece {k}") if size > 1 else None
            for k, size in enumerate(sizes)
        )
        self._expand(atom, Sum(pieces, sizes), why)

    def multiply(self, atom: int, over: int, count: int, why: str) -> None:
        """Gives the atom one instance for each piece of ``over``."""
        instances = tuple(self._child(atom, self.size[atom], f"instance {k}") for k in range(count))
        self._expand(atom, Family(self.find(over), instances), why)

    def path(self, atom: int, goal: str) -> list[str]:
        """The chain of reasons from an atom to the nearest one whose label starts with ``goal``."""
        neighbours: dict[int, list[tuple[int, str]]] = {}
        for edge in self.edges:
            neighbours.setdefault(edge.one, []).append((edge.other, edge.why))
            neighbours.setdefault(edge.other, []).append((edge.one, edge.why))
        queue, seen = deque([(atom, [])]), {atom}  # type: ignore[var-annotated]
        while queue:
            here, reasons = queue.popleft()
            if self.label[here].startswith(goal):
                return [*reasons, self.label[here]]
            for there, why in neighbours.get(here, ()):
                if there not in seen:
                    seen.add(there)
                    queue.append((there, [*reasons, why]))
        return []

    def _child(self, atom: int, size: int, label: str) -> int:
        return self.new(size, f"{self.label[atom]} {label}", self._pin[self.find(atom)])

    def _expand(self, atom: int, expansion: Expansion, why: str) -> None:
        root = self.find(atom)
        self._expansion[root] = expansion
        self.version += 1
        for part in _parts(expansion):
            self.edges.append(Edge(root, part, why))


def _parts(expansion: Expansion) -> Iterator[int]:
    if isinstance(expansion, Product):
        yield from (expansion.outer, expansion.inner)
    elif isinstance(expansion, Sum):
        yield from (piece for piece in expansion.pieces if piece is not None)
    else:
        yield from expansion.instances
