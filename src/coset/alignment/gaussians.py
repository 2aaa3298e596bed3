"""Matching distributions: Gaussians by Wasserstein distance, and stacks of samples.

Between Gaussians with independent entries ``W² = |m₁ - m₂|² + |s₁ - s₂|²``; under permutations the
norms stay, so the nearest copy maximises ``<m₁, m₂> + <s₁, s₂>``: matching weights, with means and
standard deviations side by side.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.alignment.by_weights import ByWeights
from coset.alignment.checks import check_weights
from coset.alignment.result import Outcome
from coset.errors import CosetError
from coset.symmetry.elements import Element, PermutationFactor, ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.refusals import as_weights
from coset.weights.stacking import unstack

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


@runtime_checkable
class WithMarginals(Protocol):
    """A distribution of dependent entries that knows those of each entry."""

    def marginals(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of each entry."""
        ...


@runtime_checkable
class WithMembers(Protocol):
    """A distribution that is a finite set of networks."""

    @property
    def members(self) -> Weights:
        """All of them, as a stack."""
        ...

    @property
    def log_weights(self) -> Float[Tensor, " m"]:
        """Normalised log-weight of each."""
        ...


Distribution: TypeAlias = GaussianLike | WithMarginals | WithMembers


@dataclass(frozen=True)
class Marginals:
    """Means and standard deviations of weights, entry by entry."""

    mean: Weights
    std: Weights

    @staticmethod
    def of(stack: Weights, log_weights: Float[Tensor, " m"] | None = None) -> "Marginals":
        """Those of the members of a stack (divisor ``m``), or of members that weigh differently.

        >>> Marginals.of({"w": torch.tensor([[1.0], [3.0]])})
        Marginals(mean={'w': tensor([2.])}, std={'w': tensor([1.])})
        """
        if log_weights is None:
            return Marginals(
                {name: tensor.mean(0) for name, tensor in stack.items()},
                {name: tensor.std(0, correction=0) for name, tensor in stack.items()},
            )
        mean, std = {}, {}
        for name, tensor in stack.items():
            share = log_weights.softmax(0).to(tensor).view(-1, *[1] * (tensor.dim() - 1))
            mean[name] = (share * tensor).sum(0)
            std[name] = (share * (tensor - mean[name]).square()).sum(0).sqrt()
        return Marginals(mean, std)


def as_matched(given: Weights | Distribution, what: str) -> Weights | Marginals:
    """Weights, a stack, or the marginals of a distribution; all else is refused.

    Finite distributions whose members weigh the same are taken as the stack of them, and one of a
    single member as its weights.
    """
    if isinstance(given, dict):
        return as_weights(given, what)  # the common case: to ask for protocols takes long
    if isinstance(given, WithMembers):
        stack, share = as_weights(given.members, what), given.log_weights
        if len(share) == 1:
            return unstack(stack)[0]
        return stack if bool((share == share[0]).all()) else Marginals.of(stack, share)
    if isinstance(given, WithMarginals):
        return _marginals(*given.marginals(), what)
    if isinstance(getattr(given, "mean", None), Mapping) and isinstance(given, GaussianLike):
        return _marginals(given.mean, given.std, what)
    if isinstance(given, Mapping | nn.Module):
        return as_weights(given, what)
    raise CosetError(
        f"got {what} of type {type(given).__name__}",
        "needed weights, a stack of them, samples, or a Gaussian with means and standard "
        "deviations of all tensors",
        "take coset.weights_of(module), or coset.stack of several",
    )


def _marginals(mean: Weights, std: Weights, what: str) -> Marginals:
    found = Marginals(
        as_weights(mean, f"the mean of {what}"), as_weights(std, f"the deviations of {what}")
    )
    for name, tensor in found.std.items():
        bad = int((tensor < 0).sum())
        if bad:
            raise CosetError(
                f"got {what} with {bad} negative standard deviations in {name!r}",
                "needed numbers of at least 0",
                "take their absolute values, or exp of log-deviations",
            )
    return found


def check_marginals(group: SymmetryGroup, given: Marginals, what: str) -> None:
    """Refuses distributions that leave tensors out, or do not fit."""
    missing = [name for name in group.shapes if name not in given.mean]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CosetError(
            f"got {what} as a distribution without {missing[0]!r}{more}",
            "needed one over all tensors of the network: units are moved as a whole",
            "fill the mean up with the network's own weights, and the deviations with zeros, in "
            "coset.alignment.gaussians.Marginals(mean, std)",
        )
    for part, table in (("mean", given.mean), ("standard deviations", given.std)):
        if check_weights(group, table, f"the {part} of {what}"):
            raise CosetError(
                f"got a stack as the {part} of {what}", "needed one tensor of each shape"
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
