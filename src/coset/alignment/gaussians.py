"""Matching distributions: Gaussians by Wasserstein distance, and stacks of samples.

Between Gaussians with independent entries ``W² = |m₁ - m₂|² + |s₁ - s₂|²``; under permutations the
norms stay, so the nearest copy maximises ``<m₁, m₂> + <s₁, s₂>``: matching weights, with means and
standard deviations side by side.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from coset.alignment.by_weights import ByWeights, Outcome
from coset.symmetry.elements import Element, PermutationFactor, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

_BESIDE = "\N{MIDDLE DOT}deviation"


@runtime_checkable
class GaussianLike(Protocol):
    """Anything with a mean and standard deviations of independent entries."""

    @property
    def mean(self) -> Weights:
        """The mean of each tensor."""
        ...

    @property
    def std(self) -> Weights:
        """Standard deviations, in the same shapes."""
        ...


@dataclass(frozen=True)
class Marginals:
    """Means and standard deviations of weights, entry by entry."""

    mean: Weights
    std: Weights

    @staticmethod
    def of(stack: Weights) -> "Marginals":
        """Those of the members of a stack (divisor ``m``).

        >>> Marginals.of({"w": torch.tensor([[1.0], [3.0]])})
        Marginals(mean={'w': tensor([2.])}, std={'w': tensor([1.])})
        """
        return Marginals(
            {name: tensor.mean(0) for name, tensor in stack.items()},
            {name: tensor.std(0, correction=0) for name, tensor in stack.items()},
        )


def solve_gaussians(
    by: ByWeights,
    group: SymmetryGroup,
    weights: GaussianLike,
    to: GaussianLike,
    *,
    generator: torch.Generator,
) -> Outcome:
    """The permutations and signs that bring one Gaussian nearest to another."""
    outcome = replace(by, scales="keep").solve(
        _doubled(group), _side_by_side(weights), _side_by_side(to), generator=generator
    )
    scales = {
        scaling.name: outcome.element.scales.get(scaling.name, table)
        for scaling, table in zip(group.scalings, group.identity().scales.values(), strict=True)
    }
    element = Element(outcome.element.permutations, scales)
    return replace(outcome, element=element, aligned=None)


def moved_deviations(group: SymmetryGroup, element: Element, std: Weights) -> Weights:
    """Standard deviations under an element: they follow scales, and know no signs."""
    return {name: tensor.abs() for name, tensor in group.act(element, std).items()}


def _side_by_side(gaussian: GaussianLike) -> Weights:
    return {**gaussian.mean, **{name + _BESIDE: s for name, s in gaussian.std.items()}}


def _doubled(group: SymmetryGroup) -> SymmetryGroup:
    """The group acting on means and deviations alike; signs act on means alone."""

    def beside(factor: PermutationFactor) -> tuple[Site, ...]:
        return tuple(replace(site, tensor=site.tensor + _BESIDE) for site in factor.sites)

    signs: list[ScalingFactor] = [
        replace(scaling, domain="sign")
        for scaling in group.scalings
        if scaling.domain != "positive"
    ]
    return SymmetryGroup(
        tuple(replace(f, sites=(*f.sites, *beside(f))) for f in group.permutations),
        tuple(signs),
        shapes={**group.shapes, **{name + _BESIDE: s for name, s in group.shapes.items()}},
    )
