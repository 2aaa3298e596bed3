"""Targets of a regression where the outputs of the network are Gaussian: moments and scores."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import (
    derivative_of_mean,
    has_constant_curvature,
    hessian,
    link_of,
    noise_variance,
    weight_of,
)
from coset.bayes.likelihood import Likelihood

_DRAWS = 1024
"""Draws of outputs where there is no closed form: a standard error of a thirtieth of the spread."""

_ENTRIES = 1 << 24
"""Entries of the draws that are alive together."""

Moments = tuple[Float[Tensor, "n k"], Float[Tensor, "n k"] | None]


def target_moments(
    likelihood: Likelihood, mean: Float[Tensor, "n c"], covariance: Float[Tensor, "n c c"]
) -> Moments:
    """Mean and variance of the target, ``f ~ N(mean, covariance)``; ``None``: noise is unknown.

    ``E y = E m(f)`` and ``var y = var m(f) + E noise(f)``: in closed form where ``m`` is linear,
    else over draws of ``f``, always the same.

    >>> from coset import GaussianNoise
    >>> one = torch.ones(1, 1)
    >>> target_moments(GaussianNoise(2.0), one, 3 * one.unsqueeze(0))
    (tensor([[1.]]), tensor([[7.]]))
    """
    if link_of(likelihood, mean) != "linear":
        return _moments_of_draws(likelihood, mean, covariance)
    centre = likelihood.mean(mean)
    own: Callable[[Tensor, Tensor], Tensor] | None
    own = getattr(likelihood, "predictive_variance", None)
    if own is not None:
        return centre, own(mean, covariance)
    noise = noise_variance(likelihood, mean)
    if noise is None:
        return centre, None
    if centre.shape == mean.shape and bool((centre == mean).all()):
        return centre, covariance.diagonal(dim1=1, dim2=2) + noise
    slopes = derivative_of_mean(likelihood, mean)
    return centre, ((slopes @ covariance) * slopes).sum(2) + noise


def _moments_of_draws(likelihood: Likelihood, mean: Tensor, covariance: Tensor) -> Moments:
    found, variances = [], []
    few = max(1, _ENTRIES // (_DRAWS * mean.shape[1]))
    for some, spread in zip(mean.split(few), covariance.split(few), strict=True):
        outputs = _draws(some, spread)
        flat = outputs.flatten(0, 1)
        means = likelihood.mean(flat).unflatten(0, outputs.shape[:2])
        noise = noise_variance(likelihood, flat)
        found.append(means.mean(0))
        if noise is not None:
            variances.append(means.var(0) + noise.unflatten(0, outputs.shape[:2]).mean(0))
    known = len(variances) == len(found)
    return torch.cat(found), torch.cat(variances) if known else None


def _draws(mean: Tensor, covariance: Tensor) -> Float[Tensor, "m n c"]:
    """Outputs in pairs around their mean; all examples and covariances see the same numbers."""
    generator = torch.Generator().manual_seed(0)
    count = _DRAWS // 2, 1, mean.shape[1], 1
    noise = torch.randn(count, generator=generator, dtype=torch.float64).to(mean)
    values, vectors = torch.linalg.eigh(covariance)  # may be singular: no Cholesky
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(1)
    change = (root @ noise).squeeze(-1)
    return torch.cat([mean + change, mean - change])


def log_score(
    likelihood: Likelihood,
    mean: Float[Tensor, "n c *pixels"],
    covariance: Float[Tensor, "n c c *pixels"],
    prediction: Float[Tensor, "n k *pixels"],
    variance: Float[Tensor, "n k *pixels"] | None,
    targets: Tensor,
) -> Float[Tensor, " n"]:
    """Logarithm of the predictive density of the targets of each example.

    Classes and yes or no: that of the predicted probabilities.  Regression: a Gaussian with the
    predicted moments.  Anything else: ``log E p(y | f)`` over draws of the outputs.

    Args:
        likelihood: How outputs and targets meet.
        mean: Of the outputs.
        covariance: Of the outputs.
        prediction: The predicted mean of the target.
        variance: The predicted variance of the target.
        targets: What it was.
    """
    link, tiny = link_of(likelihood, mean), torch.finfo(prediction.dtype).tiny
    if link == "softmax":
        return likelihood.log_prob(prediction.clamp_min(tiny).log(), targets)
    if link == "sigmoid":
        yes, no = (chance.clamp_min(tiny).log() for chance in (prediction, 1 - prediction))
        return likelihood.log_prob(yes - no, targets)
    if link == "other" or variance is None:
        return _score_of_draws(likelihood, mean, covariance, targets)
    targets = targets.reshape(prediction.shape)
    weight = weight_of(likelihood, prediction, targets)
    joint = None if weight is not None else _correlated_noise(likelihood, mean, targets)
    if joint is not None:
        pixels = covariance.movedim((1, 2), (-2, -1))
        total = torch.linalg.cholesky(pixels + joint)
        normal = torch.distributions.MultivariateNormal(prediction.movedim(1, -1), scale_tril=total)
        scores: Tensor = normal.log_prob(targets.movedim(1, -1))
        return scores.reshape(len(mean), -1).sum(1)
    std = variance.clamp_min(tiny).sqrt()
    scores = ((targets - prediction) / std).square() + 2 * std.log() + math.log(2 * math.pi)
    if weight is not None:
        scores = torch.where(weight > 0, scores * weight, 0)
    return -scores.flatten(1).sum(1) / 2


def _correlated_noise(likelihood: Likelihood, mean: Tensor, targets: Tensor) -> Tensor | None:
    """The covariance of Gaussian noise, where it is correlated between outputs."""
    if mean.shape != targets.shape or not has_constant_curvature(likelihood, mean, targets):
        return None
    found = hessian(likelihood, mean, targets)
    if bool((found == torch.diag_embed(found.diagonal(dim1=-2, dim2=-1))).all()):
        return None
    noise: Tensor = torch.linalg.inv(found)
    return noise


def _score_of_draws(
    likelihood: Likelihood, mean: Tensor, covariance: Tensor, targets: Tensor
) -> Float[Tensor, " n"]:
    pixels = tuple(mean.shape[2:])
    flat = mean.movedim(1, -1).reshape(-1, mean.shape[1])
    spread = covariance.movedim((1, 2), (-2, -1)).reshape(*flat.shape, -1)
    scores = []
    for drawn in _draws(flat, spread):
        outputs = drawn.reshape(len(mean), *pixels, -1).movedim(-1, 1)
        scores.append(likelihood.log_prob(outputs, targets))
    return torch.stack(scores).logsumexp(0) - math.log(len(scores))
