"""What every method of inference looks like from outside."""

from inspect import signature
from typing import Protocol

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError, told
from coset.posterior.families import Posterior
from coset.vocabulary import Progress, Weights


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


def require_method(given: object, what: str) -> None:
    """Refuses what is easily written in the place of a method.

    Args:
        given: What was given.
        what: The argument: ``"method"``.
    """
    if isinstance(given, type):
        raise CosetError(
            f"got the class {given.__name__} as the {what}",
            "needed a method with its settings",
            f"write {what}={given.__name__}()",
        )
    if not callable(getattr(given, "fit", None)):
        raise CosetError(
            f"got {what}={told(given)}",
            "needed something that can fit, such as Laplace() or DeepEnsemble(8)",
        )


def fit_telling(
    method: Method,
    problem: Problem,
    *,
    start: Weights | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Posterior:
    """Fits a method, which tells how far it is if it can: one of the user's own may do without."""
    if progress is None or "progress" not in signature(method.fit).parameters:
        return method.fit(problem, start=start, generator=generator)
    told = {"progress": progress}
    return method.fit(problem, start=start, generator=generator, **told)
