"""What every method of inference looks like from outside."""

from typing import Protocol

import torch

from coset.bayes.problem import Problem
from coset.posterior.families import Posterior
from coset.vocabulary import Weights


class Method(Protocol):
    """A recipe for a posterior: a frozen dataclass whose fields are its configuration."""

    def fit(
        self, problem: Problem, *, start: Weights | None = None, generator: torch.Generator
    ) -> Posterior:
        """Approximates the posterior of ``problem``.

        Args:
            problem: Network, likelihood, prior and data.
            start: Weights to begin from; without, a method that trains draws fresh ones.
            generator: The only source of randomness: equal seeds give equal results.
        """
        ...
