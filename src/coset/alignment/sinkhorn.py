"""Matching with soft permutations (Peña et al. 2023): all factors move at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.assignment import best_permutations
from coset.alignment.by_weights import ByWeights, Outcome, begin_at
from coset.alignment.plans import matched_tensors
from coset.alignment.ties import settle_ties
from coset.errors import CosetError
from coset.symmetry.action import region
from coset.symmetry.elements import Element, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


@dataclass(frozen=True)
class BySinkhorn:
    """Gradient ascent of ``<to, soft(weights)>`` over doubly stochastic matrices.

    Each permutation is relaxed to ``Sinkhorn(X / temperature)`` of a free matrix ``X``, gradients
    are taken through the normalisation, Adam moves all ``X`` together, and linear assignments round
    the result.  Coordinate ascent from there settles what rounding has upset.

    Attributes:
        steps: Of Adam.
        learning_rate: Of Adam.
        temperature: Smaller is harder.
        iterations: Of the normalisation.
    """

    steps: int = 60
    learning_rate: float = 0.1
    temperature: float = 0.2
    iterations: int = 20

    def __post_init__(self) -> None:
        if min(self.steps, self.iterations) < 1 or min(self.learning_rate, self.temperature) <= 0:
            raise CosetError(
                f"got steps={self.steps}, iterations={self.iterations}, "
                f"learning_rate={self.learning_rate}, temperature={self.temperature}",
                "needed positive numbers",
            )

    def solve(
        self, group: SymmetryGroup, weights: Weights, to: Weights, *, generator: torch.Generator
    ) -> Outcome:
        """The element found for weights that were checked."""
        names = sorted(matched_tensors(group))
        if not group.permutations:
            return ByWeights().solve(group, weights, to, generator=generator)
        kind = torch.float64 if weights[names[0]].dtype == torch.float64 else torch.float32
        source = {name: weights[name].to(kind).contiguous() for name in names}
        target = {name: to[name].to(kind).contiguous() for name in names}
        size = sum(float(tensor.square().sum()) for tensor in target.values()) or 1.0
        free = {
            factor.name: torch.zeros(group.tables.copies(factor), factor.size, factor.size)
            .to(kind)
            .requires_grad_()
            for factor in group.permutations
        }
        optimiser = torch.optim.Adam(list(free.values()), lr=self.learning_rate)
        for _ in range(self.steps):
            with torch.enable_grad():
                optimiser.zero_grad()
                moved = self._moved(group, source, free)
                gain = sum((target[name] * moved[name]).sum() for name in names) / size
                assert isinstance(gain, Tensor)
                (-gain).backward()
            optimiser.step()
        tables = {}
        for factor in group.permutations:
            soft = sinkhorn(free[factor.name].detach() / self.temperature, self.iterations)
            shape = group.tables.shape(factor)
            order = best_permutations(soft.cpu().numpy())[0]
            tables[factor.name] = torch.from_numpy(order).reshape(shape)
        ascent = begin_at(group, weights, to, Element(tables, group.identity().scales))
        sweeps = ascent.sweep(list(ascent.plans), most=100)
        outcome = Outcome(group.identity())
        ties = settle_ties(ascent)
        return replace(outcome, element=ascent.element, sweeps=sweeps, ties=ties)

    def _moved(
        self, group: SymmetryGroup, weights: Weights, free: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The weights under soft permutations, outer factors first."""
        moved = dict(weights)
        for factor in group.permutations:
            soft = sinkhorn(free[factor.name] / self.temperature, self.iterations)
            for site in factor.sites:
                if site.tensor in moved:
                    moved[site.tensor] = _mix(moved[site.tensor], site, soft)
        return moved


def sinkhorn(logits: Float[Tensor, "b h h"], iterations: int) -> Float[Tensor, "b h h"]:
    """Rows and columns of ``exp(logits)`` scaled to sum to one, in the log domain.

    >>> sinkhorn(torch.zeros(1, 2, 2), 1).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def _mix(tensor: Tensor, site: Site, soft: Tensor) -> Tensor:
    """The tensor after the matrices have mixed the units at a site."""
    first = [*site.parents, *site.digits]
    rest = [d for d in range(len(site.view)) if d not in first]
    order = [*first, *rest]
    copies = prod(site.view[d] for d in site.parents)
    units = prod(site.view[d] for d in site.digits)
    contiguous = tensor.contiguous()
    view = region(contiguous, 0, site).permute(order)
    mixed = (soft @ view.reshape(copies, units, -1)).reshape(view.shape)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    if not site.block:
        return mixed.permute(inverse).reshape(tensor.shape)
    result = contiguous.clone()
    region(result, 0, site).copy_(mixed.permute(inverse))
    return result
