"""What a fit warns of: data that change as they are read, and posteriors too wide for a network.

Added variance makes predictions less sure.  That helps a network that is too sure of itself, which
most networks trained to a small loss are, and hurts one that is not sure enough already.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from coset.bayes.batches import Batches, Data, InMemory, as_batches, repeatable_rows
from coset.bayes.defaults import link_of, weight_of
from coset.bayes.problem import Problem
from coset.linalg import scale
from coset.posterior.covariance_factor import best_factor
from coset.posterior.families import Posterior
from coset.posterior.gaussian import Gaussian
from coset.posterior.links import Link
from coset.posterior.tangent_samples import TangentSamples

_GAP = 0.08
"""How far training confidence may lie below training accuracy before a fit warns."""

_EXAMPLES = 2000
"""Training data that are looked at."""

_UNFINISHED = 1.5
"""Squared residuals of a network over the noise of its tangent model from which a fit warns."""


def changing_data(train: Batches) -> list[str]:
    """A data set whose first, middle and last example are others when they are read again."""
    if isinstance(train, InMemory) or repeatable_rows(train) is not None:
        return []
    return [
        f"the {train.size} training examples change each time they are read, by random "
        "augmentation say: every pass sees other data, which an evidence or a curvature mixes, and "
        "a checkpoint remembers only how many there are; fit to fixed examples"
    ]


def warned(posterior: Posterior, notes: Sequence[str]) -> Posterior:
    """The same posterior with more warnings in its report, if it is one of ours or like them."""
    if not notes or not is_dataclass(posterior) or isinstance(posterior, type):
        return posterior
    if "report" not in {field.name for field in fields(posterior)}:
        return posterior
    report = posterior.report
    changed: Any = replace(report, warnings=(*report.warnings, *notes))
    return replace(posterior, report=changed)


def examine(
    posterior: Gaussian | TangentSamples,
    problem: Problem,
    validation: "Data | None",
    link: Link,
) -> Gaussian | TangentSamples:
    """With validation data, the best share of the covariance; without, a look at the fit.

    Args:
        posterior: As the evidence has it.
        problem: Network, likelihood and training data.
        validation: Held-out data, checked.
        link: With which it will predict.
    """
    report = posterior.report
    likelihood = report.likelihood or problem.likelihood
    if validation is None:
        return replace(
            posterior,
            report=replace(report, warnings=(*report.warnings, *_doubts(posterior, problem))),
        )
    held_out = as_batches(validation)
    factor = best_factor(posterior, problem.network, likelihood, held_out, link)
    report = replace(report, diagnostics={**report.diagnostics, "covariance_factor": factor})
    if isinstance(posterior, TangentSamples):
        return replace(posterior.widened(factor), report=report)
    # a covariance of exactly zero has no root to sample with
    covariance = scale(posterior.covariance, max(factor, 1e-12))
    return replace(posterior, covariance=covariance, report=report)


def _doubts(posterior: Gaussian | TangentSamples, problem: Problem) -> list[str]:
    """A network that is right on its training data more often than it is sure."""
    weights, seen, examples = posterior.centre(problem.network), 0.0, 0
    confidence = accuracy = 0.0
    for inputs, targets in problem.train:
        outputs = problem.network.apply(weights, inputs)
        if link_of(problem.likelihood, outputs) != "softmax":
            return []
        probabilities = problem.likelihood.mean(outputs)
        weight = weight_of(problem.likelihood, outputs, targets)
        counts = torch.ones(()) if weight is None else weight[:, 0].double()
        right = (probabilities.argmax(1) == targets) * counts
        confidence += float((probabilities.amax(1).double() * counts).sum())
        accuracy += float(right.double().sum())
        seen += float(counts.expand(targets.shape).sum())
        examples += len(targets)
        if examples >= _EXAMPLES:
            break
    if not seen or (accuracy - confidence) / seen <= _GAP:
        return []
    return [
        f"on training data the network is right in {accuracy / seen:.0%} of the cases and sure to "
        f"{confidence / seen:.0%} on average: it may be under-confident, and added variance would "
        "hurt; give ByEvidence(validation=…)"
    ]


def unheard(names: Sequence[str], count: int) -> list[str]:
    """Some of so many groups whose precisions grew without end.

    >>> unheard(["head"], 3)
    ['1 of 3 groups switched off (the data say nothing of them): head']
    """
    if not names:
        return []
    listed = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    return [f"{len(names)} of {count} groups switched off (the data say nothing of them): {listed}"]


def unfinished(own: float, free: float) -> list[str]:
    """A network whose tangent model fits far better than it does itself.

    Args:
        own: Noise precision by the residuals of the network.
        free: Noise precision that the tangent model finds.
    """
    if free < _UNFINISHED * own:
        return []
    return [
        f"the network's residuals ({own**-0.5:.3g}) are larger than the noise that its tangent "
        f"model leaves ({free**-0.5:.3g}): it is not trained to its end; noise of the size of the "
        "residuals was taken"
    ]
