"""One factor on a covariance, chosen by held-out data."""

import math

import torch

from coset.bayes.batches import Batches
from coset.bayes.likelihood import Likelihood
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import predict_from_moments
from coset.posterior.links import Link, TopDifference
from coset.posterior.output_moments import OutputDeviations, output_moments
from coset.posterior.targets import log_score
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
            parts.append(
                log_score(
                    likelihood,
                    mean,
                    covariance * factor,
                    predictions.mean,
                    predictions.variance,
                    targets,
                )
            )
        scores.append(torch.cat(parts).double())
    best = max(range(len(scores)), key=lambda index: float(scores[index].sum()))
    gain = scores[best] - scores[0]
    doubt = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return _FACTORS[best] if float(gain.mean()) > doubt else 0.0
