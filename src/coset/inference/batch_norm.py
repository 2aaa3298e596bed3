"""Batch-norm statistics for weights that were never trained, such as draws from a Gaussian."""

import torch
from torch import Tensor

from coset.bayes.batches import in_equal_parts
from coset.bayes.problem import Problem
from coset.vocabulary import Inputs, Weights
from coset.weights.masks import dropout_off
from coset.weights.network import Network
from coset.weights.randomness import own_randomness
from coset.weights.stacking import stack, unstack


@torch.no_grad()
def refresh_statistics(problem: Problem, members: Weights) -> Weights:
    """The members of a stack with the running statistics that the training data give them.

    A statistic is the mean over batches of what the batch says, weighted by its rows.
    """
    network = problem.network
    if not _names(network):
        return members
    with own_randomness(0):  # for passes in training mode
        return stack([_refreshed(problem, member) for member in unstack(members)])


def _refreshed(problem: Problem, member: Weights) -> Weights:
    network = problem.network
    zeros = {name: torch.zeros_like(member[name]) for name in _names(network)}
    totals, rows = dict(zeros), 0
    for inputs, targets in in_equal_parts(problem.train):
        after = _pass(network, {**member, **zeros}, inputs)
        totals = {name: totals[name] + after[name] * len(targets) for name in totals}
        rows += len(targets)
    ones = {name: torch.ones_like(member[name]) for name in _names(network)}
    inputs, _ = next(in_equal_parts(problem.train))
    from_ones = _pass(network, {**member, **ones}, inputs)
    from_zeros = _pass(network, {**member, **zeros}, inputs)
    return member | {
        name: _solve(member[name], totals[name] / rows, from_ones[name] - from_zeros[name])
        for name in _names(network)
    }


def _names(network: Network) -> list[str]:
    """The statistics; vectors of a spectral norm, by either of torch's ways, are of its weights."""

    def of_weights(name: str) -> bool:
        return ".parametrizations." in name or f"{name[:-2]}_orig" in network.weights

    return [name for name in network.statistics if not of_weights(name)]


def _solve(before: Tensor, mean: Tensor, kept: Tensor) -> Tensor:
    """The batch's statistic ``b`` from ``after = kept · before + (1 - kept) b`` at ``before = 0``.

    A buffer that a pass leaves alone (``kept = 1``) stays what it was.
    """
    momentum = 1 - kept
    alone = momentum.abs() < 1e-6
    return torch.where(alone, before, mean / torch.where(alone, 1.0, momentum))


def _pass(network: Network, weights: Weights, inputs: Inputs) -> Weights:
    with dropout_off():
        return network.apply_training(weights, inputs)[1]
