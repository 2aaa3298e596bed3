"""Sums of monomials in the scales: how the entries of tensors depend on all scalings at once.

Entry ``e`` becomes ``w_e exp(a_e · u)`` with ``u`` the logarithms of all scales in one vector and
``a_e`` the powers of the scales that act on it.  Entries with the same ``a_e`` are one monomial.
Vectors have one place more than there are scales, for entries that a scaling leaves alone.

Numbers are those of numpy: the vectors are short, and it takes less time than torch to start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.symmetry.action import region
from coset.symmetry.elements import ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.crossings import Crossing, crossings_of, overlaps

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Touch:
    """A scaling that acts on a term.

    Attributes:
        factor: The scaling's name.
        power: Its exponent here.
        places: Where the scales are in the vector, with one axis for each of the term and size one
            along those that do not matter.
    """

    factor: str
    power: int
    places: Places

    @cached_property
    def where(self) -> slice | Places:
        """The places in a row: a range where they are one, which costs no copy."""
        flat = self.places.reshape(-1)
        first = int(flat[0]) if flat.size else 0
        row = np.array_equal(flat, np.arange(first, first + flat.size))
        return slice(first, first + flat.size) if row else flat

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Axes of ``(m, *shape)`` along which the scale is the same."""
        return tuple(k + 1 for k, size in enumerate(self.places.shape) if size == 1)

    @cached_property
    def varying(self) -> tuple[int, ...]:
        """The other axes."""
        return tuple(k + 1 for k, size in enumerate(self.places.shape) if size > 1)

    def of(self, vector: Numbers) -> Numbers:
        """The numbers ``(m, *shape)`` of this scaling in a vector ``(m, count + 1)``."""
        return vector[:, self.where].reshape(-1, *self.places.shape)

    def sums(self, values: Numbers) -> Numbers:
        """Sums ``(m, places)`` of values ``(m, *shape)`` for each of the places."""
        return (values.sum(self.others) if self.others else values).reshape(len(values), -1)

    def add_to(self, total: Numbers, sums: Numbers) -> None:
        """Adds sums to the places of a vector ``(m, count + 1)``."""
        if isinstance(self.where, slice):
            total[:, self.where] += sums
        else:
            for row, addend in zip(total, sums, strict=True):
                np.add.at(row, self.where, addend)  # places may repeat


@dataclass(frozen=True)
class Term:
    """A block of monomials of one tensor.

    Attributes:
        tensor: The tensor's name.
        touches: The scalings that act here.
        site: Where the entries are; ``None`` for every entry of the tensor by itself.
    """

    tensor: str
    touches: tuple[Touch, ...]
    site: Site | None = None

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Digits of the site that some scaling indexes; entries along others are summed."""
        return () if self.site is None else _used([self.site])

    def sums(self, entries: Tensor) -> Numbers:
        """Sums ``(m, *shape)`` over the entries ``(m, *tensor)`` with the same powers."""
        if self.site is not None:
            entries = region(entries, 1, self.site)
            rest = [1 + d for d in range(len(self.site.view)) if d not in self.axes]
            entries = entries.sum(rest) if rest else entries
            entries = entries if self.axes else entries.unsqueeze(-1)
        numbers: Numbers = entries.cpu().numpy()
        return numbers

    def exponents(self, logs: Numbers) -> Numbers:
        """``a · u``, broadcastable to the sums."""
        first, *rest = self.touches
        total = first.power * first.of(logs)
        for touch in rest:
            total = total + touch.power * touch.of(logs)
        return total


@dataclass(frozen=True)
class Monomials:
    """All terms that some scalings act on.

    Attributes:
        factors: The scalings.
        offsets: Where the scales of each begin in the vector.
        count: How many scales there are.
        terms: The blocks.
    """

    factors: tuple[ScalingFactor, ...]
    offsets: Mapping[str, int]
    count: int
    terms: tuple[Term, ...]

    @cached_property
    def powers(self) -> tuple[int, ...]:
        """All powers that occur."""
        return tuple(sorted({touch.power for term in self.terms for touch in term.touches}))

    @cached_property
    def touches(self) -> dict[str, list[tuple[int, Touch]]]:
        """Where each scaling acts, with the number of the term."""
        found: dict[str, list[tuple[int, Touch]]] = {factor.name: [] for factor in self.factors}
        for k, term in enumerate(self.terms):
            for touch in term.touches:
                found[touch.factor].append((k, touch))
        return found

    @cached_property
    def touched(self) -> NDArray[np.bool_]:
        """Which places ``(count + 1)`` some term depends on."""
        found = np.zeros(self.count + 1, dtype=np.bool_)
        for term in self.terms:
            for touch in term.touches:
                found[touch.where] = True
        return found

    def sums(self, tensors: Mapping[str, Tensor]) -> list[Numbers]:
        """For every term the sums over the entries of tensors ``(m, *shape)``."""
        return [term.sums(tensors[term.tensor]) for term in self.terms]

    def collected(self, values: Sequence[Numbers], weight: Callable[[int], float]) -> Numbers:
        """``Σ_e weight(a_ek) value_e`` for every scale ``k``: ``(m, count + 1)``."""
        total = np.zeros((len(values[0]) if values else 1, self.count + 1))
        for term, value in zip(self.terms, values, strict=True):
            for touch in term.touches:
                touch.add_to(total, weight(touch.power) * touch.sums(value))
        total[:, -1] = 0.0
        return total

    def tables(self, group: SymmetryGroup, vector: NDArray[np.generic]) -> dict[str, Tensor]:
        """The vector ``(m, count + 1)`` cut into one table for each scaling."""
        whole = torch.from_numpy(vector)
        tables = {}
        for factor in self.factors:
            shape, start = group.tables.shape(factor), self.offsets[factor.name]
            tables[factor.name] = whole[:, start : start + prod(shape)].reshape(-1, *shape)
        return tables

    def vector(self, tables: Mapping[str, Tensor]) -> NDArray[np.bool_]:
        """One vector ``(m, count + 1)`` of a table for each scaling, such as `tables` makes."""
        parts = [tables[factor.name].cpu().flatten(1) for factor in self.factors]
        last = parts[0].new_zeros(len(parts[0]), 1)
        found: NDArray[np.bool_] = torch.cat([*parts, last], 1).numpy()
        return found

    def positive_signs(self, values: Sequence[Numbers], free: NDArray[np.bool_]) -> Numbers:
        """Signs ``(m, count + 1)`` that make as many terms positive as are independent.

        First ones first, by elimination over the field of two elements, with a row of bits for
        each monomial.  Only free signs are changed.
        """
        members = len(values[0])
        signs = np.ones((members, self.count + 1))
        for member in range(members):
            pivots: dict[int, tuple[int, int]] = {}
            changing = _bits(np.flatnonzero(free[member]).tolist(), self.count)
            for term, sums in zip(self.terms, values, strict=True):
                shape = sums.shape[1:]
                rows = [np.broadcast_to(t.places, shape).ravel().tolist() for t in term.touches]
                for value, *places in zip(sums[member].ravel().tolist(), *rows, strict=True):
                    if value:
                        _eliminate(pivots, _bits(places, self.count) & changing, int(value < 0))
            chosen = 0
            for length, (row, negative) in sorted(pivots.items()):
                if ((row & chosen).bit_count() ^ negative) % 2:
                    chosen |= 1 << (length - 1)
            signs[member, [k for k in range(self.count) if chosen >> k & 1]] = -1.0
        return signs


def _bits(places: Iterable[int], count: int) -> int:
    row = 0
    for place in places:
        row ^= (1 << place) if place < count else 0
    return row


def _eliminate(pivots: dict[int, tuple[int, int]], row: int, negative: int) -> None:
    """Reduces an equation by those known, and keeps what is left of it."""
    while row and row.bit_length() in pivots:
        known, sign = pivots[row.bit_length()]
        row, negative = row ^ known, negative ^ sign
    if row:
        pivots[row.bit_length()] = (row, negative)


def monomials(
    group: SymmetryGroup, factors: Sequence[ScalingFactor], tensors: Iterable[str]
) -> Monomials:
    """How the entries of some tensors depend on some scalings."""
    sizes = [prod(group.tables.shape(factor)) for factor in factors]
    starts = list(accumulate(sizes, initial=0))
    offsets = {factor.name: start for factor, start in zip(factors, starts, strict=False)}
    wanted, terms = set(tensors), []
    for name, parts in crossings_of(factors).items():
        if name in wanted:
            shape = group.shapes[name]
            if overlaps(parts, shape):
                terms.append(_entrywise(name, shape, parts, offsets, starts[-1]))
            else:
                terms += [_blockwise(part, offsets) for part in parts]
    return Monomials(tuple(factors), offsets, starts[-1], tuple(terms))


def _used(sites: Iterable[Site]) -> tuple[int, ...]:
    return tuple(sorted({d for site in sites for d in (*site.parents, *site.digits)}))


def _blockwise(part: Crossing, offsets: Mapping[str, int]) -> Term:
    used = _used(site for _, site in part.touches)
    touches = tuple(
        Touch(name, site.power, _places(site, used, offsets[name])) for name, site in part.touches
    )
    first = part.touches[0][1]
    # one site that stands for all: its digits are those of any scaling here
    return Term(part.tensor, touches, Site(part.tensor, first.block, first.view, used))


def _entrywise(
    tensor: str,
    shape: tuple[int, ...],
    parts: Sequence[Crossing],
    offsets: Mapping[str, int],
    nowhere: int,
) -> Term:
    """Parts that overlap: every entry by itself."""
    touches = []
    for part in parts:
        for name, site in part.touches:
            index = torch.full(shape, nowhere)
            view = region(index, 0, site)
            places = torch.from_numpy(_places(site, range(len(site.view)), offsets[name]))
            # a single entry has no axis to expand along
            view.copy_(places.expand(view.shape) if view.dim() else places.squeeze())
            touches.append(Touch(name, site.power, index.numpy()))
    return Term(tensor, tuple(touches))


def _places(site: Site, used: Sequence[int], offset: int) -> Places:
    """The place of the scale of every index, with one axis for each digit in use."""
    first = [*site.parents, *site.digits]
    sizes = [site.view[d] for d in first]
    order = sorted(range(len(first)), key=first.__getitem__)
    table = np.arange(offset, offset + prod(sizes)).reshape(sizes).transpose(order)
    return table.reshape([site.view[d] if d in first else 1 for d in used] or [1])
