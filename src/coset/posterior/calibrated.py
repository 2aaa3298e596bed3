"""Predictions corrected after the fit, by a few numbers from held-out data.

A step changes predictions and nothing else: the posterior, its draws and
:meth:`coset.Predictor.maps` stay what they are.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import gives_probabilities, link_of
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError, require_kinds
from coset.posterior.families import Posterior
from coset.posterior.predict import PredictionRule, Predictions, weighted_mean
from coset.printing import brief
from coset.vocabulary import Inputs
from coset.weights.network import Network


class CalibrationStep(Protocol):
    """A correction of predictions."""

    def correct(self, found: Predictions, likelihood: Likelihood) -> Predictions:
        """The predictions, corrected."""
        ...


@dataclass(frozen=True)
class Calibrated:
    """Another rule, whose predictions a step corrects.

    Attributes:
        rule: How to predict.
        step: :class:`ClassScaling`, :class:`VarianceScaling` or :class:`Conformal`, as
            :meth:`coset.Predictor.calibrated` finds them.
    """

    rule: PredictionRule
    step: CalibrationStep

    def __post_init__(self) -> None:
        require_kinds(self)

    def __call__(
        self,
        posterior: Posterior,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        *,
        generator: torch.Generator,
    ) -> Predictions:
        """Predictions for the inputs."""
        found = self.rule(posterior, network, likelihood, inputs, generator=generator)
        return self.step.correct(found, likelihood)


def inner_rule(rule: PredictionRule) -> PredictionRule:
    """The rule without its corrections."""
    while isinstance(rule, Calibrated):
        rule = rule.rule
    return rule


@dataclass(frozen=True)
class ClassScaling:
    """``softmax(a ⊙ log p + b)`` for the probabilities of every member.

    With one factor ``a = 1/T`` it is a temperature ``T``.  For yes-or-no outputs ``p`` are the
    probabilities of both answers, and factors and offsets are two for each output (beta
    calibration, Kull et al. 2017).  ``covariance`` stays that of the network's own outputs.

    Attributes:
        factors: ``a``: one, or one a class.
        offsets: ``b``: one a class.
    """

    factors: Float[Tensor, "..."]
    offsets: Float[Tensor, "..."]

    __repr__ = brief

    def correct(self, found: Predictions, likelihood: Likelihood) -> Predictions:
        """The predictions, corrected."""
        answers = class_answers(found, likelihood)
        factors, offsets = self.factors.to(answers), self.offsets.to(answers)
        scaled = (factors * log_chances(answers) + offsets).softmax(-1)
        if link_of(likelihood, found.mean) == "sigmoid":
            members = scaled[..., 1].movedim(-1, 2)
        else:
            members = scaled.movedim(-1, 2)
        variance = found.variance
        if found.covariance is None:
            middle = weighted_mean(members, found.log_weights)
            variance = weighted_mean((members - middle).square(), found.log_weights)
        return replace(found, members=members, variance=variance)


@dataclass(frozen=True)
class VarianceScaling:
    """The predictive variance of a regression times a factor.

    Attributes:
        factors: One, or one a target.
    """

    factors: Float[Tensor, " k"]

    __repr__ = brief

    def correct(self, found: Predictions, likelihood: Likelihood) -> Predictions:
        """The predictions, corrected."""
        variance = known_variance(found)
        factors = self.factors.to(variance).reshape(-1, *[1] * (variance.dim() - 2))
        return replace(found, variance=variance * factors)


@dataclass(frozen=True)
class Conformal:
    """Sets of classes with ``1 - p ≤ q``, or intervals ``μ ± q σ``, that hold a share of truths.

    The likeliest class is always in the set.

    Attributes:
        quantile: ``q``.
        level: The share that they hold, of new examples or of the pixels of new pictures.
    """

    quantile: float
    level: float

    def correct(self, found: Predictions, likelihood: Likelihood) -> Predictions:
        """The predictions, with sets or intervals."""
        mean = found.mean
        if gives_probabilities(likelihood, mean):
            sets = 1 - mean.double() <= self.quantile
            return replace(found, sets=sets | (mean == mean.amax(1, keepdim=True)))
        reach = self.quantile * known_variance(found).sqrt()
        return replace(found, lower=mean - reach, upper=mean + reach)


def class_answers(found: Predictions, likelihood: Likelihood) -> Float[Tensor, "m n ... c"]:
    """Probabilities of classes in the last axis; of yes-or-no outputs those of both answers."""
    if link_of(likelihood, found.mean) == "sigmoid":
        chances = found.members.movedim(2, -1)
        return torch.stack([1 - chances, chances], -1)
    return found.members.movedim(2, -1)


def log_chances(probabilities: Tensor) -> Tensor:
    """Logarithms that stay finite."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def known_variance(found: Predictions) -> Tensor:
    """The variance of the targets, where it is known."""
    if found.variance is None:
        raise CosetError(
            "got predictions without a variance",
            "needed one to scale",
            "let fit learn the noise, or give the likelihood a noise_variance",
        )
    return found.variance


_IMPLEMENTATIONS: tuple[CalibrationStep, ...] = (
    ClassScaling(torch.ones(()), torch.zeros(())),
    VarianceScaling(torch.ones(1)),
    Conformal(0.5, 0.9),
)
