"""Matching by weights: ``max <to, aligned>`` over the group."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from coset.alignment.ascent import Ascent
from coset.alignment.plans import STATISTICS, Plan, make_plans
from coset.alignment.ties import settle_ties
from coset.errors import CosetError
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


@dataclass(frozen=True)
class Outcome:
    """What a way of matching found."""

    element: Element
    ties: int = 0
    sweeps: int = 0


@dataclass(frozen=True)
class ByWeights:
    """Coordinate ascent over linear assignments (Ainsworth, Hayase, Srinivasa 2023).

    Attributes:
        restarts: Further runs from the identity in random orders; the best of all is kept.
        anchored: Whether the first run begins by solving factors in the order of what is already
            known to fit.  Without it the first run begins at the identity, as published.
        sweeps: The most times all factors are gone through in one run.
        ignore: Patterns of tensors that are moved along and not matched; running statistics.
    """

    restarts: int = 0
    anchored: bool = True
    sweeps: int = 100
    ignore: tuple[str, ...] = STATISTICS

    def __post_init__(self) -> None:
        if self.restarts < 0 or self.sweeps < 1:
            raise CosetError(
                f"got restarts={self.restarts} and sweeps={self.sweeps}",
                "needed restarts of at least 0 and at least one sweep",
            )

    def solve(
        self,
        group: SymmetryGroup,
        weights: Weights,
        to: Weights,
        *,
        generator: torch.Generator,
    ) -> Outcome:
        """The element found for weights that were checked."""
        return solve(self, group, make_plans(group, self.ignore), weights, to, generator)


def solve(
    by: ByWeights,
    group: SymmetryGroup,
    plans: Mapping[str, Plan],
    weights: Weights,
    to: Weights,
    generator: torch.Generator,
) -> Outcome:
    """The best of all runs; ``plans`` may be shared by many calls."""
    if not plans:
        return Outcome(group.identity())
    names = {site.tensor for plan in plans.values() for site in plan.factor.sites}
    source, target = _working(weights, names), _working(to, names)
    identity = group.identity()

    def begin() -> Ascent:
        return Ascent(group, plans, target, source, identity)

    best = begin()
    floor = best.objective()
    if by.anchored:
        best.anchored_start()
    sweeps = best.sweep(list(plans), most=by.sweeps)
    value = best.objective()
    extra = by.restarts + int(by.anchored and value < floor)
    for _ in range(extra):
        order = torch.randperm(len(plans), generator=generator).tolist()
        run = begin()
        count = run.sweep([list(plans)[k] for k in order], most=by.sweeps)
        if run.objective() > value:
            best, value, sweeps = run, run.objective(), count
    return Outcome(best.element, settle_ties(best), sweeps)


def _working(weights: Weights, names: set[str]) -> Weights:
    """Contiguous copies in single precision at least; half precision would lose the objective."""
    kinds = {weights[name].dtype for name in names}
    kind = torch.float64 if torch.float64 in kinds else torch.float32
    return {name: weights[name].detach().to(kind).contiguous() for name in names}
