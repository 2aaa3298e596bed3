"""Vectors along a factor, held as the rows of one matrix.

Biases, the numbers of norms and running statistics are most of a network's tensors and few of its
numbers: one call for all rows of a factor costs what one call for each would cost many times over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import Indices, Matrix
from coset.vocabulary import Weights

_WIDE = 512
"""Units from which torch multiplies so few rows faster than numpy."""


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


def packed(strips: Mapping[str, Strip], weights: Weights) -> dict[str, Matrix]:
    """For each factor its vectors as the rows of a matrix: one copy, cut into views."""
    vectors = [weights[name] for strip in strips.values() for name in strip.names]
    if not vectors:
        return {}
    flat: Matrix = torch.cat(vectors).numpy()
    found, end = {}, 0
    for factor, strip in strips.items():
        if strip.names:
            begin, rows = end, len(strip.names)
            end += rows * len(weights[strip.names[0]])
            found[factor] = flat[begin:end].reshape(rows, -1)
    return found


def unpacked(strip: Strip, rows: Matrix) -> Iterable[tuple[str, Tensor]]:
    """The vectors by their names: views of one copy, each with its own part of it."""
    return zip(strip.names, torch.from_numpy(rows).unbind(0), strict=True)


def products(strip: Strip, left: Matrix, right: Matrix) -> Matrix:
    """For each slot the products of all units with all units, in the rows that are compared.

    All in one product, in which the rows of other slots count as zeros.
    """
    rows, size = strip.compared, left.shape[1]
    stacked, own = (left[:rows].T * strip.parts).reshape(-1, rows), right[:rows]
    if size < _WIDE:
        found: Matrix = stacked @ own
    else:
        found = (torch.from_numpy(stacked) @ torch.from_numpy(own)).numpy()
    return found.reshape(strip.depth, size, size)
