"""Squares of weights summed over all axes that no scale runs along.

Where scales run along whole axes, these *tables* are all that fitting scales asks of a network:
scaling a tensor scales its table.  So a round costs as much as there are pairs of units, not
weights.  The units of all axes of all tables lie end to end in one vector, so that most of a round
are a few calls for all factors together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from coset.alignment.assignment import Indices, Matrix
from coset.vocabulary import Weights

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Of which numbers of a tensor the sums are taken.

    Attributes:
        view: The axes of the tensor.
        kept: Those of them that scales run along.
        parts: For each of these where its units lie in the vector of all.
    """

    view: tuple[int, ...]
    kept: tuple[int, ...]
    parts: tuple[slice, ...]

    def summed(self, products: Matrix) -> Matrix:
        """Products summed over the axes that are not kept."""
        products = products.reshape(self.view)
        if self.kept == tuple(range(len(self.kept))):  # in front: rows of contiguous numbers
            sizes = self.view[: len(self.kept)]
            rows = products.reshape(prod(sizes), -1)
            found: Matrix = np.dot(rows, _ones(rows.shape[1], rows.dtype)).reshape(sizes)
        else:
            rest = tuple(d for d in range(len(self.view)) if d not in self.kept)
            found = np.add.reduce(products, rest)
        return found

    def write_sums(self, products: Matrix, found: Vector) -> None:
        """Writes for each unit of each axis that is kept the sum of its products to its place."""
        if self.kept != (0, 1):
            _fill(found, self.summed(products), None, self.parts)
            return
        rows, columns = self.view[:2]
        matrix, kind = products.reshape(rows, -1), products.dtype
        sums = np.dot(_ones(rows, kind), matrix).reshape(columns, -1)
        found[self.parts[0]] = np.dot(matrix, _ones(matrix.shape[1], kind))
        found[self.parts[1]] = np.dot(sums, _ones(sums.shape[1], kind))


@dataclass(frozen=True)
class Sums:
    """The tables of a network with itself, or of two with each other.

    Attributes:
        lines: Tables of one axis, end to end.
        others: Those of more axes, by name.
    """

    lines: Vector
    others: Mapping[str, Matrix]


@dataclass(frozen=True)
class Runs:
    """Parts of a vector that lie end to end.

    Attributes:
        starts: Where they begin.
        lengths: How long they are, none of them empty.
    """

    starts: Indices
    lengths: Indices

    @staticmethod
    def of(lengths: Iterable[int]) -> "Runs":
        """Parts of some lengths."""
        found = np.array(list(lengths), np.int64)
        return Runs(found.cumsum() - found, found)

    def __iter__(self) -> Iterator[slice]:
        """Where each part is."""
        starts, lengths = self.starts.tolist(), self.lengths.tolist()
        return (slice(start, start + n) for start, n in zip(starts, lengths, strict=True))

    @property
    def size(self) -> int:
        """The length of the vector."""
        return int(self.lengths.sum())

    def totals(self, values: Vector) -> Vector:
        """The sum of each part.

        >>> Runs.of([1, 2]).totals(np.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 5.0]
        """
        return np.add.reduceat(values, self.starts) if len(self.starts) else np.empty(0)

    def spread(self, values: Vector) -> Vector:
        """One number for each part, given to all that is in it.

        >>> Runs.of([1, 2]).spread(np.array([1.0, 2.0])).tolist()
        [1.0, 2.0, 2.0]
        """
        return values.repeat(self.lengths)


@dataclass(frozen=True)
class ScaledAxes:
    """Where scales act.

    A *site* is an axis that a factor scales.  The sites of all factors are laid end to end, unit by
    unit, in ``units``, ``entries`` and ``powers``.

    Attributes:
        tables: The tables of all tensors that are scaled and matched: those of one axis first.
        vectors: Tensors of one axis; their tables are the very first.
        factors: For each scaling factor where its units lie among all.
        units: The number of the unit.
        entries: Where it lies along the axis, in the vector of all.
        powers: The power of its scale there.
    """

    tables: Mapping[str, Table]
    vectors: tuple[str, ...]
    factors: Mapping[str, slice]
    units: Indices
    entries: Indices
    powers: Vector

    @cached_property
    def lines(self) -> Mapping[str, Table]:
        """Tables of one axis that are no vectors."""
        one = {n: table for n, table in self.tables.items() if len(table.kept) == 1}
        return {n: table for n, table in one.items() if n not in self.vectors}

    @cached_property
    def others(self) -> Mapping[str, Table]:
        """Tables of more axes."""
        return {n: table for n, table in self.tables.items() if len(table.kept) > 1}

    @cached_property
    def runs(self) -> "Runs":
        """The units of each factor."""
        return Runs.of(part.stop - part.start for part in self.factors.values())

    @cached_property
    def sides(self) -> Indices:
        """The number of the unit where it is multiplied; where it is divided so many more."""
        found: Indices = self.units + np.where(self.powers < 0, self.runs.size, 0)
        return found

    @cached_property
    def reach(self) -> Vector:
        """For each unit the mean power with which it is multiplied, and in a second row divided."""
        size = 2 * self.runs.size
        total = collected(self.sides, np.abs(self.powers), size)
        present = collected(self.sides, np.ones(len(self.sides)), size)
        return (total / np.maximum(present, 1.0)).reshape(2, -1)

    @cached_property
    def size(self) -> int:
        """How many numbers there are in the vector of all."""
        return max((table.parts[-1].stop for table in self.tables.values()), default=0)

    def sums(self, one: Weights, other: Weights, kind: DTypeLike = np.float64) -> Sums:
        """The tables of two networks, multiplied and added up in some precision."""
        tables = {**self.lines, **self.others}
        pairs = iter(self._pairs(one, other))
        lines = [np.multiply(*next(pairs), dtype=np.float64)] if self.vectors else [np.empty(0)]
        found = {
            name: table.summed(np.multiply(*pair, dtype=kind))
            for (name, table), pair in zip(tables.items(), pairs, strict=True)
        }
        lines += [found.pop(name) for name in self.lines]
        return Sums(np.concatenate(lines), found)

    def squares(self, weights: Weights, kind: DTypeLike = np.float64) -> Vector:
        """The squared norms of all units along all axes, in some precision.

        As ``of_units(sums(weights, weights))``, without tables of pairs of units.
        """
        found = np.empty(self.size)
        if self.vectors:
            vectors = torch.cat([weights[name] for name in self.vectors]).numpy()
            np.square(vectors, out=found[: len(vectors)], dtype=np.float64)
        for name in (*self.lines, *self.others):
            own = np.square(weights[name].numpy(), dtype=kind)
            self.tables[name].write_sums(own, found)
        return found

    def _pairs(self, one: Weights, other: Weights) -> Iterator[tuple[Matrix, Matrix]]:
        """All vectors end to end, then all other tensors, of both networks."""
        if self.vectors:
            left = torch.cat([one[name] for name in self.vectors]).numpy()
            right = torch.cat([other[name] for name in self.vectors]).numpy()
            yield left, right
        for name in (*self.lines, *self.others):
            yield one[name].numpy(), other[name].numpy()

    def apart(self, one: Weights, other: Weights, kind: DTypeLike = np.float64) -> float:
        """The squared distance of two networks over what is scaled, in some precision."""
        pairs = self._pairs(one, other)
        return sum(_squared(np.subtract(*pair, dtype=kind)) for pair in pairs)

    def of_units(self, sums: Sums, factors: Vector | None = None) -> Vector:
        """What belongs to each unit along each axis, added up after scaling all along all axes.

        Args:
            sums: What is added up.
            factors: For each unit of each axis what is multiplied by; ``None``: nothing.
        """
        found, count = np.empty(self.size), len(sums.lines)
        found[:count] = sums.lines if factors is None else sums.lines * factors[:count]
        for name, table in self.others.items():
            _fill(found, sums.others[name], factors, table.parts)
        return found

    def total(self, sums: Sums, factors: Vector) -> float:
        """The sum of everything after scaling."""
        total = float(np.dot(sums.lines, factors[: len(sums.lines)]))
        for name, table in self.others.items():
            rest = sums.others[name]
            for part in reversed(table.parts):
                rest = np.dot(rest, factors[part].astype(rest.dtype, copy=False))
            total += float(rest)
        return total

    def of_sides(self, of_units: Vector) -> Vector:
        """What belongs to each unit where its scale multiplies, and where it divides, by rows."""
        return collected(self.sides, of_units[self.entries], 2 * self.runs.size).reshape(2, -1)

    def along(self, logs: Vector) -> Vector:
        """The logarithms of the scales of all units, as they add up along the axes."""
        return collected(self.entries, self.powers * logs[self.units], self.size)

    def change(self, logs: Vector, squares: Sums, products: Sums) -> float:
        """By how much scales change the squared distance ``|s w - v|²`` to another network.

        Args:
            logs: The logarithms of ``s`` for all units.
            squares: The tables of ``w``.
            products: Those of ``w`` and ``v``.
        """
        once, scales = np.ones(self.size), np.exp(self.along(logs))
        grown = self.total(squares, scales * scales) - self.total(squares, once)
        return grown - 2 * (self.total(products, scales) - self.total(products, once))


def _squared(difference: Matrix) -> float:
    flat = difference.reshape(-1)
    return float(np.dot(flat, flat))


def _fill(found: Vector, table: Matrix, factors: Vector | None, parts: Sequence[slice]) -> None:
    """Writes the sums for all axes of a table."""
    kind = table.dtype
    own = (
        [_ones(size, kind) for size in table.shape]
        if factors is None
        else [factors[part].astype(kind, copy=False) for part in parts]
    )
    for place, part in enumerate(parts):
        rest = table
        for after in reversed(own[place + 1 :]):
            rest = np.dot(rest, after)
        for before in own[:place]:
            rest = np.dot(before, rest.reshape(len(before), -1)).reshape(rest.shape[1:])
        found[part] = rest if factors is None else rest * own[place]


def collected(places: Indices, values: Matrix, size: int) -> Vector:
    """A vector to which values are added where they belong.

    >>> collected(np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0]), 3).tolist()
    [4.0, 0.0, 2.0]
    """
    found: Vector = np.bincount(places, values, size)  # type: ignore[assignment]  # by its stubs whole numbers
    return found


@cache
def _ones(count: int, kind: DTypeLike) -> Matrix:
    return np.ones(count, kind)
