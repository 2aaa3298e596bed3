"""Other ways to error bars on the same readings, to hold a linearised deep image prior against.

Each gives an :class:`ImagePosterior` in the units of :class:`Observed`.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import require_counts
from coset.linalg.cholesky import cholesky
from coset.posterior.random_masks import RandomMasks
from coset.tomography.deep_image_prior import DeepImagePrior, Fitted, fit_images, mask_sites
from coset.tomography.observed import Observed
from coset.tomography.posterior import ImagePosterior
from coset.tomography.scoring import image_floor
from coset.tomography.total_variation import edges
from coset.vocabulary import Progress

_ROUNDS, _SETTLED = 60, 1e-5
"""Rounds of reweighted least squares at most, and the relative change at which they stop."""

_SMALLEST_STEP = 1e-2
"""Differences of neighbours below this, of the largest value, count as none."""


def constant_noise(fitted: Fitted, observed: Observed, *, noise: float) -> ImagePosterior:
    """The network's image with one variance for all pixels.

    Args:
        fitted: The network.
        observed: The readings.
        noise: Standard deviation of the noise of readings, in the units of ``observed``.
    """
    mean = fitted.image.double().flatten()
    variance = torch.full_like(mean, image_floor(observed.operator, noise))
    return ImagePosterior(mean, variance, mean[None, :0].reshape(0, len(mean)), variance.diag())


def pixel_process(observed: Observed) -> ImagePosterior:
    """A Gaussian process on pixels with an exponential kernel, tuned by its evidence."""
    covariance = observed.start.covariance()
    mean = observed.start.mean
    none = mean.new_zeros(0, len(mean))
    return ImagePosterior(mean, covariance.diagonal().clamp_min(0), none, covariance)


def total_variation_image(observed: Observed) -> ImagePosterior:
    """The mode under a prior of total variation, and the Gaussian that touches it there.

    ``min ½ ‖A x - y‖² / noise + λ Σ √(D² + ε²)`` by reweighted least squares.  Prior and image
    agree where ``λ = pixels / TV(x)`` (Pereyra, Bioucas-Dias and Figueiredo 2015).  The covariance
    is the inverse of ``Aᵀ A / noise + λ Dᵀ W D`` with ``W = 1 / √(D² + ε²)``.
    """
    size = observed.size
    values, variance = observed.gaussian(observed.operator.forward(observed.start.mean))
    noise = observed.start.noise if variance is None else variance
    rows = observed.operator.adjoint(torch.eye(len(values)).double()) / noise.sqrt()[:, None]
    curvature, pulled = rows.mT @ rows, rows.mT @ (values / noise.sqrt())
    pairs = edges(size)
    image = observed.start.mean.double()
    for _ in range(_ROUNDS):
        steps = image[pairs[:, 0]] - image[pairs[:, 1]]
        smooth = (steps.square() + _SMALLEST_STEP**2).sqrt()
        strength = size**2 / smooth.sum()
        weights = strength / smooth
        precision = curvature + _between(pairs, weights, size**2)
        factor = cholesky(precision)
        found = torch.cholesky_solve(pulled[:, None], factor)[:, 0]
        change = float((found - image).norm() / found.norm())
        image = found
        if change < _SETTLED:
            break
    covariance = torch.cholesky_inverse(factor)
    none = image.new_zeros(0, len(image))
    return ImagePosterior(image, covariance.diagonal().clone(), none, covariance)


def _between(pairs: Tensor, weights: Float[Tensor, " edges"], count: int) -> Float[Tensor, "n n"]:
    """``Dᵀ W D`` of the differences over edges."""
    total = torch.zeros(count, count, dtype=weights.dtype)
    one, other = pairs.unbind(1)
    for i, j, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
        total.index_put_((i, j), sign * weights, accumulate=True)
    return total


def network_ensemble(
    module: nn.Module,
    observed: Observed,
    settings: DeepImagePrior,
    *,
    members: int,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> ImagePosterior:
    """Deep image priors from several starts: mean and variance of their images.

    Args:
        module: An untrained network.
        observed: The readings.
        settings: How each is fitted.
        members: How many.
        generator: Draws their weights.
        progress: Told of the work done.
    """
    require_counts(2, members=members)
    fitted = fit_images(
        module, [observed] * members, settings, generator=generator, progress=progress
    )
    return _of_samples(torch.stack([each.image.double().flatten() for each in fitted]))


def dropout_network(
    module: nn.Module,
    observed: Observed,
    settings: DeepImagePrior,
    *,
    draws: int,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> ImagePosterior:
    """A deep image prior that drops channels, while it is fitted and when it is asked.

    Without total variation, as published: masks are its only prior.

    Args:
        module: A network with dropout, as ``image_network(size, dropout=0.05)``.
        observed: The readings.
        settings: How it is fitted.
        draws: Images under random masks.
        generator: Draws weights and masks.
        progress: Told of the work done.
    """
    require_counts(2, draws=draws)
    (fitted,) = fit_images(
        module,
        [observed],
        replace(settings, total_variation=0.0),
        generator=generator,
        progress=progress,
    )
    network, inputs = fitted.network, fitted.inputs
    masks = RandomMasks(fitted.weights, mask_sites(network, fitted.weights, inputs))
    images = []
    with torch.no_grad():
        for _ in range(draws):
            stacked = masks.sample(1, generator=generator)
            member = {name: value[0] for name, value in stacked.items()}
            images.append(network.apply(member, inputs).double().flatten())
    return _of_samples(torch.stack(images))


def _of_samples(samples: Float[Tensor, "m pixels"]) -> ImagePosterior:
    return ImagePosterior(samples.mean(0), samples.var(0), samples, None)
