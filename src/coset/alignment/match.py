"""Moves one network along its orbit until it lies near another."""

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from coset.alignment.by_weights import ByWeights, Outcome
from coset.alignment.checks import check_finite, check_shapes, finite_product
from coset.alignment.gaussians import (
    GaussianLike,
    Marginals,
    moved_deviations,
    solve_gaussians,
)
from coset.alignment.plans import matched_tensors
from coset.alignment.result import Match
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
    weights: Weights | GaussianLike,
    *,
    to: Weights | GaussianLike,
    by: By = ByWeights(),
    generator: torch.Generator | None = None,
) -> Match:
    """Aligns ``weights`` to the weights ``to`` without changing the function they compute.

    Maximises ``<to, act(g, weights)>`` over elements ``g`` of the group, which for permutations
    is the same as minimising the distance.

    Args:
        group: The symmetries of the network.
        weights: What is moved: weights, or a Gaussian with ``mean`` and ``std``, or a stack of
            samples.  One element moves a whole stack if ``to`` is a distribution too; to the
            weights of one network every member is moved by an element of its own.
        to: What it is moved to: weights, a Gaussian, or a stack of samples.  Distributions are
            compared by the Wasserstein distance of their means and standard deviations.
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
    generator = generator or torch.Generator().manual_seed(0)
    target, many = _checked(group, to, "the weights to match to")
    source, stacked = _checked(group, weights, "the weights to move")
    _check_finite(group, target, source)
    if many and isinstance(target, dict):
        target = Marginals.of(target)
    if stacked and isinstance(source, dict) and not isinstance(target, dict):
        source = Marginals.of(source)
    if isinstance(target, dict) and isinstance(source, dict):
        if stacked:
            return _each(group, source, target, by, generator)
        outcome = by.solve(group, source, target, generator=generator)
        return measured(group, outcome, moved_by(group, outcome, source), target)
    if isinstance(target, dict) or isinstance(source, dict) or not isinstance(by, ByWeights):
        raise CosetError(
            f"got a distribution, weights of one network or {type(by).__name__}",
            "needed two distributions and ByWeights()",
        )
    outcome = solve_gaussians(by, group, source, target, generator=generator)
    return _of_gaussians(group, outcome, source, target, weights)


def _checked(
    group: SymmetryGroup, given: Weights | GaussianLike, what: str
) -> tuple[Weights | GaussianLike, bool]:
    """What was given, once its tensors are known to fit, and whether it is a stack."""
    leads = [check_shapes(group, table, name) for name, table in _tables(given, what)]
    return given, isinstance(given, dict) and bool(leads[0])


def _check_finite(
    group: SymmetryGroup, to: Weights | GaussianLike, weights: Weights | GaussianLike
) -> None:
    if (
        isinstance(to, dict)
        and isinstance(weights, dict)
        and finite_product(to, weights, group.shapes)
    ):
        return  # one pass over both
    for given, what in ((to, "the weights to match to"), (weights, "the weights to move")):
        for name, table in _tables(given, what):
            check_finite(table, group.shapes, name)


def _tables(given: Weights | GaussianLike, what: str) -> list[tuple[str, Weights]]:
    """The weights that something consists of, and what to call them."""
    if isinstance(given, dict):
        return [(what, given)]
    return [
        (f"the mean of {what}", given.mean),
        (f"the standard deviations of {what}", given.std),
    ]


def moved_by(group: SymmetryGroup, outcome: Outcome, weights: Weights) -> Weights:
    """The weights after the element, from working copies where these have the same type."""
    moved = None if outcome.aligned is None or group.aliases else outcome.aligned()
    if moved is None or any(moved[n].dtype != weights[n].dtype for n in moved):
        return group.act(outcome.element, weights)
    return {n: w if (w := moved.get(n)) is not None else t.clone() for n, t in weights.items()}


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
    )


def _of_gaussians(
    group: SymmetryGroup,
    outcome: Outcome,
    source: GaussianLike,
    target: GaussianLike,
    given: Weights | GaussianLike,
) -> Match:
    """The result for distributions; a stack comes back as a stack, moved by one element."""
    mean = group.act(outcome.element, source.mean)
    std = moved_deviations(group, outcome.element, source.std)
    return replace(
        measured(group, outcome, mean, target.mean),
        weights=group.act(outcome.element, given) if isinstance(given, dict) else mean,
        std=std,
        compared=((target.mean, mean), (target.std, std)),
    )


def measured_between(group: SymmetryGroup, weights: Weights, to: Weights) -> Match:
    """Objective and distance of weights as they are."""
    return measured(group, Outcome(group.identity()), weights, to)


def measured(group: SymmetryGroup, outcome: Outcome, aligned: Weights, to: Weights) -> Match:
    """The result, with objective and distance over the tensors that are matched."""
    names = tuple(sorted(matched_tensors(group)))
    pairs = ((to, aligned),)
    return Match(
        outcome.element, aligned, outcome.ties, outcome.sweeps, compared=pairs, names=names
    )
