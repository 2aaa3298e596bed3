"""Moves one network along its orbit until it lies near another."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from coset.alignment.ascent import inner
from coset.alignment.by_weights import ByWeights, Outcome
from coset.alignment.checks import check_weights
from coset.alignment.plans import matched_tensors
from coset.alignment.result import Match
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


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
    weights: Weights,
    *,
    to: Weights,
    by: By = ByWeights(),
    generator: torch.Generator | None = None,
) -> Match:
    """Aligns ``weights`` to the weights ``to`` without changing the function they compute.

    Maximises ``<to, act(g, weights)>`` over elements ``g`` of the group, which for permutations
    is the same as minimising the distance.

    Args:
        group: The symmetries of the network.
        weights: What is moved.
        to: What it is moved to.
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
    check_weights(group, to, "the weights to match to")
    check_weights(group, weights, "the weights to move")
    outcome = by.solve(group, weights, to, generator=generator or torch.Generator().manual_seed(0))
    aligned = group.act(outcome.element, weights)
    return measured(group, outcome, aligned, to)


def measured(group: SymmetryGroup, outcome: Outcome, aligned: Weights, to: Weights) -> Match:
    """The result, with objective and distance over the tensors that are matched."""
    names = sorted(matched_tensors(group))
    return Match(
        outcome.element,
        aligned,
        sum(inner(to[name], aligned[name]) for name in names),
        sum(_squared_distance(to[name], aligned[name]) for name in names),
        outcome.ties,
        outcome.sweeps,
    )


def _squared_distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).square().sum())
