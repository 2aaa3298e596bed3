"""Positive scales: brought to those of another network, or to a common level.

A unit's scale shows in the norms of its weights at every site: multiplying it by ``s`` adds
``power · log s`` to the log-norm there.  So scales are fitted to log-norms by least squares, one
factor after the other until nothing moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.ascent import along
from coset.alignment.plans import matched_tensors
from coset.symmetry.action import region, scale_tensor_
from coset.symmetry.elements import Element, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_TINY = 1e-30


@dataclass(frozen=True)
class Rescaling:
    """Scales that were fitted, and the weights after them."""

    scales: Mapping[str, Tensor]
    weights: Weights


def stretching(group: SymmetryGroup) -> tuple[ScalingFactor, ...]:
    """Scalings that may change sizes, not only signs."""
    return tuple(scaling for scaling in group.scalings if scaling.domain != "sign")


def fit_scales(
    group: SymmetryGroup,
    weights: Weights,
    to: Weights | None,
    *,
    most: int = 200,
    tolerance: float = 1e-12,
) -> Rescaling:
    """Positive scales that bring the norms of all units to those in ``to``.

    Args:
        group: The symmetries.
        weights: What is rescaled (the tensors that are matched).
        to: Whose norms are wanted; ``None``: at each site the geometric mean over its units.
        most: The most rounds.
        tolerance: The largest change of a log-scale at which it stops.
    """
    factors = stretching(group)
    working = {name: tensor.clone() for name, tensor in weights.items()}
    shape = group.tables.shape
    logs = {f.name: torch.zeros(shape(f), dtype=torch.float64) for f in factors}
    sites = {f.name: _sites(f, group) for f in factors}
    wanted = {
        f.name: [None if to is None else log_norms(to, site) for site in sites[f.name]]
        for f in factors
    }
    for _ in range(most):
        largest = 0.0
        for factor in factors:
            step = _fit(working, sites[factor.name], wanted[factor.name], logs[factor.name])
            logs[factor.name] += step
            largest = max(largest, float(step.abs().max()) if step.numel() else 0.0)
            for site in sites[factor.name]:
                scale_tensor_(working[site.tensor], 0, [(site, step.exp())], False)
        if largest <= tolerance:
            break
    return Rescaling({name: table.exp() for name, table in logs.items()}, working)


def _fit(
    weights: Weights, sites: list[Site], wanted: list[Tensor | None], like: Tensor
) -> Float[Tensor, "..."]:
    """The least-squares step of one factor's log-scales."""
    total, powers = torch.zeros_like(like), torch.zeros_like(like)
    for site, target in zip(sites, wanted, strict=True):
        here = log_norms(weights, site).reshape(like.shape)
        known = here > -torch.inf
        if target is None:
            level = torch.where(known, here, 0.0).sum() / known.sum().clamp_min(1)
            goal = level.expand(like.shape)
        else:
            goal = target.reshape(like.shape)
            known = known & (goal > -torch.inf)
        missing = torch.where(known, goal - torch.where(known, here, 0.0), 0.0)
        total += site.power * missing
        powers += torch.where(known, float(site.power) ** 2, 0.0)
    return torch.where(powers > 0, total / powers.clamp_min(1.0), 0.0)


def log_norms(weights: Weights, site: Site) -> Tensor:
    """Half the log of the squares summed over all that one scale acts on; ``-inf``: all zero."""
    view = region(weights[site.tensor], 0, site).double()
    squares = along(view.square(), site)
    return torch.where(squares > _TINY, squares.clamp_min(_TINY).log() / 2, -torch.inf)


def _sites(factor: ScalingFactor, group: SymmetryGroup) -> list[Site]:
    matched = matched_tensors(group)
    return [site for site in factor.sites if site.tensor in matched and site.power]


def spread(group: SymmetryGroup, weights: Weights, to: Weights) -> float:
    """How differently two networks spread their scales, whatever the order of their units.

    For each scaling factor the excess of log-norms where the power is positive over those where
    it is negative, sorted; the root mean square difference, the largest over the factors.
    """
    worst = 0.0
    for factor in stretching(group):
        sites = _sites(factor, group)
        if not sites or factor.size < 2:
            continue
        tables = []
        for one in (weights, to):
            parts = [log_norms(one, site).flatten() * site.power for site in sites]
            tables.append(torch.stack(parts).clamp_min(-50).mean(0).sort().values)
        worst = max(worst, float((tables[0] - tables[1]).square().mean().sqrt()))
    return worst


def with_scales(group: SymmetryGroup, scales: Mapping[str, Tensor]) -> Element:
    """The element that only scales."""
    identity = group.identity()
    return Element(identity.permutations, {**identity.scales, **scales})
