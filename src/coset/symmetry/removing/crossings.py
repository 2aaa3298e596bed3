"""Which factors act on which parts of which tensors."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod

import torch
from torch import Tensor

from coset.errors import require_kind
from coset.symmetry.action import region
from coset.symmetry.analysis.digits import Block
from coset.symmetry.elements import PermutationFactor, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.refusals import check_floating, require_finite


@dataclass(frozen=True)
class Crossing:
    """A block of a tensor, with the sites of all factors that act on it.

    Attributes:
        tensor: The tensor's name.
        block: The block; those of different parts may overlap.
        touches: Pairs of a factor's name and its site.
    """

    tensor: str
    block: Block
    touches: tuple[tuple[str, Site], ...]

    @property
    def factors(self) -> set[str]:
        """Names of the factors that act here."""
        return {name for name, _ in self.touches}


def crossings_of(factors: Iterable[PermutationFactor | ScalingFactor]) -> dict[str, list[Crossing]]:
    """For every tensor its parts, in the order in which the factors name them."""
    touches: dict[str, dict[Block, list[tuple[str, Site]]]] = {}
    for factor in factors:
        for site in factor.sites:
            blocks = touches.setdefault(site.tensor, {})
            blocks.setdefault(site.block, []).append((factor.name, site))
    return {
        tensor: [Crossing(tensor, block, tuple(found)) for block, found in blocks.items()]
        for tensor, blocks in touches.items()
    }


def overlaps(parts: list[Crossing], shape: tuple[int, ...]) -> bool:
    """Whether two parts of one tensor share an entry."""
    if len(parts) < 2:
        return False
    count = torch.zeros(shape, dtype=torch.int16)
    for part in parts:
        region(count, 0, part.touches[0][1]).add_(1)
    return bool((count > 1).any())


def neighbours(
    parts: Mapping[str, list[Crossing]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, Block], set[str]]:
    """For every part, the factors that act on any of its entries."""
    found = {}
    for tensor, own in parts.items():
        shared = overlaps(own, shapes[tensor])
        everyone = {name for part in own for name in part.factors}
        for part in own:
            found[tensor, part.block] = everyone if shared else part.factors
    return found


def table_of(entries: Tensor, site: Site) -> Tensor:
    """Sums ``(m, *view)`` over what the factor does not index: ``(m, copies, units)``."""
    return rows_of(entries, site).sum(-1)


def rows_of(entries: Tensor, site: Site) -> Tensor:
    """The entries of ``(m, *view)`` by copy and unit: ``(m, copies, units, rest)``."""
    first = [*site.parents, *site.digits]
    rest = [d for d in range(len(site.view)) if d not in first]
    front = entries.permute(0, *(1 + d for d in (*first, *rest)))
    copies = prod(site.view[d] for d in site.parents)
    units = prod(site.view[d] for d in site.digits)
    return front.reshape(entries.shape[0], copies, units, -1)


def doubled(group: SymmetryGroup, weights: Weights) -> tuple[Weights, bool]:
    """Copies in double precision with a member axis, and whether there was none.

    Raises:
        CosetError: If names or shapes do not fit the group, or numbers are not finite.
    """
    require_kind(SymmetryGroup, group=group)
    single = not group.member_axes(weights)
    check_floating(weights, group.shapes, "weights")
    copies = {
        name: weights[name].to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        for name in group.shapes
    }
    if not all(isfinite(copy.sum().item()) for copy in copies.values()):
        require_finite(weights, group.shapes, "weights")
    return ({n: t.unsqueeze(0) for n, t in copies.items()} if single else copies), single


def gauges(factor: ScalingFactor) -> list[list[Site]]:
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
        return sites[0].power < 0, plainness(sites[0].tensor)

    return sorted(gauges.values(), key=rank)


def plainness(tensor: str) -> int:
    """0 for weights, 1 for biases, 2 for running statistics."""
    last = tensor.rpartition(".")[2]
    return 2 if last.startswith("running_") else int("bias" in last)


def acting(factor: ScalingFactor, acts: Callable[[Site], bool]) -> ScalingFactor:
    """A factor at some of its sites alone."""
    sites = tuple(site for site in factor.sites if acts(site))
    return ScalingFactor(
        factor.name, factor.size, sites, factor.domain, factor.within, factor.along
    )
