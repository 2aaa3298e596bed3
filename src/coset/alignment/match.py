"""Moves one network along its orbit until it lies near another."""

from dataclasses import replace
from operator import attrgetter
from typing import Protocol, runtime_checkable

import torch

from coset.alignment.by_weights import ByWeights
from coset.alignment.checks import MOVED, TO, check_weights, seeded
from coset.alignment.gaussians import (
    Distribution,
    Marginals,
    as_matched,
    check_marginals,
    moved_deviations,
    solve_gaussians,
)
from coset.alignment.plans import counts, matched_tensors
from coset.alignment.result import Match, Outcome
from coset.errors import CosetError
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.stacking import unstack


@runtime_checkable
class By(Protocol):
    """A way of matching, such as :class:`ByWeights` or :class:`ByActivations`."""

    def solve(
        self, group: SymmetryGroup, weights: Weights, to: Weights, *, generator: torch.Generator
    ) -> Outcome:
        """The element found for weights that were checked."""
        ...


def match(
    group: SymmetryGroup,
    weights: Weights | Distribution,
    *,
    to: Weights | Distribution,
    by: By = ByWeights(),
    generator: torch.Generator | None = None,
) -> Match:
    """Maximises ``<to, act(g, weights)>`` over the group: the same function, as near as it can be.

    Args:
        group: The symmetries of the network.
        weights: What is moved: weights, a stack of samples, or a distribution over all tensors: a
            posterior of this library (Gaussians, samples, points), or anything with ``mean`` and
            ``std``.  One element moves a whole stack if ``to`` is a distribution too; to the
            weights of one network every member is moved by an element of its own.
        to: What it is moved to: the same choice.  Distributions are compared by the Wasserstein
            distance of their means and of the standard deviations of each entry; covariances
            between entries have no say.
        by: How elements are judged and found.
        generator: For ways that use random numbers; ``None``: a fresh one of seed 0.

    Raises:
        CosetError: If tensors are missing, have other shapes or are not finite.

    >>> from torch import nn
    >>> from coset.symmetry.discover import discover
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> group = discover(net, torch.zeros(1, 2))
    >>> one = {name: tensor.detach() for name, tensor in net.named_parameters()}
    >>> order = torch.tensor([2, 0, 1])
    >>> other = {**one, "0.weight": one["0.weight"][order], "0.bias": one["0.bias"][order]}
    >>> other["2.weight"] = one["2.weight"][:, order]
    >>> result = match(group, other, to=one)
    >>> result.transpositions, torch.equal(result.weights["0.weight"], one["0.weight"])
    (2, True)
    """
    check_by(by)
    generator = seeded(generator)
    target, source = as_matched(to, TO), as_matched(weights, MOVED)
    many, stacked = (_check_fit(group, g, w) for g, w in ((target, TO), (source, MOVED)))
    stack = source if stacked and isinstance(source, dict) else None
    if many and isinstance(target, dict):
        target = Marginals.of(target)
    if stack is not None and isinstance(target, Marginals):
        source = Marginals.of(stack)
    if isinstance(target, dict) and isinstance(source, dict):
        if stack is not None:
            return _each(group, stack, target, by, generator)
        outcome = by.solve(group, source, target, generator=generator)
        return measured(group, outcome, moved_by(group, outcome, source), target)
    if isinstance(target, dict) or isinstance(source, dict) or not isinstance(by, ByWeights):
        raise CosetError(
            f"got a distribution, weights of one network or {type(by).__name__}",
            "needed two distributions and ByWeights()",
        )
    outcome = solve_gaussians(by, group, source, target, generator=generator)
    return _of_gaussians(group, outcome, source, target, stack)


def check_by(by: object) -> None:
    """Refuses what is no way of matching."""
    if isinstance(by, ByWeights):
        return  # the common case: to ask for protocols takes long
    if isinstance(by, type) or not isinstance(by, By):
        what = by.__name__ if isinstance(by, type) else repr(by)
        raise CosetError(
            f"got by={what:.80}",
            "needed a way of matching with a method solve(group, weights, to, generator=...)",
            "give ByWeights(), ByActivations(...), BySinkhorn() or ByStraightThrough(...)",
        )


def _check_fit(group: SymmetryGroup, given: Weights | Marginals, what: str) -> bool:
    """Refuses what does not fit the group; says whether it is a stack."""
    if isinstance(given, Marginals):
        check_marginals(group, given, what)
        return False
    return bool(check_weights(group, given, what))


def moved_by(group: SymmetryGroup, outcome: Outcome, weights: Weights) -> Weights:
    """The weights after the element, from working copies where these have the same type."""
    moved = None if outcome.aligned is None or group.aliases else outcome.aligned()
    kind = attrgetter("dtype")
    if moved is None or list(map(kind, moved.values())) != [weights[n].dtype for n in moved]:
        return group.act(outcome.element, weights)
    return {n: moved[n] if n in moved else tensor.clone() for n, tensor in weights.items()}


def _each(
    group: SymmetryGroup, stack: Weights, to: Weights, by: By, generator: torch.Generator
) -> Match:
    """Every member of a stack matched by itself; numbers are summed."""
    found = [match(group, w, to=to, by=by, generator=generator) for w in unstack(stack)]
    elements = [result.element for result in found]
    tables = elements[0]
    weights = {name: torch.stack([result.weights[name] for result in found]) for name in stack}
    return Match(
        Element(
            {n: torch.stack([e.permutations[n] for e in elements]) for n in tables.permutations},
            {n: torch.stack([e.scales[n] for e in elements]) for n in tables.scales},
        ),
        weights,
        sum(result.ties for result in found),
        max(result.sweeps for result in found),
        compared=((to, weights),),
        names=found[0].names,
        parameters=found[0].parameters,
    )


def _of_gaussians(
    group: SymmetryGroup,
    outcome: Outcome,
    source: Marginals,
    target: Marginals,
    stack: Weights | None,
) -> Match:
    """The result for distributions; a stack comes back as a stack, moved by one element."""
    mean = group.act(outcome.element, source.mean)
    std = moved_deviations(group, outcome.element, source.std)
    return replace(
        measured(group, outcome, mean, target.mean),
        weights=mean if stack is None else group.act(outcome.element, stack),
        std=std,
        compared=((target.mean, mean), (target.std, std)),
    )


def measured_between(group: SymmetryGroup, weights: Weights, to: Weights) -> Match:
    """Objective and distance of weights as they are."""
    return measured(group, Outcome(group.identity()), weights, to)


def measured(group: SymmetryGroup, outcome: Outcome, aligned: Weights, to: Weights) -> Match:
    """The result: the objective over the tensors that are matched, the distance over all."""
    return Match(
        outcome.element,
        aligned,
        outcome.ties,
        outcome.sweeps,
        compared=((to, aligned),),
        names=group.remembered("names to match", lambda: tuple(sorted(matched_tensors(group)))),
        parameters=group.remembered(
            "names to measure", lambda: tuple(filter(counts, sorted(group.shapes)))
        ),
    )
