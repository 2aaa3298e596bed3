"""The symmetry group of a network, as data, and what one can do with its elements."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from coset.errors import CosetError, require_kind
from coset.printing import several
from coset.symmetry.action import permute_tensor, powered, region, scaled_
from coset.symmetry.describing import describe
from coset.symmetry.elements import (
    Element,
    PermutationFactor,
    Pinned,
    ScaleInvariance,
    ScalingFactor,
    Site,
    Tables,
)
from coset.vocabulary import Weights
from coset.weights.refusals import require_weights
from coset.weights.stacking import check_ties

Made = TypeVar("Made")
Move = tuple[str, Site]
Rescaling = tuple[Site, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class SymmetryGroup:
    """The permutations and scalings of weights that leave a network's function unchanged.

    Attributes:
        permutations: Factors, those that others live under first.
        scalings: Factors of scales.
        invariances: Weights whose scale a normalisation divides out (no part of the group: they
            hold up to the normalisation's epsilon).
        pinned: Axes refused, with the operation and the reason.
        shapes: Shapes of all tensors of the network.
        aliases: Further names of tied tensors.
        reasons: For each tensor, one line per axis on why it is free, tied or pinned.
    """

    permutations: tuple[PermutationFactor, ...]
    scalings: tuple[ScalingFactor, ...] = ()
    invariances: tuple[ScaleInvariance, ...] = ()
    pinned: tuple[Pinned, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """How many of each kind; ``print`` shows the table."""
        parts = (
            several(len(self.permutations), "permutation factor"),
            several(len(self.scalings), "scaling factor"),
            several(len(self.invariances), "scale invariance"),
            several(len(self.pinned), "pinned axis", "pinned axes"),
        )
        return f"SymmetryGroup({', '.join(parts)})"

    def __str__(self) -> str:
        return describe.table(self)

    def explain(self, tensor: str | None = None) -> str:
        """Why each axis of a tensor (or of all of them) is free, tied or pinned.

        Raises:
            CosetError: If there is no such tensor, with the names that come close.
        """
        return describe.explain(self, tensor)

    @cached_property
    def tables(self) -> Tables:
        """Shapes of an element's tables."""
        return Tables(self.permutations, self.scalings)

    def log_order(self) -> float:
        """Natural logarithm of the number of permutation elements: ``Σ copies · log(size!)``."""
        return math.fsum(
            self.tables.copies(factor) * math.lgamma(factor.size + 1)
            for factor in self.permutations
        )

    def identity(self) -> Element:
        """The element that changes nothing."""
        shape = self.tables.shape
        return Element(
            {f.name: torch.arange(f.size).expand(shape(f)).clone() for f in self.permutations},
            {f.name: torch.ones(shape(f), dtype=torch.float64) for f in self.scalings},
        )

    def sample(self, *, generator: torch.Generator, members: int | None = None) -> Element:
        """A random element: uniform permutations, log-normal scales, fair signs.

        Args:
            generator: Source of randomness.
            members: With a number, that many elements at once, along a leading axis.
        """
        require_kind(torch.Generator | None, "torch.Generator", generator=generator)
        lead = () if members is None else (members,)
        permutations, scales = {}, {}
        for factor in self.permutations:
            noise = torch.rand(*lead, *self.tables.shape(factor), generator=generator)
            permutations[factor.name] = noise.argsort(-1)
        for scaling in self.scalings:
            shape = (*lead, *self.tables.shape(scaling))
            size = torch.randn(shape, dtype=torch.float64, generator=generator).mul(0.5).exp()
            sign = torch.randint(2, shape, generator=generator).mul(2).sub(1).double()
            scales[scaling.name] = {"positive": size, "sign": sign, "nonzero": size * sign}[
                scaling.domain
            ]
        return Element(permutations, scales)

    def compose(self, first: Element, then: Element) -> Element:
        """The element that acts like ``first`` followed by ``then``.

        Raises:
            CosetError: If one of them is no element of this group.
        """
        _one_count(self._members(first), self._members(then))
        permutations = {
            f.name: self._on_table(f, first.permutations[f.name], then.permutations)
            for f in self.permutations
        }
        scales = {
            f.name: then.scales[f.name] * self._on_table(f, first.scales[f.name], then.permutations)
            for f in self.scalings
        }
        return Element(permutations, scales)

    def inverse(self, element: Element) -> Element:
        """The element that undoes ``element``.

        Raises:
            CosetError: If it is no element of this group.
        """
        self._members(element)
        permutations: dict[str, Tensor] = {}
        for factor in self.permutations:
            table = element.permutations[factor.name]
            outer = {name: permutations[name] for name in factor.within}
            permutations[factor.name] = self._on_table(factor, table, outer).argsort(-1)
        scales = {
            f.name: 1 / self._on_table(f, element.scales[f.name], permutations)
            for f in self.scalings
        }
        return Element(permutations, scales)

    def act(self, element: Element, weights: Weights) -> Weights:
        """The transformed weights; nothing is changed in place.

        Args:
            element: One element, or with a member axis one for each member of the stack.
            weights: Weights or a stack.

        Raises:
            CosetError: If names or shapes do not fit the group.
        """
        lead = self.member_axes(weights)
        members = self._members(element)
        batched = bool(members)
        if batched and lead:
            _one_count(members, len(weights[next(iter(self.shapes))]))
        elif batched:  # one element a member on single weights makes a stack of them
            weights = {name: w.expand(members, *w.shape) for name, w in weights.items()}
            lead = 1
        scales = _Scales(element.scales)
        moved: Weights = {}
        for name, tensor in weights.items():
            main = self.aliases.get(name, name)
            if main in moved:
                moved[name] = moved[main]
                continue
            movers, scalers = self._sites.get(main, ((), ()))
            moves = [(site, element.permutations[factor]) for factor, site in movers]
            result, fresh = permute_tensor(tensor, lead, moves, batched)
            if not fresh or not result.is_contiguous():
                result = result.clone(memory_format=torch.contiguous_format)
            for place, pairs in scalers:
                table = scales.product(pairs, result)
                scaled_(region(result, lead, place), lead, place, table, batched)
            moved[name] = moved[main] = result
        return {name: moved[name] for name in weights}

    def member_axes(self, weights: Weights) -> int:
        """The number of member axes: none for weights, one for a stack.

        Raises:
            CosetError: If names or shapes do not fit the group, or tied tensors differ.
        """
        require_weights(weights, "weights")
        known = {**self.shapes, **{name: self.shapes[m] for name, m in self.aliases.items()}}
        missing = [name for name in self.shapes if name not in weights]
        unknown = [n for n, t in weights.items() if n not in known and t.is_floating_point()]
        if missing or unknown:
            listed = [f"no {name!r}" for name in missing] + [f"unknown {n!r}" for n in unknown]
            raise CosetError(
                f"got weights with {', '.join(listed[:4])}" + (" …" if len(listed) > 4 else ""),
                f"needed the {len(self.shapes)} tensors of the network",
            )
        leads = Counter(weights[name].dim() - len(shape) for name, shape in self.shapes.items())
        lead = leads.most_common(1)[0][0] if leads else 0
        members = {len(weights[name]) for name in self.shapes} if lead == 1 else set()
        for name, shape in self.shapes.items():
            got = tuple(weights[name].shape)
            if lead not in (0, 1) or got[lead:] != shape or len(got) - len(shape) != lead:
                raise CosetError(
                    f"got {name!r} of shape {got}",
                    f"needed {shape}, or a stack of such tensors with one member axis",
                )
        if len(members) > 1:
            raise CosetError(
                f"got stacks of {sorted(members)} members", "needed one number for all tensors"
            )
        check_ties(weights, self.aliases)
        return lead

    def remembered(self, key: object, make: Callable[[], Made]) -> Made:
        """What was worked out about the group before under this key, or else is now."""
        if key not in self._memory:
            self._memory[key] = make()
        known: Made = self._memory[key]
        return known

    def _on_table(
        self,
        factor: PermutationFactor | ScalingFactor,
        table: Tensor,
        permutations: Mapping[str, Tensor],
    ) -> Tensor:
        """A table moved by permutations, as a weight would be."""
        shape = self.tables.shape(factor)
        sites = [(s, permutations[n]) for n, s in self.tables.sites(factor) if n in permutations]
        lead = table.dim() - len(shape)
        batched = any(t.dim() > len(s.parents) + len(s.digits) for s, t in sites)
        if batched and not lead:
            members = next(t.shape[0] for s, t in sites if t.dim() > len(s.parents) + 1)
            table, lead = table.expand(members, *shape), 1
        return permute_tensor(table, lead, sites, batched)[0]

    @cached_property
    def _memory(self) -> dict[object, Any]:
        return {}

    @cached_property
    def _sites(self) -> dict[str, tuple[list[Move], list[Rescaling]]]:
        """For every tensor where it is moved, and where it is scaled by which powers of what."""
        moves: dict[str, list[Move]] = {}
        rescalings: dict[str, dict[Site, list[tuple[str, int]]]] = {}
        for mover in self.permutations:
            for site in mover.sites:
                moves.setdefault(site.tensor, []).append((mover.name, site))
        for scaler in self.scalings:
            for site in scaler.sites:
                places = rescalings.setdefault(site.tensor, {})
                places.setdefault(site.place, []).append((scaler.name, site.power))
        return {
            name: (
                moves.get(name, []),
                [(site, tuple(pairs)) for site, pairs in rescalings.get(name, {}).items()],
            )
            for name in {**moves, **rescalings}
        }

    def _members(self, element: Element) -> int:
        """The length of an element's member axis, or 0; what is none of this group is refused."""
        if not isinstance(element, Element):
            raise CosetError(
                f"got {type(element).__name__} in the place of an element",
                "needed an Element of the group",
                "make elements with identity, sample, compose, inverse or match",
            )
        pairs = [(f, element.permutations.get(f.name)) for f in self.permutations]
        pairs += [(f, element.scales.get(f.name)) for f in self.scalings]  # type: ignore[misc]
        counts = []
        for factor, table in pairs:
            if table is None:
                raise CosetError(
                    f"got an element without a table for {factor.name!r}",
                    "needed one for every factor of the group",
                    "make elements with identity, sample, compose, inverse or match",
                )
            expected = self.tables.shape(factor)
            if tuple(table.shape[table.dim() - len(expected) :]) != expected:
                raise CosetError(
                    f"got a table of shape {tuple(table.shape)} for {factor.name!r}",
                    f"needed {expected}, with or without a member axis in front",
                )
            counts.append(len(table) if table.dim() > len(expected) else 0)
        return _one_count(*counts)


def _one_count(*members: int) -> int:
    """The number of members of all that have a member axis; 0 stands for none."""
    counts = sorted({count for count in members if count})
    if len(counts) > 1:
        raise CosetError(
            f"got elements or weights of {' and '.join(map(str, counts))} members",
            "needed as many of each",
        )
    return counts[0] if counts else 0


@dataclass(frozen=True)
class _Scales:
    """Products of powers of scales in the type of the weights, each worked out once."""

    tables: Mapping[str, Tensor]
    known: dict[object, Tensor] = field(default_factory=dict)

    def product(self, pairs: tuple[tuple[str, int], ...], like: Tensor) -> Tensor:
        key = (pairs, like.dtype, like.device)
        if key not in self.known:
            powers = [powered(self.tables[factor], power) for factor, power in pairs]
            self.known[key] = math.prod(powers[1:], start=powers[0]).to(like)
        return self.known[key]
