"""One point for every orbit: scales first, then order.

Both run over the factors in an order in which each can be fixed without looking at what is not
fixed yet: from the input on in a plain network, outer stream before branch in a residual one, the
units of a head before the heads.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from coset.errors import CosetError, told
from coset.printing import brief
from coset.symmetry.action import permute_tensor, region, scale_tensor_
from coset.symmetry.analysis.digits import Block
from coset.symmetry.elements import Element, PermutationFactor, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.crossings import (
    acting,
    crossings_of,
    doubled,
    gauges,
    neighbours,
    plainness,
    table_of,
)
from coset.symmetry.removing.monomials import monomials
from coset.symmetry.removing.newton import iterated_direction
from coset.symmetry.removing.ordering import distinct, keys_of, openness, readiness, refined
from coset.vocabulary import Weights

Undecided = Mapping[str, Tensor]
"""For some scalings, which of their scales nothing has decided, with a member axis."""


@dataclass(frozen=True)
class CanonicalForm:
    """A canonical point and the element that leads there.

    Attributes:
        weights: The canonical weights, or a stack of them.
        element: ``act(element, given)`` is ``weights``; it has a member axis.
    """

    weights: Weights
    element: Element

    __repr__ = brief


Kind = Literal["permutations", "scalings"]
"""What can be removed: the order of units, or their scales and signs."""

KINDS: tuple[Kind, ...] = get_args(Kind)


def canonicalise(
    group: SymmetryGroup, weights: Weights, *, kinds: Collection[Kind] = KINDS
) -> Weights:
    r"""The same network at the one point of its orbit that all equivalent weights share.

    Every scale is chosen such that the incoming weights of its unit have norm one, every sign such
    that :math:`\sum w^3 > 0` over them; then units are sorted in descending order of their first
    incoming weight, ties by the next ones, by further tensors, and last by sorted values.

    Units without incoming weights and bias are scaled by the others: :math:`\sum (\log |w|)^2` over
    their weights is least, and their first weights are positive.  Units that agree to rounding
    (sixteen units in the last place) in all their weights are tied; their order is that of the
    input, and only then may two equivalent points lead to different ones.

    Args:
        group: The symmetries to remove.
        weights: Weights or a stack, each member by itself.
        kinds: ``("permutations",)``: only the order of units is chosen, their scales and signs
            stay; ``("scalings",)``: only scales and signs are, the order stays.

    Returns:
        Weights of the same function, with the names, types and shapes given.

    Raises:
        CosetError: If names or shapes do not fit the group, numbers are not finite, or a kind is
            unknown.

    >>> from torch import nn
    >>> from coset import discover, weights_of
    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> group = discover(net, torch.zeros(1, 2))
    >>> given = {"0.weight": torch.tensor([[0.0, 2.0], [3.0, 4.0]])}
    >>> given["2.weight"] = torch.tensor([[1.0, 10.0]])
    >>> for tensor in canonicalise(group, given).values():
    ...     print(tensor.tolist())
    [[0.6..., 0.8...], [0.0, 1.0]]
    [[50.0, 2.0]]
    >>> canonicalise(group, given, kinds=("permutations",))["0.weight"].tolist()
    [[3.0, 4.0], [0.0, 2.0]]
    """
    return canonical_form(group, weights, kinds=kinds).weights


def canonical_form(
    group: SymmetryGroup, weights: Weights, *, kinds: Collection[Kind] = KINDS
) -> CanonicalForm:
    """Canonical weights together with the element that leads to them; see `canonicalise`."""
    _check_kinds(kinds)
    stack, single = doubled(group, weights)
    rounding = max((torch.finfo(weights[name].dtype).eps for name in group.shapes), default=0.0)
    working = _Working(group, stack, rounding)
    if "scalings" in kinds:
        working.fix_magnitudes()
        working.fix_signs()
    if "permutations" in kinds:
        working.fix_order()
    if "scalings" in kinds:
        working.fix_left_signs()
    result = {}
    for name, tensor in weights.items():
        main = group.aliases.get(name, name)
        if main in working.weights:
            found = working.weights[main].to(tensor.dtype)
            result[name] = found[0] if single else found
        else:
            result[name] = tensor.clone()
    return CanonicalForm(result, working.element)


def _check_kinds(kinds: Collection[Kind]) -> None:
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(KINDS):
        raise CosetError(
            f"got kinds={told(kinds)}",
            f"needed some of {', '.join(map(repr, KINDS))}",
            'give kinds=("permutations",) to sort units and keep their scales',
        )


class _Working:
    """The weights on their way, in double precision with a member axis, and the way so far.

    What is known of them has zeros where a unit acts whose scale or sign nothing has decided, so
    that nothing is decided by it.
    """

    def __init__(self, group: SymmetryGroup, weights: Weights, rounding: float) -> None:
        self.group = group
        self.weights = weights
        self.known = dict(weights)
        self.free_signs: Undecided = {}
        self.rounding = rounding
        self.members = next(iter(weights.values())).shape[0] if weights else 1
        identity = group.identity()
        self.element = Element(
            {n: t.expand(self.members, *t.shape) for n, t in identity.permutations.items()},
            {n: t.expand(self.members, *t.shape) for n, t in identity.scales.items()},
        )

    def fix_magnitudes(self) -> None:
        """Brings the incoming weights of every unit to norm one."""
        factors = [f for f in self.group.scalings if f.domain != "sign"]
        tiny = torch.finfo(torch.float32).tiny ** 0.5

        def scales(sites: Sequence[Site]) -> Tensor:
            norms = self._sums(sites, torch.square).sqrt()
            powers = torch.where(norms > tiny, norms, 1.0).pow(-1 / sites[0].power)
            return torch.where(norms > tiny, powers, torch.nan)

        def acts(site: Site) -> bool:
            return site.power != 0

        self._centre(self._fix(factors, acts, scales))
        self.known = dict(self.weights)

    def fix_signs(self) -> None:
        """Makes the sum of the cubes of the incoming weights of every unit positive."""
        factors = [f for f in self.group.scalings if f.domain != "positive"]

        def signs(sites: Sequence[Site]) -> Tensor:
            cubes = self._sums(sites, lambda entries: entries.pow(3))
            size = self._sums(sites, lambda entries: entries.abs().pow(3))
            # norm weights of one and minus one cancel up to rounding: that decides nothing
            return torch.where(cubes.abs() > 64 * self.rounding * size, cubes.sign(), torch.nan)

        self.free_signs = self._fix(factors, _is_odd, signs)

    def fix_left_signs(self) -> None:
        """Once all units are in order: makes as many weights positive as are independent."""
        factors = [f for f in self.group.scalings if f.name in self.free_signs]
        odd = [acting(factor, _is_odd) for factor in factors]
        tensors = {site.tensor for factor in odd for site in factor.sites}
        problem = monomials(self.group, odd, tensors)
        if problem.terms:
            # places count now: numbers that differ, so that plus and minus one do not cancel
            cubes = {
                name: self.weights[name].pow(3) * _places(self.weights[name]) for name in tensors
            }
            sums, sizes = problem.sums(cubes), problem.sums({n: c.abs() for n, c in cubes.items()})
            clear = [
                np.where(np.abs(sum) > 64 * self.rounding * size, sum, 0.0)
                for sum, size in zip(sums, sizes, strict=True)
            ]
            signs = problem.positive_signs(clear, problem.vector(self.free_signs))
            tables = problem.tables(self.group, signs)
            for factor in factors:
                self._scale(factor, tables[factor.name])

    def fix_order(self) -> None:
        """Sorts the units of every permutation factor."""
        parts = crossings_of(self.group.permutations)
        alone = neighbours(parts, self.group.shapes)
        waiting = list(self.group.permutations)
        while waiting:
            names = {f.name for f in waiting}
            open_digits = {
                (part.tensor, part.block): {
                    d for name, site in part.touches if name in names for d in site.digits
                }
                for own in parts.values()
                for part in own
                if alone[part.tensor, part.block] == part.factors
            }
            factor = min(waiting, key=lambda f: readiness(f, open_digits))
            self._permute(factor, self._sorted(factor, open_digits))
            waiting.remove(factor)

    def _fix(
        self,
        factors: Sequence[ScalingFactor],
        acts: Callable[[Site], bool],
        choose: Callable[[Sequence[Site]], Tensor],
    ) -> Undecided:
        """Fixes scales one factor after the other; what nothing decides is left and hidden."""
        shapes = {f.name: (self.members, *self.group.tables.shape(f)) for f in factors}
        left = {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()}
        for factor, choices in self._eliminated(factors, acts):
            table = self._first(factor, [choose(sites) for sites in choices])
            self._scale(factor, table.nan_to_num(nan=1.0))
            left[factor.name] = table.isnan()
            if bool(left[factor.name].any()):
                self._hide(acting(factor, acts), left[factor.name])
        for factor in factors:
            if bool(left[factor.name].all()):
                self._hide(acting(factor, acts), left[factor.name])
        return {name: mask for name, mask in left.items() if bool(mask.any())}

    def _hide(self, factor: ScalingFactor, units: Tensor) -> None:
        """Puts zeros where some units of a factor act."""
        for site in factor.sites:
            known = self.known[site.tensor]
            if known is self.weights[site.tensor]:
                known = self.known[site.tensor] = known.clone()
            shown = [(replace(site, power=1, shift=0.0), (~units).double())]
            scale_tensor_(known, 1, shown, batched=True)

    def _eliminated(
        self, factors: Sequence[ScalingFactor], acts: Callable[[Site], bool]
    ) -> Iterator[tuple[ScalingFactor, list[list[Site]]]]:
        """Factors one by one with the sites to fix them by, which no later factor changes.

        Those with weights to go by come before those with biases only: their weights may be free
        of other scales by then.  Ends early where every tensor is changed by two factors that are
        both left.
        """
        active = [acting(factor, acts) for factor in factors]
        touching = neighbours(crossings_of(active), self.group.shapes)
        waiting = {factor.name: gauges(factor) for factor in active if factor.sites}
        while waiting:
            ready = {
                name: [
                    sites
                    for sites in choices
                    if all(touching[s.tensor, s.block] & waiting.keys() == {name} for s in sites)
                ]
                for name, choices in waiting.items()
            }
            ready = {name: choices for name, choices in ready.items() if choices}
            if not ready:
                return
            first = min(ready, key=lambda name: plainness(ready[name][0][0].tensor))
            del waiting[first]
            yield next(f for f in factors if f.name == first), ready[first]

    def _centre(self, undecided: Undecided) -> None:
        """Fixes scales that no order can: the least sum of squares of the logarithms of weights."""
        factors = [f for f in self.group.scalings if f.name in undecided]
        shifted = {site.tensor for f in factors for site in f.sites if site.shift}
        touched = {site.tensor for f in factors for site in f.sites} - shifted
        if not touched:
            return
        problem = monomials(self.group, factors, touched)
        sizes = {name: self.weights[name].abs() for name in touched}
        logs = problem.sums({n: torch.where(w == 0, 0.0, w.log()) for n, w in sizes.items()})
        counts = problem.sums({n: (w != 0).double() for n, w in sizes.items()})
        # Σ n (a · u)² has the second derivatives of Σ n exp(2 a · u) / 2 at u = 0
        slope = problem.collected(logs, lambda power: 4.0 * power)
        free = problem.vector(undecided)
        change = iterated_direction(problem, counts, slope, accuracy=1e-12, free=free)
        tables = problem.tables(self.group, np.exp(-change))
        for factor in factors:
            self._scale(factor, tables[factor.name])

    def _sums(self, sites: Sequence[Site], function: Callable[[Tensor], Tensor]) -> Tensor:
        tables = [table_of(function(region(self.known[s.tensor], 1, s)), s) for s in sites]
        return torch.stack(tables).sum(0)

    def _first(self, factor: ScalingFactor, choices: Sequence[Tensor]) -> Tensor:
        """The first choice that is a number, entry by entry; none of them if none is."""
        table = torch.full((), torch.nan, dtype=torch.float64)
        for choice in choices:
            table = torch.where(table.isnan(), choice, table)
        shape = (self.members, *self.group.tables.shape(factor))
        return table.expand(self.members, *table.shape[1:]).reshape(shape)

    def _scale(self, factor: ScalingFactor, table: Tensor) -> None:
        for tensor in {site.tensor for site in factor.sites}:
            sites = [(site, table) for site in factor.sites if site.tensor == tensor]
            scale_tensor_(self.weights[tensor], 1, sites, batched=True)
            if self.known[tensor] is not self.weights[tensor]:
                scale_tensor_(self.known[tensor], 1, sites, batched=True)
        scales = {**self.element.scales, factor.name: self.element.scales[factor.name] * table}
        self.element = Element(self.element.permutations, scales)

    def _permute(self, factor: PermutationFactor, table: Tensor) -> None:
        for tensor in {site.tensor for site in factor.sites}:
            sites = [(site, table) for site in factor.sites if site.tensor == tensor]
            whole, known = self.weights[tensor], self.known[tensor]
            self.weights[tensor] = permute_tensor(whole, 1, sites, batched=True)[0]
            self.known[tensor] = (
                self.weights[tensor]
                if known is whole
                else permute_tensor(known, 1, sites, batched=True)[0]
            )

        def moved(other: PermutationFactor | ScalingFactor, own: Tensor) -> Tensor:
            sites = self.group.tables.sites(other)
            moves = [(site, table) for name, site in sites if name == factor.name]
            return permute_tensor(own, 1, moves, batched=True)[0]

        self.element = Element(
            {f.name: moved(f, self.element.permutations[f.name]) for f in self.group.permutations},
            {f.name: moved(f, self.element.scales[f.name]) for f in self.group.scalings},
        )
        scalings = [f for f in self.group.scalings if f.name in self.free_signs]
        self.free_signs = {f.name: moved(f, self.free_signs[f.name]) for f in scalings}

    def _sorted(
        self, factor: PermutationFactor, open_digits: dict[tuple[str, Block], set[int]]
    ) -> Tensor:
        """The table that sorts a factor's units, which looks only at what is fixed."""
        shape = self.group.tables.shape(factor)
        ranks = torch.zeros(self.members, prod(shape[:-1]), factor.size, dtype=torch.long)
        sites = sorted(factor.sites, key=lambda s: openness(s, open_digits))
        known = [(site, self.known[site.tensor]) for site in sites]
        # of what is hidden, the sizes are known
        hidden = [
            (site, self.weights[site.tensor].abs())
            for site, tensor in known
            if tensor is not self.weights[site.tensor]
        ]
        for site, tensor in (*known, *hidden):
            if distinct(ranks):
                break
            everything = set(range(len(site.view)))
            unordered = open_digits.get((site.tensor, site.block), everything)
            keys = keys_of(region(tensor, 1, site), site, unordered)
            ranks = refined(ranks.to(keys.device), keys, 16 * self.rounding)
        return ranks.argsort(dim=-1, stable=True).reshape(self.members, *shape)


def _places(tensor: Tensor) -> Tensor:
    """A different number between one and two for each entry of a member."""
    count = tensor[0].numel()
    numbers = torch.arange(count, dtype=torch.float64, device=tensor.device)
    return (1 + numbers / count).sqrt().view(tensor.shape[1:])


def _is_odd(site: Site) -> bool:
    return site.power % 2 == 1
