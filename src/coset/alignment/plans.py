"""What matching needs to know about each factor, worked out once for a group."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from coset.symmetry.action import region
from coset.symmetry.analysis.digits import Block
from coset.symmetry.elements import PermutationFactor, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup

MOST_SIGNS = 4
"""Signs that are held at either value one inside the other, at ``2^k`` times the cost."""

STATISTICS = ("*running_mean*", "*running_var*")
"""Tensors that follow from the others and the data: moved along, never matched."""


@dataclass(frozen=True)
class Term:
    """One site of a factor: where ``to`` and the weights are compared.

    Attributes:
        site: The place.
        others: Further factors that move the numbers there.
        shape: Of the tensor.
        parity: For each of the factor's signs, whether flipping it flips the term.
        above: The same for the signs of the factor it lives under.
        whole: Signs of whole layers that flip the term.
        within: The factors that its own lives under.
    """

    site: Site
    others: frozenset[str]
    shape: tuple[int, ...]
    parity: tuple[bool, ...] = ()
    above: tuple[bool, ...] = ()
    whole: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()

    @cached_property
    def geometry(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Sizes, strides and offset of the digits in a contiguous tensor.

        Parents come first, then the factor's own digits, then those that are summed over.
        """
        first = (*self.site.parents, *self.site.digits)
        order = (*first, *(d for d in range(len(self.site.view)) if d not in first))
        view = region(torch.empty(self.shape, device="meta"), 0, self.site).permute(order)
        return tuple(view.shape), view.stride(), int(view.storage_offset())

    @cached_property
    def rows(self) -> tuple[int, int]:
        """Copies and units."""
        view = self.site.view
        return prod(view[d] for d in self.site.parents), prod(view[d] for d in self.site.digits)

    @cached_property
    def features(self) -> int:
        """How many numbers of each unit are compared."""
        taken = (*self.site.parents, *self.site.digits)
        return prod(n for d, n in enumerate(self.site.view) if d not in taken)

    def unfold(self, tensor: Tensor) -> Tensor:
        """What a contiguous tensor has at the site, as (copies, units, features)."""
        size, stride, offset = self.geometry
        view = tensor.as_strided(size, stride, tensor.storage_offset() + offset)
        return view.reshape(*self.rows, -1)


@dataclass(frozen=True)
class Plan:
    """Everything about one factor.

    Attributes:
        factor: The factor.
        copies: How many permutations it has.
        terms: Its sites in tensors that are matched.
        signs: Scalings along it that may flip signs.
        children: Factors directly below it.
        own: Those of ``terms`` that no child moves.
        tensors: All tensors that it or a child moves, matched or not.
        neighbours: Factors whose gains change when this one moves.
        curved: Whether the objective is not linear in it: it or a child acts twice on one tensor,
            or two children share one.
    """

    factor: PermutationFactor
    copies: int
    terms: tuple[Term, ...]
    signs: tuple[ScalingFactor, ...]
    children: tuple[str, ...]
    own: tuple[Term, ...]
    tensors: tuple[str, ...]
    neighbours: frozenset[str]
    curved: bool


def make_plans(group: SymmetryGroup) -> dict[str, Plan]:
    """The plans of all factors, by name."""
    return group.remembered("plans to match", lambda: _make_plans(group))


def _make_plans(group: SymmetryGroup) -> dict[str, Plan]:
    matched = matched_tensors(group)
    found = {}
    for factor in group.permutations:
        signs, above = _signs(group, factor), _signs_above(group, factor)
        terms = tuple(
            Term(
                site,
                _others(group, factor, site),
                tuple(group.shapes[site.tensor]),
                tuple(_flips(sign, site, site.digits) for sign in signs),
                tuple(_flips(sign, site, site.parents) for sign in above),
                frozenset(sign.name for sign in lone_signs(group) if _flips(sign, site, ())),
                frozenset(factor.within),
            )
            for site in factor.sites
            if site.tensor in matched
        )
        children = tuple(
            other for other in group.permutations if other.within == (*factor.within, factor.name)
        )
        below = frozenset(child.name for child in children)
        touched = [s.tensor for f in (factor, *children) for s in f.sites]
        found[factor.name] = Plan(
            factor,
            group.tables.copies(factor),
            terms,
            signs,
            tuple(child.name for child in children),
            tuple(term for term in terms if not term.others & below),
            tuple(dict.fromkeys(touched)),
            frozenset(
                other.name
                for other in group.permutations
                if {s.tensor for s in other.sites} & set(touched) & matched
            ),
            any(factor.name in term.others for term in terms)
            or any(
                _others(group, child, site) & below
                for child in children
                for site in child.sites
                if site.tensor in matched
            ),
        )
    return found


def most_anchored(numbers: Sequence[Sequence[int]]) -> int:
    """Which of some factors is best known: two matrices say more than one, and many numbers more.

    Args:
        numbers: For each factor the numbers a unit has in each of its tensors that are anchored:
            those where all other axes are fixed (inputs, outputs) or belong to factors solved
            before.  Where there is one number (biases, norms) it is no matrix.

    >>> most_anchored([[1, 288], [1, 32, 10], [27]])
    1
    """
    known = [(min(sum(n > 1 for n in found), 2), sum(found)) for found in numbers]
    return known.index(max(known))


def lone_signs(group: SymmetryGroup) -> tuple[ScalingFactor, ...]:
    """Scalings that may flip signs and that no permutation moves: those of whole layers, mostly."""
    return tuple(s for s in group.scalings if s.domain != "positive" and s.along is None)


def acted_on(group: SymmetryGroup) -> frozenset[str]:
    """Tensors that the group moves, flips or scales."""
    return group.remembered("tensors acted on", lambda: _acted_on(group))


def _acted_on(group: SymmetryGroup) -> frozenset[str]:
    moved = {site.tensor for factor in group.permutations for site in factor.sites}
    return frozenset(moved | {site.tensor for factor in group.scalings for site in factor.sites})


def matched_tensors(group: SymmetryGroup) -> frozenset[str]:
    """Tensors acted on that count in the objective."""
    return group.remembered("tensors to match", lambda: frozenset(filter(counts, acted_on(group))))


def counts(tensor: str) -> bool:
    """Whether a tensor that is acted on counts in the objective.

    >>> counts("1.weight"), counts("1.running_mean")
    (True, False)
    """
    return not any(fnmatchcase(tensor, pattern) for pattern in STATISTICS)


def _signs(group: SymmetryGroup, factor: PermutationFactor) -> tuple[ScalingFactor, ...]:
    return tuple(
        scaling
        for scaling in group.scalings
        if scaling.along == factor.name
        and scaling.domain != "positive"
        and scaling.within == factor.within
    )


def _signs_above(group: SymmetryGroup, factor: PermutationFactor) -> tuple[ScalingFactor, ...]:
    """The signs of the factor this one is a child of."""
    parents = [p for p in group.permutations if factor.within == (*p.within, p.name)]
    return _signs(group, parents[0]) if parents else ()


def _flips(sign: ScalingFactor, site: Site, digits: tuple[int, ...]) -> bool:
    """Whether a sign for each index of the given digits flips what is at a site."""
    powers = [
        other.power
        for other in sign.sites
        if other.tensor == site.tensor
        and other.block == site.block[: len(other.block)]
        and set(other.digits) <= set(digits)
        and bool(other.digits) == bool(digits)
    ]
    return sum(powers) % 2 == 1


def _others(group: SymmetryGroup, factor: PermutationFactor, site: Site) -> frozenset[str]:
    """Factors, perhaps the factor itself a second time, that move the numbers at a site.

    Factors above are left out: what they do is fixed while copies are matched one by one.
    """
    return frozenset(
        name
        for name, other in _sites(group.permutations)
        if other is not site
        and other.tensor == site.tensor
        and name not in factor.within
        and not _disjoint(other.block, site.block)
    )


def _sites(factors: Iterable[PermutationFactor]) -> Iterable[tuple[str, Site]]:
    return ((factor.name, site) for factor in factors for site in factor.sites)


def _disjoint(one: Block, other: Block) -> bool:
    for cut, second in zip(one, other, strict=False):
        if cut == second:
            continue
        if cut[:2] != second[:2]:
            return False
        return cut[2] + cut[3] <= second[2] or second[2] + second[3] <= cut[2]
    return False
