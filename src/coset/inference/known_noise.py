"""Samplers need noise of a known size: where it is to be learnt, a training finds it first."""

import torch

from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.training.noise import is_learnt


def with_known_noise(
    problem: Problem, generator: torch.Generator
) -> tuple[Problem, Likelihood | None]:
    """The problem with noise of a known size, checked.

    Returns the problem and the learnt likelihood, or nothing where there was none to learn.
    """
    problem.check()
    if not is_learnt(problem.likelihood):
        return problem, None
    likelihood = MaximumAPosteriori().fit(problem, generator=generator).report.likelihood
    assert likelihood is not None
    return problem.with_likelihood(likelihood), likelihood
