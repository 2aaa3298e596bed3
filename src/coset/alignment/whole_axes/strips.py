"""Vectors along a factor, held as the rows of one matrix.

Biases, the numbers of norms and running statistics are most of a network's tensors and few of its
numbers: one call for all rows of a factor costs what one call for each would cost many times over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import Indices, Matrix


@dataclass(frozen=True)
class Strip:
    """The vectors along one factor.

    Attributes:
        names: The tensors, row by row; those that are compared come first.
        slots: For each row the number of the sign that flips it, or of no sign.
        compared: How many rows are compared.
        depth: In how many slots anything along the factor is compared.
    """

    names: tuple[str, ...]
    slots: tuple[int, ...]
    compared: int
    depth: int

    @staticmethod
    def of(slots: Mapping[str, int], matched: frozenset[str], depth: int) -> "Strip":
        """Vectors with their slots, in order: compared or not, then by slot."""
        names = sorted(slots, key=lambda name: (name not in matched, slots[name]))
        return Strip(
            tuple(names),
            tuple(slots[name] for name in names),
            sum(name in matched for name in names),
            depth,
        )

    @cached_property
    def index(self) -> Indices:
        """The slots, to index with."""
        return np.array(self.slots, dtype=np.int64)

    @cached_property
    def parts(self) -> Matrix:
        """For each slot a one for its rows that are compared, and zeros for the others."""
        own = np.arange(self.depth)[:, None] == self.index[: self.compared]
        parts: Matrix = own[:, None].astype(np.float32)
        return parts


@dataclass(frozen=True)
class Packing:
    """Where the vectors along all factors lie in one long vector.

    Attributes:
        names: The vectors, in order.
        sizes: How long they are.
        parts: For each factor with vectors where its part begins and ends, and how many there are.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    parts: Mapping[str, tuple[int, int, int]]

    @staticmethod
    def of(strips: Mapping[str, Strip], units: Mapping[str, int]) -> "Packing":
        """The strips of all factors, one after the other."""
        parts, end = {}, 0
        for factor, strip in strips.items():
            begin, rows = end, len(strip.names)
            end += rows * units[factor]
            if rows:
                parts[factor] = (begin, end, rows)
        names = tuple(name for strip in strips.values() for name in strip.names)
        sizes = tuple(units[f] for f, strip in strips.items() for _ in strip.names)
        return Packing(names, sizes, parts)

    def pack(self, weights: Mapping[str, Tensor]) -> Matrix:
        """A copy of all vectors, end to end."""
        some = next(iter(weights.values()), torch.empty(0, dtype=torch.float64))
        vectors = [weights[name] for name in self.names] or [some.new_empty(0)]
        flat: Matrix = torch.cat(vectors).numpy()
        return flat

    def rows(self, flat: Matrix) -> dict[str, Matrix]:
        """For each factor its vectors as the rows of a matrix: views."""
        return {factor: self.rows_of(factor, flat) for factor in self.parts}

    def rows_of(self, factor: str, flat: Matrix) -> Matrix:
        """The same for one factor that has vectors."""
        begin, end, rows = self.parts[factor]
        return flat[begin:end].reshape(rows, -1)

    def unpack(self, flat: Matrix) -> dict[str, Tensor]:
        """The vectors by their names: views, each of its own part."""
        parts = torch.from_numpy(flat).split(list(self.sizes))
        return dict(zip(self.names, parts, strict=True))


def products(strip: Strip, left: Matrix, right: Matrix) -> Matrix:
    """For each slot the products of all units with all units, in the rows that are compared.

    All in one product, in which the rows of other slots count as zeros.
    """
    rows, size = strip.compared, left.shape[1]
    stacked, own = (left[:rows].T * strip.parts).reshape(-1, rows), right[:rows]
    found: Matrix = np.dot(stacked, own)
    return found.reshape(strip.depth, size, size)
