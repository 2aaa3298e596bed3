"""What a fit warns of: changing data, posteriors too wide for a network, unfinished training.

Added variance makes predictions less sure.  That helps a network that is too sure of itself, which
most networks trained to a small loss are, and hurts one that is not sure enough already.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coset.bayes.batches import Batches, Data, InMemory, as_batches, repeatable_rows
from coset.bayes.defaults import count_targets, link_of, weight_of
from coset.bayes.likelihood import Likelihood, LinkName
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.curvature.tangent import Tangent
from coset.linalg import scale
from coset.posterior.covariance_factor import best_factor
from coset.posterior.families import Posterior
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import Linearised, affordable
from coset.posterior.links import Link
from coset.posterior.predict import Predictions
from coset.posterior.tangent_samples import TangentSamples
from coset.weights.randomness import own_randomness

_GAP = 0.08
"""How far training confidence may lie below training accuracy before a fit warns."""

_EXAMPLES = 2000
"""Training data that are looked at."""

_PROBED = 8
"""Examples by which outputs that are probabilities are known."""

_TOO_WIDE = 0.2
"""How far training confidence may lie below training accuracy once a kept prior added variance."""

_WIDER = 4.0
"""Added variance over that of the noise, on the data fitted to, from which a kept prior is told."""

_LOOKED_AT = 128
"""Training data that are predicted to see what a kept prior does."""

_UNFINISHED = 1.5
"""Squared residuals of a network over the noise of its tangent model from which a fit warns.  For
other likelihoods: the same loss, ``½ log 1.5`` nats for each target that counts."""


def changing_data(train: Batches) -> list[str]:
    """A data set whose first, middle and last example are others when they are read again."""
    if isinstance(train, InMemory) or repeatable_rows(train) is not None:
        return []
    return [
        f"the {train.size} training examples change each time they are read, by random "
        "augmentation say: every pass sees other data, which an evidence or a curvature mixes, and "
        "a checkpoint remembers only how many there are; fit to fixed examples"
    ]


@torch.no_grad()
def probabilities_for_logits(problem: Problem) -> list[str]:
    """A network whose outputs are probabilities already, under a likelihood that takes logits."""
    with own_randomness(0):
        inputs, _ = problem.train.rows(torch.arange(min(_PROBED, problem.train.size)))
        outputs = problem.network.apply(problem.network.weights, inputs)
    if link_of(problem.likelihood, outputs) != "softmax" or outputs.shape[1] < 2:
        return []
    room = max(torch.finfo(outputs.dtype).eps ** 0.5, 1e-4)
    sums = outputs.double().sum(1)
    if bool((outputs < 0).any()) or not bool(((sums - 1).abs() < room).all()):
        return []
    return [
        "the outputs of the network are probabilities, as softmax gives them: "
        f"{type(problem.likelihood).__name__} takes logits and applies a softmax once more, so no "
        "class can be surer than e / (e + number of classes - 1); leave the softmax out"
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


@dataclass(frozen=True)
class _Sureness:
    """How often classes are right and how sure of them, summed over the targets that count."""

    accuracy: float
    confidence: float
    seen: float

    def __add__(self, other: "_Sureness") -> "_Sureness":
        return _Sureness(
            self.accuracy + other.accuracy,
            self.confidence + other.confidence,
            self.seen + other.seen,
        )

    @property
    def gap(self) -> float:
        """By how much it is right more often than it is sure."""
        return (self.accuracy - self.confidence) / self.seen if self.seen else 0.0

    def __str__(self) -> str:
        return (
            f"right in {self.accuracy / self.seen:.0%} of the cases and sure to "
            f"{self.confidence / self.seen:.0%} on average"
        )


def _sureness(
    likelihood: Likelihood, outputs: Tensor, probabilities: Tensor, targets: Tensor
) -> _Sureness:
    """Of some predictions, each target by its weight."""
    weight = weight_of(likelihood, outputs, targets)
    if link_of(likelihood, outputs) == "softmax":
        right, sure = probabilities.argmax(1) == targets, probabilities.amax(1)
        counts = torch.ones(()) if weight is None else weight[:, 0].double()
    else:
        yes = probabilities > 0.5
        right, sure = yes == (targets.reshape(yes.shape) > 0.5), (probabilities - 0.5).abs() + 0.5
        counts = torch.ones(()) if weight is None else weight.double()
    return _Sureness(
        float((right * counts).sum()),
        float((sure.double() * counts).sum()),
        float(counts.expand(right.shape).sum()),
    )


def _doubts(posterior: Gaussian | TangentSamples, problem: Problem) -> list[str]:
    """A network that is right on its training data more often than it is sure."""
    weights, examples = posterior.centre(problem.network), 0
    found = _Sureness(0.0, 0.0, 0.0)
    for inputs, targets in problem.train:
        outputs = problem.network.apply(weights, inputs)
        if link_of(problem.likelihood, outputs) != "softmax":
            return []
        found += _sureness(problem.likelihood, outputs, problem.likelihood.mean(outputs), targets)
        examples += len(targets)
        if examples >= _EXAMPLES:
            break
    if found.gap <= _GAP:
        return []
    return [
        f"on training data the network is {found}: it may be under-confident, and added variance "
        "would hurt; give ByEvidence(validation=…)"
    ]


def with_kept_prior(
    posterior: Gaussian | TangentSamples, problem: Problem, rule: Linearised
) -> Gaussian | TangentSamples:
    """The same, with a warning where a prior that was not tuned makes predictions far too unsure.

    Args:
        posterior: With the prior as it was given.
        problem: Whose training data are predicted, a few of them.
        rule: With which it will predict.
    """
    return replace(
        posterior,
        report=replace(
            posterior.report,
            warnings=(*posterior.report.warnings, *_too_wide(posterior, problem, rule)),
        ),
    )


@torch.no_grad()
def _too_wide(
    posterior: Gaussian | TangentSamples, problem: Problem, rule: Linearised
) -> list[str]:
    count = min(_LOOKED_AT, problem.train.size)
    inputs, targets = problem.train.rows(torch.arange(count) * problem.train.size // count)
    cheap, _ = affordable(rule, posterior, problem.outputs_each())
    predictions = cheap(
        posterior,
        problem.network,
        problem.likelihood,
        inputs,
        generator=torch.Generator().manual_seed(0),
    )
    outputs = problem.network.apply(posterior.centre(problem.network), inputs)
    link = link_of(problem.likelihood, outputs)
    told = ""
    if link in ("softmax", "sigmoid"):
        found = _sureness(problem.likelihood, outputs, predictions.mean, targets)
        if found.gap > _TOO_WIDE:
            told = f"predictions of training data are {found}"
    elif _is_of_means(link, predictions):
        assert predictions.covariance is not None
        assert predictions.variance is not None
        added = predictions.covariance.diagonal(dim1=1, dim2=2).movedim(-1, 1)
        ratio = float(added.sum() / (predictions.variance - added).sum())
        if ratio > _WIDER:
            told = f"on training data the weights add {ratio:.0f} times the variance of the noise"
    if not told:
        return []
    precision = problem.prior.precision
    default = isinstance(precision, float) and precision == GaussianPrior().precision
    which = "the default prior" if default else "the prior given"
    return [
        f"{told}: unless new data are that much harder, {which}, which tuning=None kept, is too "
        "weak for this network; use tuning=ByEvidence(), or give a larger precision"
    ]


def _is_of_means(link: LinkName, predictions: Predictions) -> bool:
    """Whether outputs are means of targets and nothing else, such as noise by input."""
    covariance, variance = predictions.covariance, predictions.variance
    if link != "linear" or covariance is None or variance is None:
        return False
    return covariance.shape[1] == variance.shape[1]


def switched_off_warning(names: Sequence[str], count: int) -> list[str]:
    """Some of so many groups whose precisions grew without end.

    >>> print(switched_off_warning(["head"], 3)[0])
    1 of 3 groups switched off (the data say nothing of them): head; their weights count as known
    exactly, which is right for dead units. If they are not dead, or are many, let them share a
    precision: ByEvidence(groups='layer') or 'single'
    >>> print(switched_off_warning(["head"], 1)[0])
    1 of 1 groups switched off (the data say nothing of them): head; there are no error bars: the
    evidence finds nothing that inputs tell of targets. Train the network, or check that inputs and
    targets belong together
    """
    if not names:
        return []
    listed = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    advice = (
        "their weights count as known exactly, which is right for dead units. If they are not "
        "dead, or are many, let them share a precision: ByEvidence(groups='layer') or 'single'"
    )
    if len(names) == count:
        advice = (
            "there are no error bars: the evidence finds nothing that inputs tell of targets. "
            "Train the network, or check that inputs and targets belong together"
        )
    return [
        f"{len(names)} of {count} groups switched off (the data say nothing of them): {listed}; "
        f"{advice}"
    ]


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


def beaten_by_tangent(tangent: Tangent, outputs: Tensor, effective: float) -> list[str]:
    """A network whose tangent model explains the training data far better than it does itself.

    Predictions lie around the network, so that error bars which the tangent model draws around its
    own mode do not cover what the network gets wrong.  Of the difference, ``γ / 2`` nats are what
    ``γ`` effective weights gain by fitting the noise of the data.

    Args:
        tangent: The model, with known noise or none.
        outputs: Of all data, at its mode.
        effective: The effective number of weights ``γ``.
    """
    likelihood, targets = tangent.likelihood, tangent.targets
    share = count_targets(likelihood, tangent.outputs, targets) / tangent.outputs.numel()
    counted = targets.numel() * share
    own, best = (
        -float(tangent.log_likelihood(each.double())) / counted
        for each in (tangent.outputs, outputs)
    )
    if own - best <= math.log(_UNFINISHED) / 2 + effective / (2 * counted):
        return []
    return [
        f"the loss of the network on its training data ({own:.3g} nats) is far above that of its "
        f"own tangent model ({best:.3g}): it is not trained to its end, or its batch-norm "
        "statistics are not those of the data; its error bars do not cover that: train on, or "
        "measure the statistics again, and fit then"
    ]
