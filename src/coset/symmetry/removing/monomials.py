"""Sums of monomials in the scales: how the entries of tensors depend on all scalings at once.

Entry ``e`` becomes ``w_e exp(a_e · u)`` with ``u`` the logarithms of all scales in one vector and
``a_e`` the powers of the scales that act on it.  Entries with the same ``a_e`` are one monomial.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from coset.symmetry.action import region
from coset.symmetry.elements import ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.parts import Part, overlaps, parts_of


@dataclass(frozen=True)
class Term:
    """A block of monomials of one tensor.

    Attributes:
        tensor: The tensor's name.
        values: ``(m, *shape)`` sums over entries with the same powers.
        touches: For each scaling that acts here the place of its scale in the vector, with size
            one along axes that do not matter, and the power.
        factors: The names of these scalings.
    """

    tensor: str
    values: Tensor
    touches: tuple[tuple[Tensor, int], ...]
    factors: tuple[str, ...]

    def multipliers(self, logs: Tensor, times: float = 1.0) -> Tensor:
        """``exp(times · a · u)``, broadcastable to the values."""
        result = torch.ones((), dtype=logs.dtype, device=logs.device)
        for index, power in self.touches:
            result = result * logs.mul(times * power).exp()[:, index]
        return result

    def exponents(self, logs: Tensor) -> Tensor:
        """``a · u``, broadcastable to the values."""
        total = torch.zeros((), dtype=logs.dtype, device=logs.device)
        for index, power in self.touches:
            total = total + power * logs[:, index]
        return total


@dataclass(frozen=True)
class Monomials:
    """All terms that some scalings act on.

    Attributes:
        factors: The scalings.
        offsets: Where the scales of each begin in the vector.
        count: Length of the vector; one more place holds the scale of what does not move.
        terms: The blocks.
    """

    factors: tuple[ScalingFactor, ...]
    offsets: Mapping[str, int]
    count: int
    terms: tuple[Term, ...]

    def collected(
        self, values: Sequence[Tensor], weight: Callable[[int], float], terms: Sequence[Term]
    ) -> Tensor:
        """``Σ_e weight(a_ek) value_e`` for every scale ``k``: ``(m, count)``."""
        members = values[0].shape[0] if values else 1
        like = values[0] if values else torch.zeros(1, dtype=torch.float64)
        total = like.new_zeros(members, self.count + 1)
        for term, value in zip(terms, values, strict=True):
            for index, power in term.touches:
                if weight(power):
                    summed = value.sum_to_size(members, *index.shape).flatten(1)
                    total.index_add_(1, index.flatten(), summed, alpha=weight(power))
        return total[:, : self.count]

    def positive_signs(self) -> Tensor:
        """Signs ``(m, count)`` that make as many terms positive as are independent.

        First ones first, by elimination over the field of two elements, with a row of bits for
        each monomial.
        """
        members = self.terms[0].values.shape[0]
        signs = torch.ones(members, self.count, dtype=torch.float64)
        for member in range(members):
            pivots: dict[int, tuple[int, int]] = {}
            for term in self.terms:
                values = term.values[member]
                rows = [index.expand(values.shape).flatten().tolist() for index, _ in term.touches]
                for value, *places in zip(values.flatten().tolist(), *rows, strict=True):
                    row, negative = 0, int(value < 0)
                    for place in places:
                        row ^= (1 << place) if place < self.count else 0
                    while row and value and row.bit_length() in pivots:
                        known, sign = pivots[row.bit_length()]
                        row, negative = row ^ known, negative ^ sign
                    if row and value:
                        pivots[row.bit_length()] = (row, negative)
            chosen = 0
            for length, (row, negative) in sorted(pivots.items()):
                if ((row & chosen).bit_count() ^ negative) % 2:
                    chosen |= 1 << (length - 1)
            flipped = [k for k in range(self.count) if chosen >> k & 1]
            signs[member, flipped] = -1.0
        return signs

    def tables(self, group: SymmetryGroup, vector: Tensor) -> dict[str, Tensor]:
        """The vector ``(m, count)`` cut into one table for each scaling."""
        return {
            f.name: vector[:, self.offsets[f.name] :][:, : prod(group.tables.shape(f))].reshape(
                -1, *group.tables.shape(f)
            )
            for f in self.factors
        }


def monomials(
    group: SymmetryGroup,
    factors: Sequence[ScalingFactor],
    tensors: Mapping[str, Tensor],
    function: Callable[[Tensor], Tensor],
) -> Monomials:
    """Sums of a function of the entries, for the tensors given (with a member axis)."""
    sizes = [prod(group.tables.shape(factor)) for factor in factors]
    starts = list(accumulate(sizes, initial=0))
    offsets = {factor.name: start for factor, start in zip(factors, starts, strict=False)}
    terms = []
    for name, parts in parts_of(factors).items():
        if name in tensors:
            values = function(tensors[name])
            if overlaps(parts, group.shapes[name]):
                terms.append(_entrywise(name, values, parts, offsets, starts[-1]))
            else:
                terms += [_blockwise(values, part, offsets) for part in parts]
    return Monomials(tuple(factors), offsets, starts[-1], tuple(terms))


def _blockwise(values: Tensor, part: Part, offsets: Mapping[str, int]) -> Term:
    used = sorted({d for _, site in part.touches for d in (*site.parents, *site.digits)})
    site = part.touches[0][1]
    summed = region(values, 1, site)
    rest = [1 + d for d in range(len(site.view)) if d not in used]
    if rest:
        summed = summed.sum(rest)
    if not used:
        summed = summed.unsqueeze(-1)
    touches = tuple(
        (_places(own, used, offsets[name]).to(values.device), own.power)
        for name, own in part.touches
    )
    names = tuple(name for name, _ in part.touches)
    return Term(part.tensor, summed, touches, names)


def _entrywise(
    tensor: str, values: Tensor, parts: Sequence[Part], offsets: Mapping[str, int], nowhere: int
) -> Term:
    """Parts that overlap: every entry by itself."""
    touches, names = [], []
    for part in parts:
        for name, site in part.touches:
            index = torch.full(values.shape[1:], nowhere)
            view = region(index, 0, site)
            view.copy_(_places(site, range(len(site.view)), offsets[name]).expand(view.shape))
            touches.append((index.to(values.device), site.power))
            names.append(name)
    return Term(tensor, values, tuple(touches), tuple(names))


def _places(site: Site, used: Sequence[int], offset: int) -> Tensor:
    """The place of the scale of every index, with one axis for each digit in use."""
    first = [*site.parents, *site.digits]
    sizes = [site.view[d] for d in first]
    order = sorted(range(len(first)), key=first.__getitem__)
    table = torch.arange(offset, offset + prod(sizes)).reshape(sizes).permute(order)
    return table.reshape([site.view[d] if d in first else 1 for d in used] or [1])


def conjugate_gradients(
    curvature: Callable[[Tensor], Tensor],
    gradient: Tensor,
    diagonal: Tensor,
    *,
    accuracy: float = 1e-12,
) -> Tensor:
    """Solves ``H x = g`` for every member, preconditioned by the diagonal."""
    solution, residual = torch.zeros_like(gradient), gradient
    direction = residual / diagonal
    energy = (residual * direction).sum(1)
    goal = accuracy**2 * energy
    for _ in range(2 * gradient.shape[1] + 10):
        if bool((energy <= goal).all()):
            break
        image = curvature(direction)
        bend = (direction * image).sum(1)
        moving = (energy > goal) & (bend > 0)
        if not bool(moving.any()):
            break
        length = torch.where(moving, energy / torch.where(bend > 0, bend, 1.0), 0.0).unsqueeze(1)
        solution, residual = solution + length * direction, residual - length * image
        scaled = residual / diagonal
        fresh = (residual * scaled).sum(1)
        turn = torch.where(moving, fresh / torch.where(energy > 0, energy, 1.0), 0.0).unsqueeze(1)
        direction, energy = (
            scaled + turn * direction,
            torch.where(moving, fresh, energy.clamp_max(0)),
        )
    return solution
