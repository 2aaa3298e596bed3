"""Symmetry factors as a person writes them down, and how they are read."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import get_args

from torch import nn

from coset.errors import CosetError
from coset.symmetry.describing.describe import site_axes
from coset.symmetry.elements import (
    Domain,
    PermutationFactor,
    Pinned,
    ScalingFactor,
    Site,
)
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

Place = tuple[str, int] | tuple[str, int, int] | Site
"""``(tensor, axis)``, ``(tensor, axis, power)`` for scales, or a full :class:`Site`."""


@dataclass(frozen=True)
class PermutationByHand:
    """Units that may be permuted, as a person writes them down.

    Attributes:
        name: Any name.
        size: Number of units in one copy.
        sites: Every ``(tensor, axis)`` that the units index.  An axis is read row-major as
            (parents, units, rest): four heads of eight units on an axis of 32 are a factor of
            size 4 and one of size 8 within it.
        within: The factors it lives under, written before it.
    """

    name: str
    size: int
    sites: Sequence[Place]
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingByHand:
    """Units that may be scaled, as a person writes them down.

    Attributes:
        name: Any name.
        size: Number of scales in one copy; 1 is one scale for whole tensors.
        sites: Every ``(tensor, axis, power)``, such as 1 for the rows and -1 for the next columns.
        domain: ``"positive"``, ``"sign"`` or ``"nonzero"``.
        within: The permutation factors whose index chooses the scales.
    """

    name: str
    size: int
    sites: Sequence[Place]
    domain: Domain = "positive"
    within: tuple[str, ...] = ()


FactorByHand = PermutationByHand | ScalingByHand


def read_factors(
    module: nn.Module, weights: Weights, factors: Sequence[FactorByHand]
) -> SymmetryGroup:
    """The group of written factors, unchecked but for names and shapes.

    Raises:
        CosetError: If a name or a shape does not fit.
    """
    aliases = _aliases(module, weights)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    reader = _Reader(shapes, aliases)
    for factor in factors:
        reader.read(factor)
    moved = {
        (site.tensor, axis)
        for factor in reader.permutations.values()
        for site in factor.sites
        for axis in _axes(site, shapes[site.tensor])
    }
    pinned = tuple(
        Pinned(name, axis, "by hand", "no factor written for it")
        for name, shape in shapes.items()
        for axis, size in enumerate(shape)
        if size > 1 and (name, axis) not in moved
    )
    return SymmetryGroup(
        tuple(reader.permutations.values()),
        tuple(reader.scalings.values()),
        pinned=pinned,
        shapes=shapes,
        aliases=aliases,
    )


def _aliases(module: nn.Module, weights: Weights) -> dict[str, str]:
    """Further names of tied tensors."""
    first: dict[int, str] = {}
    aliases = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        main = first.setdefault(id(tensor), name)
        if main != name and main in weights:
            aliases[name] = main
    return aliases


class _Reader:
    """Turns records into factors, and refuses by name what does not fit."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], aliases: Mapping[str, str]) -> None:
        self.shapes, self.aliases = shapes, aliases
        self.permutations: dict[str, PermutationFactor] = {}
        self.scalings: dict[str, ScalingFactor] = {}

    def read(self, factor: FactorByHand) -> None:
        """Adds one factor."""
        scaling = isinstance(factor, ScalingByHand)
        if not factor.name or factor.name in self.permutations or factor.name in self.scalings:
            raise CosetError(
                f"got a factor called {factor.name!r} twice" if factor.name else "got no name",
                "needed a name of its own for every factor",
            )
        least = 1 if scaling else 2
        if factor.size < least or not factor.sites:
            raise CosetError(
                f"got factor {factor.name!r} of size {factor.size} at {len(factor.sites)} sites",
                f"needed a size of at least {least} and a site",
            )
        within = self._within(factor)
        sites = tuple(self._site(factor, place, within, scaling) for place in factor.sites)
        if len(set(sites)) < len(sites):
            raise CosetError(
                f"got factor {factor.name!r} with the same site twice", "needed each site once"
            )
        if not isinstance(factor, ScalingByHand):
            self.permutations[factor.name] = PermutationFactor(
                factor.name, factor.size, sites, within
            )
            return
        if factor.domain not in get_args(Domain):
            raise CosetError(
                f"got domain {factor.domain!r} for {factor.name!r}",
                f"needed one of {', '.join(get_args(Domain))}",
            )
        along = self._along(factor.size, sites, within)
        self.scalings[factor.name] = ScalingFactor(
            factor.name, factor.size, sites, factor.domain, within, along
        )

    def _within(self, factor: FactorByHand) -> tuple[str, ...]:
        """All factors it lives under, outer ones first."""
        names: dict[str, None] = {}
        for name in factor.within:
            if name not in self.permutations:
                raise CosetError(
                    f"got factor {factor.name!r} within {name!r}",
                    "needed the name of a permutation factor written before it",
                )
            names.update(dict.fromkeys((*self.permutations[name].within, name)))
        return tuple(names)

    def _along(self, size: int, sites: Sequence[Site], within: tuple[str, ...]) -> str | None:
        """The permutation factor that moves the same units."""
        places = {(site.tensor, site.block, site.view, site.digits) for site in sites}
        for name, factor in self.permutations.items():
            own = {(site.tensor, site.block, site.view, site.digits) for site in factor.sites}
            if factor.size == size and factor.within == within and places <= own:
                return name
        return None

    def _site(
        self, factor: FactorByHand, place: Place, within: tuple[str, ...], scaling: bool
    ) -> Site:
        outer = [self.permutations[name].size for name in within]
        if isinstance(place, Site):
            if not _fits(place, self._shape(factor, place.tensor), factor.size, outer):
                raise CosetError(
                    f"got {place} in factor {factor.name!r}",
                    f"needed a block and a view of the tensor, with digits of size {factor.size} "
                    f"and parents of sizes {tuple(outer)}",
                )
            return replace(place, tensor=self.aliases.get(place.tensor, place.tensor))
        tensor, axis, *rest = place
        power = rest[0] if rest else 0
        if bool(power) != scaling:
            raise CosetError(
                f"got site {place} in factor {factor.name!r}",
                "needed (tensor, axis, power) with a power other than 0"
                if scaling
                else "needed (tensor, axis): permutations have no power",
            )
        shape = self._shape(factor, tensor)
        main = self.aliases.get(tensor, tensor)
        if factor.size == 1 and not within:
            return Site(main, (), tuple(n for n in shape if n > 1), (), (), power)
        if not 0 <= axis < len(shape) or shape[axis] % prod([*outer, factor.size]):
            raise CosetError(
                f"got site {place} in factor {factor.name!r}, on a tensor of shape {shape}",
                f"needed an axis whose length is a multiple of {prod([*outer, factor.size])}",
                "check the axis and the size, or give a full Site",
            )
        return _row_major(main, shape, axis, [*outer, factor.size], power)

    def _shape(self, factor: FactorByHand, tensor: str) -> tuple[int, ...]:
        main = self.aliases.get(tensor, tensor)
        if main not in self.shapes:
            close = difflib.get_close_matches(tensor, [*self.shapes, *self.aliases], n=3)
            raise CosetError(
                f"got site {tensor!r} in factor {factor.name!r}",
                "needed a tensor of the module",
                f"did you mean {' or '.join(map(repr, close))}?"
                if close
                else f"it has {', '.join(list(self.shapes)[:4])} …",
            )
        return self.shapes[main]


def _fits(site: Site, shape: Sequence[int], size: int, outer: Sequence[int]) -> bool:
    """Whether a full site describes a part of a tensor and the factor's own digits."""
    lengths = list(shape)
    for axis, before, start, count in site.block:
        if not 0 <= axis < len(shape) or before < 1 or lengths[axis] % before:
            return False
        if start < 0 or count < 1 or start + count > lengths[axis] // before:
            return False
        lengths[axis] = before * count
    if any(not 0 <= d < len(site.view) for d in (*site.digits, *site.parents)):
        return False
    own = prod(site.view[d] for d in site.digits), prod(site.view[d] for d in site.parents)
    return prod(site.view) == prod(lengths) and own == (size, prod(outer))


def _row_major(
    tensor: str, shape: tuple[int, ...], axis: int, sizes: Sequence[int], power: int
) -> Site:
    """A site whose axis is read as the given digits and what remains."""
    view: list[int] = []
    first = 0
    for i, length in enumerate(shape):
        if i == axis:
            first = len(view)
            rest = length // prod(sizes)
            view += [*sizes, *([rest] if rest > 1 else [])]
        elif length > 1:
            view.append(length)
    own = first + len(sizes) - 1
    return Site(tensor, (), tuple(view), (own,), tuple(range(first, own)), power)


def _axes(site: Site, shape: Sequence[int]) -> list[int]:
    return [axis for axis, own in enumerate(site_axes(site, shape)) if set(own) & set(site.digits)]
