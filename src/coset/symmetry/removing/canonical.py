"""One point for every orbit: scales first, then order.

Both run over the factors in an order in which each can be fixed without looking at what is not
fixed yet: from the input on in a plain network, outer stream before branch in a residual one, the
units of a head before the heads.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from coset.printing import brief
from coset.symmetry.action import permute_tensor, region, scale_tensor_
from coset.symmetry.analysis.digits import Block
from coset.symmetry.elements import Element, PermutationFactor, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.crossings import crossings_of, doubled, neighbours, table_of
from coset.symmetry.removing.monomials import monomials
from coset.symmetry.removing.newton import iterated_direction
from coset.symmetry.removing.ordering import distinct, keys_of, refined, rounded
from coset.vocabulary import Weights


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


def canonicalise(group: SymmetryGroup, weights: Weights) -> Weights:
    r"""The same network at the one point of its orbit that all equivalent weights share.

    Every scale is chosen such that the incoming weights of its unit have norm one, every sign such
    that :math:`\sum w^3 > 0` over them; then units are sorted in descending order of their first
    incoming weight, ties by the next ones, by further tensors, and last by sorted values.

    Units without incoming weights and bias keep their scale.  Units that agree to rounding
    (sixteen units in the last place) in all their weights are tied; their order is that of the
    input, and only then may two equivalent points lead to different ones.

    Args:
        group: The symmetries to remove.
        weights: Weights or a stack, each member by itself.

    Returns:
        Weights of the same function, with the names, types and shapes given.

    Raises:
        CosetError: If names or shapes do not fit the group.

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
    """
    return canonical_form(group, weights).weights


def canonical_form(group: SymmetryGroup, weights: Weights) -> CanonicalForm:
    """Canonical weights together with the element that leads to them; see `canonicalise`."""
    stack, single = doubled(group, weights)
    rounding = max((torch.finfo(weights[name].dtype).eps for name in group.shapes), default=0.0)
    working = _Working(group, stack, rounding)
    working.fix_magnitudes()
    left = working.fix_signs()
    working.fix_order({site.tensor for factor in left for site in factor.sites})
    working.fix_left_signs(left)
    result = {}
    for name, tensor in weights.items():
        main = group.aliases.get(name, name)
        if main in working.weights:
            found = working.weights[main].to(tensor.dtype)
            result[name] = found[0] if single else found
        else:
            result[name] = tensor.clone()
    return CanonicalForm(result, working.element)


class _Working:
    """The weights on their way, in double precision with a member axis, and the way so far."""

    def __init__(self, group: SymmetryGroup, weights: Weights, rounding: float) -> None:
        self.group = group
        self.weights = weights
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

        for factor, choices in self._eliminated(factors, acts):
            self._scale(factor, self._first(factor, [scales(sites) for sites in choices]))
            factors.remove(factor)
        self._centre(factors)

    def fix_signs(self) -> list[ScalingFactor]:
        """Makes the sum of the cubes of the incoming weights of every unit positive.

        Returns:
            Factors that share every tensor with another one, whose signs are still free.
        """
        factors = [f for f in self.group.scalings if f.domain != "positive"]

        def signs(sites: Sequence[Site]) -> Tensor:
            cubes = self._sums(sites, lambda entries: entries.pow(3))
            size = self._sums(sites, lambda entries: entries.abs().pow(3))
            # norm weights of one and minus one cancel up to rounding: that decides nothing
            return torch.where(cubes.abs() > 64 * self.rounding * size, cubes.sign(), torch.nan)

        for factor, choices in self._eliminated(factors, _is_odd):
            self._scale(factor, self._first(factor, [signs(sites) for sites in choices]))
            factors.remove(factor)
        return factors

    def fix_left_signs(self, factors: Sequence[ScalingFactor]) -> None:
        """Once all units are in order: makes as many weights positive as are independent."""
        acting = [_acting(factor, _is_odd) for factor in factors]
        tensors = {site.tensor for factor in acting for site in factor.sites}
        problem = monomials(self.group, acting, tensors)
        if problem.terms:
            cubes = problem.sums({name: self.weights[name].pow(3) for name in tensors})
            tables = problem.tables(self.group, problem.positive_signs(cubes))
            for factor in factors:
                self._scale(factor, tables[factor.name])

    def fix_order(self, unsigned: Collection[str]) -> None:
        """Sorts the units of every permutation factor; some tensors only by absolute values."""
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
            factor = min(waiting, key=lambda f: _readiness(f, open_digits))
            self._permute(factor, self._sorted(factor, open_digits, unsigned))
            waiting.remove(factor)

    def _eliminated(
        self, factors: list[ScalingFactor], acts: Callable[[Site], bool]
    ) -> Iterator[tuple[ScalingFactor, list[list[Site]]]]:
        """Factors one by one with the sites to fix them by, which no later factor changes.

        Ends early where every tensor is changed by two factors that are both left.
        """
        active = [_acting(factor, acts) for factor in factors]
        touching = neighbours(crossings_of(active), self.group.shapes)
        waiting = [factor for factor in active if factor.sites]
        while waiting:
            names = {factor.name for factor in waiting}
            for factor in waiting:
                choices = [
                    sites
                    for sites in _gauges(factor)
                    if all(touching[s.tensor, s.block] & names == {factor.name} for s in sites)
                ]
                if choices:
                    break
            else:
                return
            waiting.remove(factor)
            yield next(f for f in factors if f.name == factor.name), choices

    def _centre(self, factors: Sequence[ScalingFactor]) -> None:
        """Fixes scales that no order can: the least sum of squares of the logarithms of weights."""
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
        change = iterated_direction(problem, counts, slope, accuracy=1e-12)
        tables = problem.tables(self.group, np.exp(-change))
        for factor in factors:
            self._scale(factor, tables[factor.name])

    def _sums(self, sites: Sequence[Site], function: Callable[[Tensor], Tensor]) -> Tensor:
        tables = [table_of(function(region(self.weights[s.tensor], 1, s)), s) for s in sites]
        return torch.stack(tables).sum(0)

    def _first(self, factor: ScalingFactor, choices: Sequence[Tensor]) -> Tensor:
        """The first choice that is a number, entry by entry; one if there is none."""
        table = torch.full((), torch.nan, dtype=torch.float64)
        for choice in choices:
            table = torch.where(table.isnan(), choice, table)
        shape = (self.members, *self.group.tables.shape(factor))
        return table.nan_to_num(nan=1.0).expand(self.members, *table.shape[1:]).reshape(shape)

    def _scale(self, factor: ScalingFactor, table: Tensor) -> None:
        for tensor in {site.tensor for site in factor.sites}:
            sites = [(site, table) for site in factor.sites if site.tensor == tensor]
            scale_tensor_(self.weights[tensor], 1, sites, batched=True)
        scales = {**self.element.scales, factor.name: self.element.scales[factor.name] * table}
        self.element = Element(self.element.permutations, scales)

    def _permute(self, factor: PermutationFactor, table: Tensor) -> None:
        for tensor in {site.tensor for site in factor.sites}:
            sites = [(site, table) for site in factor.sites if site.tensor == tensor]
            self.weights[tensor] = permute_tensor(self.weights[tensor], 1, sites, batched=True)[0]

        def moved(other: PermutationFactor | ScalingFactor, own: Tensor) -> Tensor:
            sites = self.group.tables.sites(other)
            moves = [(site, table) for name, site in sites if name == factor.name]
            return permute_tensor(own, 1, moves, batched=True)[0]

        self.element = Element(
            {f.name: moved(f, self.element.permutations[f.name]) for f in self.group.permutations},
            {f.name: moved(f, self.element.scales[f.name]) for f in self.group.scalings},
        )

    def _sorted(
        self,
        factor: PermutationFactor,
        open_digits: dict[tuple[str, Block], set[int]],
        unsigned: Collection[str],
    ) -> Tensor:
        """The table that sorts a factor's units, which looks only at what is fixed."""
        shape = self.group.tables.shape(factor)
        ranks = torch.zeros(self.members, prod(shape[:-1]), factor.size, dtype=torch.long)
        for site in sorted(factor.sites, key=lambda s: _openness(s, open_digits)):
            if distinct(ranks):
                break
            everything = set(range(len(site.view)))
            unordered = open_digits.get((site.tensor, site.block), everything)
            entries = region(self.weights[site.tensor], 1, site)
            known = entries.abs() if site.tensor in unsigned else entries
            keys = keys_of(known, site, unordered)
            ranks = refined(ranks.to(keys.device), rounded(keys, 16 * self.rounding))
        return ranks.argsort(dim=-1, stable=True).reshape(self.members, *shape)


def _is_odd(site: Site) -> bool:
    return site.power % 2 == 1


def _acting(factor: ScalingFactor, acts: Callable[[Site], bool]) -> ScalingFactor:
    sites = tuple(site for site in factor.sites if acts(site))
    return ScalingFactor(
        factor.name, factor.size, sites, factor.domain, factor.within, factor.along
    )


def _gauges(factor: ScalingFactor) -> list[list[Site]]:
    """Sets of sites whose norm can fix the scales, best first.

    All parts of one tensor with the same power together, if the factor acts on each once; incoming
    (positive powers) before outgoing, weights before biases before statistics.
    """
    visits = Counter((site.tensor, site.block) for site in factor.sites)
    gauges: dict[tuple[str, int], list[Site]] = {}
    for site in factor.sites:
        if visits[site.tensor, site.block] == 1 and not site.shift:
            gauges.setdefault((site.tensor, site.power), []).append(site)

    def rank(sites: Sequence[Site]) -> tuple[bool, int]:
        return sites[0].power < 0, _plainness(sites[0].tensor)

    return sorted(gauges.values(), key=rank)


def _plainness(tensor: str) -> int:
    """0 for weights, 1 for biases, 2 for running statistics."""
    last = tensor.rpartition(".")[2]
    return 2 if last.startswith("running_") else int("bias" in last)


def _readiness(
    factor: PermutationFactor, open_digits: dict[tuple[str, Block], set[int]]
) -> tuple[bool, bool]:
    """Sorts first what its main tensor decides, then what any tensor decides."""
    ready = [not _is_open(site, open_digits) for site in factor.sites]
    main = min(range(len(ready)), key=lambda k: _plainness_of_site(factor.sites[k]))
    return not ready[main], not any(ready)


def _plainness_of_site(site: Site) -> tuple[bool, int]:
    return len(site.view) == len(site.digits) + len(site.parents), _plainness(site.tensor)


def _is_open(site: Site, open_digits: dict[tuple[str, Block], set[int]]) -> bool:
    own = {*site.parents, *site.digits}
    return bool(open_digits.get((site.tensor, site.block), {-1}) - own)


def _openness(site: Site, open_digits: dict[tuple[str, Block], set[int]]) -> tuple[bool, bool, int]:
    return (_is_open(site, open_digits), *_plainness_of_site(site))
