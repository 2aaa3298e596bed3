"""The noise of a regression, from residuals."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from coset.bayes.defaults import count_targets, residuals, with_noise
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.curvature.tangent import Tangent
from coset.vocabulary import Weights

_TINY, _LEAST = 1e-24, 1e-3
"""Smallest squares that count, and the smallest share of the data that noise is estimated from."""


def residual_noise(problem: Problem, weights: Weights) -> Likelihood:
    """The likelihood with noise of the size of the network's own residuals."""
    outputs, targets = problem.outputs_and_targets(weights)
    left = residuals(problem.likelihood, outputs, targets)
    mean = left.square().sum() / count_targets(problem.likelihood, outputs, targets)
    return with_noise(problem.likelihood, float(mean.sqrt().clamp_min(1e-12)))


@dataclass(frozen=True)
class Residuals:
    """What the outputs of a tangent model leave of its targets."""

    tangent: Tangent

    @cached_property
    def most_certain(self) -> float:
        """The noise precision ``1 / σ²`` that the network's own residuals allow."""
        count = self._count
        return count / max(self._squares(self.tangent.outputs), _TINY * count)

    def precision(self, outputs: Tensor, effective: float = 0.0) -> float:
        """``(n c - γ) / Σ residual²`` at some outputs, with so many effective weights ``γ``."""
        count = self._count
        return max(count - effective, _LEAST * count) / max(self._squares(outputs), _TINY)

    @cached_property
    def _count(self) -> float:
        tangent = self.tangent
        return count_targets(tangent.likelihood, tangent.outputs, tangent.targets)

    def _squares(self, outputs: Tensor) -> float:
        found = residuals(self.tangent.likelihood, outputs, self.tangent.targets)
        return float(found.double().square().sum())
