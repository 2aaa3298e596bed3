"""One factor on a covariance, chosen by held-out data."""

import math

import torch
from torch import Tensor

from coset.bayes.batches import Batches
from coset.bayes.likelihood import (
    Bernoulli,
    Categorical,
    GaussianNoise,
    HeteroscedasticGaussian,
    Likelihood,
)
from coset.bayes.multivariate import MultivariateNoise
from coset.errors import CosetError
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import predict_from_moments
from coset.posterior.links import Link, TopDifference
from coset.posterior.output_moments import OutputDeviations, output_moments
from coset.posterior.predict import Predictions
from coset.weights.network import Network

_FACTORS = (0.0, *(10 ** (k / 4) for k in range(-16, 1)))
"""From the network by itself to the covariance as it is, which held-out data never widen."""


def best_factor(
    posterior: Gaussian | OutputDeviations,
    network: Network,
    likelihood: Likelihood,
    validation: Batches,
    link: Link | None = None,
) -> float:
    """The factor in [0, 1] on the covariance with the highest likelihood of held-out targets.

    Nothing at all, which is the network by itself, stands among the factors, and another is
    chosen only if it beats that by more than one standard error of the difference: on the held-out
    data the result is never worse than the network, and elsewhere not by the luck of few data.  The
    moments of the outputs are found once; each factor then costs one link.
    """
    link = link or TopDifference()
    found = [(*output_moments(posterior, network, x), y) for x, y in validation]
    scores = []
    for factor in _FACTORS:
        parts = []
        for mean, covariance, targets in found:
            predictions = predict_from_moments(
                mean, covariance * factor, likelihood, link, torch.Generator().manual_seed(0)
            )
            score = log_score(predictions, likelihood, targets)
            parts.append(score.reshape(len(targets), -1).sum(1))
        scores.append(torch.cat(parts).double())
    best = max(range(len(scores)), key=lambda index: float(scores[index].sum()))
    gain = scores[best] - scores[0]
    doubt = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return _FACTORS[best] if float(gain.mean()) > doubt else 0.0


def log_score(predictions: Predictions, likelihood: Likelihood, targets: Tensor) -> Tensor:
    """Logarithm of the predictive density of each target."""
    mean = predictions.mean
    tiny = torch.finfo(mean.dtype).tiny
    if isinstance(likelihood, Categorical):
        return mean.gather(1, targets.long().unsqueeze(1)).clamp_min(tiny).log().squeeze(1)
    targets = targets.reshape(mean.shape)
    if isinstance(likelihood, Bernoulli):
        return torch.where(targets > 0, mean, 1 - mean).clamp_min(tiny).log().sum(1)
    if isinstance(likelihood, MultivariateNoise) and predictions.covariance is not None:
        factor = likelihood.factor(mean)
        pixels = predictions.covariance.movedim((1, 2), (-2, -1))
        total = torch.linalg.cholesky(pixels + factor @ factor.mT)
        normal = torch.distributions.MultivariateNormal(mean.movedim(1, -1), scale_tril=total)
        score: Tensor = normal.log_prob(targets.movedim(1, -1))
        return score
    if isinstance(likelihood, GaussianNoise | HeteroscedasticGaussian):
        assert predictions.variance is not None
        std = predictions.variance.clamp_min(tiny).sqrt()
        scores = ((targets - mean) / std).square() + 2 * std.log() + math.log(2 * math.pi)
        return -scores.sum(1) / 2
    raise CosetError(
        f"got validation data for {type(likelihood).__name__}",
        "needed a likelihood of this library",
    )
