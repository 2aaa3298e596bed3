"""Soft permutations: where the units of all factors might go, before each is sent somewhere.

Graduated assignment (Gold and Rangarajan 1996), factor by factor.  While the gains ``A`` of one
factor are summed up, the others mix their units by doubly stochastic matrices; its own becomes

    S = Sinkhorn(β A / std(A)),

and ``β`` grows from round to round.  A hard step decides at once what all later steps build on; a
soft one keeps in play what is about as good.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.gains import Gains, GainTable, Parity, combine
from coset.alignment.plans import Plan, Term
from coset.symmetry.action import region
from coset.symmetry.elements import Site

_HARDNESS = (1.0, 4.0)
"""β of the first and of the last round; of a single one the first."""

_NORMALISED = 3
"""How often rows and columns are brought to sum to one: more changed no result by much."""


class SoftPermutations:
    """Soft permutations of all factors between two networks, from the identity.

    Factors that others live under (heads, groups) keep their places, as do signs of whole layers.

    Attributes:
        mixing: For each factor that was looked at, by the signs that flip a tensor, which share of
            unit ``j`` is in place ``i``; negative where it is flipped.
        gains: For each of them the gains that these shares came from.
    """

    def __init__(self, plans: Mapping[str, Plan], table: GainTable) -> None:
        self.mixing: dict[str, dict[Parity, Tensor]] = {}
        self.gains: dict[str, Gains] = {}
        self._plans = {n: plan for n, plan in plans.items() if plan.terms and not plan.children}
        self._table = table
        self._movers: dict[str, list[tuple[str, Term]]] = {}
        for name, plan in self._plans.items():
            for term in plan.terms:
                self._movers.setdefault(term.site.tensor, []).append((name, term))

    def soften(self, order: Sequence[str], rounds: int) -> None:
        """Looks at all factors in turn, some times over.

        Args:
            order: Of the factors.
            rounds: How often, once all have begun with what units are worth as they are.
        """
        order = [name for name in order if name in self._plans]
        for name in order:
            gains = combine(self._table.own(name), len(self._plans[name].signs))
            assert gains is not None
            self._soften(name, gains, _HARDNESS[0])
        for hardness in np.geomspace(*_HARDNESS, rounds):
            for name in order:
                self._soften(name, self.mixed_gains(name), float(hardness))

    def _soften(self, name: str, gains: Gains, hardness: float) -> None:
        best = torch.from_numpy(gains.best())
        largest = best.abs().amax((-2, -1), keepdim=True)
        best = best / torch.where(largest > 0, largest, 1.0)  # squares could overflow
        spread = best.std((-2, -1), correction=0, keepdim=True)
        shares = sinkhorn(hardness * best / torch.where(spread > 0, spread, 1.0), _NORMALISED)
        signs = gains.signs_everywhere().to(shares)
        self.gains[name] = gains
        self.mixing[name] = {
            term.parity: shares
            * prod(own for own, flips in zip(signs, term.parity, strict=True) if flips)
            for term in self._plans[name].terms
        }

    def mixed_gains(self, name: str) -> Gains:
        """What unit ``j`` is worth in place ``i`` as the others mix theirs."""
        plan, table = self._plans[name], self._table
        parts = table.own(name, lambda term: not term.others & self._plans.keys())
        for term in plan.terms:
            if term.others & self._plans.keys():
                own = self._mixed(name, term)
                products = term.unfold(table.to[term.site.tensor]) @ term.unfold(own).mT
                parts.append((term, products.cpu().numpy()))
        gains = combine(parts, len(plan.signs))
        assert gains is not None
        return gains

    def _mixed(self, name: str, term: Term) -> Tensor:
        """The tensor of a term after all that moves it elsewhere has mixed its units."""
        tensor = self._table.aligned[term.site.tensor]
        for other, place in self._movers[term.site.tensor]:
            if place is not term and other in self.mixing:
                tensor = mix(tensor, place.site, self.mixing[other][place.parity])
        return tensor.contiguous()


def sinkhorn(logits: Float[Tensor, "b h h"], iterations: int) -> Float[Tensor, "b h h"]:
    """Rows and columns of ``exp(logits)`` scaled in turn to sum to one, the columns last.

    >>> sinkhorn(torch.zeros(1, 2, 2), 1).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    >>> sinkhorn(torch.tensor([[[0.0, 20.0], [20.0, 0.0]]]), 3).round(decimals=6).tolist()
    [[[0.0, 1.0], [1.0, 0.0]]]
    """
    kernel = (logits - logits.amax(-1, keepdim=True).detach()).exp()
    kernel = kernel + torch.finfo(kernel.dtype).tiny ** 0.75  # what fits nowhere is everywhere
    columns = torch.ones_like(kernel[..., :1, :])
    for _ in range(iterations):
        rows = 1 / (kernel @ columns.mT)
        columns = 1 / (rows.mT @ kernel)
    shares: Tensor = rows * kernel * columns
    return shares


def mix(tensor: Tensor, site: Site, mixing: Float[Tensor, "b h h"]) -> Tensor:
    """A tensor after the units at a site were mixed, a matrix for each copy.

    >>> from coset.symmetry.elements import Site
    >>> swap = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    >>> mix(torch.tensor([[1.0, 2.0]]), Site("w", (), (1, 2), (1,)), swap).tolist()
    [[2.0, 1.0]]
    """
    first = [*site.parents, *site.digits]
    order = [*first, *(d for d in range(len(site.view)) if d not in first)]
    contiguous = tensor.contiguous()
    view = region(contiguous, 0, site).permute(order)
    copies, units = mixing.shape[:2]
    mixed = (mixing.to(tensor.device) @ view.reshape(copies, units, -1)).reshape(view.shape)
    mixed = mixed.permute(sorted(range(len(order)), key=order.__getitem__))
    if not site.block:
        return mixed.reshape(tensor.shape)
    result = contiguous.clone()
    region(result, 0, site).copy_(mixed)
    return result
