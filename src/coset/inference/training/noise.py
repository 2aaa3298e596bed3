"""Gaussian noise that is learnt while the mean is trained.

With unknown noise the loss of a member is ``Σ r² / (2 σ²) + k log σ`` for the ``k`` residuals of
an example.  Given ``σ`` its gradient is that of half the squared residuals, divided by ``σ²``;
given the residuals the best ``σ²`` is their mean square.  Training goes back and forth, epoch by
epoch.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import count_targets, residuals, unknown_noise, weight_of
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem

_FLOOR = 1e-12


def is_learnt(likelihood: Likelihood) -> bool:
    """Whether the method that fits has to find the noise.

    >>> from coset import GaussianNoise
    >>> is_learnt(GaussianNoise()), is_learnt(GaussianNoise(0.1))
    (True, False)
    """
    return unknown_noise(likelihood) == "size"


def half_squares(
    outputs: Tensor, targets: Tensor, *, likelihood: Likelihood
) -> Float[Tensor, " n"]:
    """``-Σ r² / 2`` for each example: the Gaussian log-density without its constants.

    >>> import torch
    >>> from coset import GaussianNoise
    >>> outputs, targets = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    >>> half_squares(outputs, targets, likelihood=GaussianNoise())
    tensor([-12.5000])
    """
    return -residuals(likelihood, outputs, targets).flatten(1).square().sum(1) / 2


def residuals_per_example(problem: Problem) -> float:
    """How many residuals an example has, on average over all data."""
    total, likelihood = 0.0, problem.likelihood
    for _, targets in problem.train:
        outputs = targets.reshape(len(targets), -1, *targets.shape[2:])
        if weight_of(likelihood, outputs, targets) is None:  # then all have as many
            return float(targets.shape[1:].numel())
        total += count_targets(likelihood, outputs, targets)
    return total / problem.train.size


@dataclass(frozen=True)
class Noise:
    """The noise of each member of a stack.

    Attributes:
        variance: Noise variance of each member.
        outputs: Number ``k`` of residuals of an example, on average.
        floor: The least variance: a network that goes through every point still divides by it.
    """

    variance: Float[Tensor, " m"]
    outputs: float
    floor: float

    @staticmethod
    def first(losses: Float[Tensor, " m"], outputs: float) -> "Noise":
        """The noise of untrained members, from the means of their half squares."""
        variance = 2 * losses / outputs
        floor = max(float(variance.max()) * _FLOOR, _FLOOR**2)
        return Noise(variance.clamp_min(floor), outputs, floor)

    def updated(self, losses: Float[Tensor, " m"]) -> "Noise":
        """The noise that fits the residuals best.

        >>> import torch
        >>> Noise(torch.ones(1), outputs=2, floor=1e-9).updated(torch.tensor([9.0])).variance
        tensor([9.])
        """
        variance = (2 * losses / self.outputs).clamp_min(self.floor)
        return Noise(variance, self.outputs, self.floor)

    def losses(self, losses: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Mean negative log-likelihoods with all constants, from the means of half squares."""
        constants = self.outputs * (self.variance.log() + math.log(2 * math.pi)) / 2
        return losses / self.variance + constants

    def select(self, index: Tensor) -> "Noise":
        """The noise of some members."""
        return Noise(self.variance[index], self.outputs, self.floor)
