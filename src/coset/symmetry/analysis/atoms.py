"""Atoms: the indivisible index sets that axes are made of.

An axis of a tensor is a row-major list of *digits*; each digit runs over an atom.  Two axes that an
operation lines up get the same atoms (a union), a reshape may cut an atom into two digits (a
product), a slice may cut its range into pieces (a sum).  Everything is lazy: values written down
earlier look up what became of their atoms when they are used.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """Why two atoms belong together, for explanations.

    Attributes:
        one: An atom.
        other: One it was tied to, or with ``cut`` a part of it.
        why: The operation.
        cut: Whether ``other`` came from cutting ``one``; a part is refused with the whole, but
            not the whole with a part.
    """

    one: int
    other: int
    why: str
    cut: bool = False


class Atoms:
    """A union–find over atoms that also remembers pins, expansions and reasons."""

    def __init__(self) -> None:
        self.size: list[int] = []
        self.label: list[str] = []
        self.edges: list[Edge] = []
        self.version = 0
        self.changes: list[int] = []
        self._parent: list[int] = []
        self._pin: list[str | None] = []
        self._refused: dict[int, str] = {}
        self._expansion: dict[int, Expansion] = {}

    def new(self, size: int, label: str, pin: str | None = None) -> int:
        """A fresh atom; with ``pin`` it is refused from the start, for that reason."""
        self.size.append(size)
        self.label.append(label)
        self._parent.append(len(self._parent))
        self._pin.append(pin)
        if pin is not None:
            self._refused[len(self._parent) - 1] = pin
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

    def stands(self, atom: int) -> bool:
        """Whether the atom still stands for itself: neither tied to an older one nor cut."""
        return self._parent[atom] == atom and atom not in self._expansion

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
            self._refused[atom] = why

    def union(self, one: int, other: int, why: str) -> None:
        """Makes two atoms of one size the same; the older one stands for both."""
        self.edges.append(Edge(one, other, why))
        one, other = sorted((self.find(one), self.find(other)))
        if one == other:
            return
        self._parent[other] = one
        self.changes.append(other)
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

    def chains(self) -> "Chains":
        """The edges, indexed for walks along them."""
        return Chains(self.edges, self._refused)

    def _child(self, atom: int, size: int, label: str) -> int:
        child = self.new(size, f"{self.label[atom]} {label}")
        self._pin[child] = self._pin[self.find(atom)]  # refused with the whole, not by itself
        return child

    def _expand(self, atom: int, expansion: Expansion, why: str) -> None:
        root = self.find(atom)
        self._expansion[root] = expansion
        self.changes.append(root)
        self.version += 1
        for part in _parts(expansion):
            self.edges.append(Edge(root, part, why, cut=True))


class Chains:
    """Walks along the ties, from an atom to what it is tied to or refused by."""

    def __init__(self, edges: Iterable[Edge], refused: Mapping[int, str]) -> None:
        self.refused = refused
        self._ties: dict[int, dict[int, str]] = {}
        for edge in edges:
            if edge.one != edge.other:
                self._ties.setdefault(edge.other, {}).setdefault(edge.one, edge.why)
                if not edge.cut:
                    self._ties.setdefault(edge.one, {}).setdefault(edge.other, edge.why)

    def nearest(self, atom: int, goal: Callable[[int], bool]) -> list[tuple[int, str]] | None:
        """The shortest chain of (atom, why it is tied to the one before) to a goal, if any."""
        came: dict[int, int | None] = {atom: None}
        queue = deque([atom])
        while queue:
            here = queue.popleft()
            if goal(here):
                chain = []
                while (before := came[here]) is not None:
                    chain.append((here, self._ties[before][here]))
                    here = before
                return chain[::-1]
            for there in self._ties.get(here, ()):
                if there not in came:
                    came[there] = here
                    queue.append(there)
        return None


def _parts(expansion: Expansion) -> Iterator[int]:
    if isinstance(expansion, Product):
        yield from (expansion.outer, expansion.inner)
    elif isinstance(expansion, Sum):
        yield from (piece for piece in expansion.pieces if piece is not None)
    else:
        yield from expansion.instances
