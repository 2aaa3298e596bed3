"""The noise of a regression, from residuals."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from coset.bayes.likelihood import GaussianNoise
from coset.bayes.problem import Problem
from coset.curvature.tangent import Tangent
from coset.vocabulary import Weights

_TINY, _LEAST = 1e-24, 1e-3
"""Smallest squares that count, and the smallest share of the data that noise is estimated from."""


def residual_noise(problem: Problem, weights: Weights) -> GaussianNoise:
    """Noise of the size of the network's own residuals."""
    return GaussianNoise().estimate(*problem.outputs_and_targets(weights))


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

    @property
    def _count(self) -> int:
        return self.tangent.outputs.numel()

    def _squares(self, outputs: Tensor) -> float:
        targets = self.tangent.targets.reshape(outputs.shape)
        return float((outputs - targets).double().square().sum())
