"""From readings to an image with error bars, in one call."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from coset.errors import CosetError, require_counts, require_kind
from coset.progress import reporting, within
from coset.tomography.checks import (
    check_network,
    check_scan,
    checked_noise,
    checked_readings,
    fit_warnings,
)
from coset.tomography.deep_image_prior import DeepImagePrior, Fitted, fit_images, image_network
from coset.tomography.evidence import Tuned, tune
from coset.tomography.linear_model import linear_model
from coset.tomography.observed import Noise, observe
from coset.tomography.posterior import ImagePosterior
from coset.tomography.priors import ImagePrior, NormalisedFeatures, TotalVariationInformed
from coset.tomography.scans import Scan
from coset.vocabulary import Progress


@dataclass(frozen=True)
class Reconstruction:
    """An image and what is known about it.

    Attributes:
        image: The posterior mean.
        standard_deviation: Of every pixel.
        samples: Draws from the posterior.
        noise: Standard deviation of the noise of readings: learnt, given, or for counts the
            typical one of a line integral, with the dispersion that was learnt.
        log_evidence: Of the readings under the linearised model; of those that the scales were
            tuned on, where there are too many for exact algebra.
        covariance: Of all pixels, row by row, where memory allows.
        from_prior: For every pixel the share of its variance that is of what the readings do not
            see; the rest is their noise.  ``None`` where there is no closed form.
        network_image: The image of the fitted network, before linearising it.
        network: The fitted network.
        tuned: Scales of the prior and how they were found.
        path: Which linear algebra was used, and why.
        warnings: What seems wrong with the readings or the fit.
    """

    image: Float[Tensor, "size size"]
    standard_deviation: Float[Tensor, "size size"]
    samples: Float[Tensor, "m size size"]
    noise: float
    log_evidence: float
    covariance: Float[Tensor, "pixels pixels"] | None
    network_image: Float[Tensor, "size size"]
    network: Fitted
    tuned: Tuned
    path: str
    warnings: tuple[str, ...] = ()
    from_prior: Float[Tensor, "size size"] | None = None

    def region(self, inside: Bool[Tensor, "size size"]) -> tuple[float, float]:
        """Mean and standard deviation of the mean over a region.

        ``aᵀ m`` and ``√(aᵀ C a)`` with ``a`` the region's indicator over its area; from samples
        where the covariance is not kept.

        Args:
            inside: True for the pixels of the region.
        """
        if inside.shape != self.image.shape or inside.dtype != torch.bool or not inside.any():
            raise CosetError(
                f"got a region of shape {tuple(inside.shape)} and type {inside.dtype}",
                f"needed true and false of shape {tuple(self.image.shape)}, some of it true",
            )
        mean = float(self.image[inside].double().mean())
        flat = inside.flatten()
        if self.covariance is not None:
            return mean, float(self.covariance[flat][:, flat].double().mean().clamp_min(0).sqrt())
        if len(self.samples) < 2:
            raise CosetError(
                "got a reconstruction without covariance or samples",
                "needed one of them for an interval",
                "reconstruct with samples=100",
            )
        return mean, float(self.samples[:, inside].double().mean(1).std())


def reconstruct(
    readings: Float[Tensor, "angles bins"],
    scan: Scan,
    *,
    network: nn.Module | None = None,
    prior: ImagePrior = TotalVariationInformed(),
    noise: Noise = "gaussian",
    samples: int = 0,
    generator: torch.Generator | None = None,
    fitting: DeepImagePrior = DeepImagePrior(),
    missing: str = "refuse",
    memory: int = 4 << 30,
    progress: Progress | bool | None = None,
) -> Reconstruction:
    """The image behind readings, with the uncertainty of a linearised deep image prior.

    A network is fitted to the readings (:class:`DeepImagePrior`), then replaced by its tangent in
    the weights of its convolutions, whose prior variances maximise the evidence of the readings.

    Args:
        readings: Line integrals, or counts if ``noise`` is :class:`Poisson`; angle by angle.
        scan: How they were made.
        network: Untrained, from images to images (1, 1, size, size); ``None``:
            :func:`image_network`.
        prior: Of the linearised image.
        noise: ``"gaussian"`` with a size that is learnt, a standard deviation, or
            ``Poisson(photons)``.
        samples: Draws from the posterior.
        generator: Draws everything random; ``None``: seed 0.
        fitting: How the network is fitted.
        missing: ``"nan"``: readings that are NaN are left out; ``"refuse"``: they are refused.
        memory: Bytes that the linear algebra may take.
        progress: Told of the work done, see :mod:`coset.progress`.
    """
    require_kind(Scan, scan=scan)
    require_kind(ImagePrior, prior=prior)
    require_counts(0, samples=samples)
    require_counts(memory=memory)
    noise = checked_noise(noise)
    grid = checked_readings(readings, scan, noise, missing)
    check_scan(scan, memory)
    if network is not None:
        check_network(network, scan.size)
    random = torch.Generator().manual_seed(0) if generator is None else generator
    require_kind(torch.Generator, generator=random)
    with reporting(progress) as listener:
        return _reconstructed(
            grid,
            scan,
            image_network(scan.size) if network is None else network,
            fitting,
            noise,
            prior=prior,
            samples=samples,
            generator=random,
            memory=memory,
            tell=listener or (lambda fraction, text: None),
        )


def _reconstructed(
    grid: Float[Tensor, "angles bins"],
    scan: Scan,
    module: nn.Module,
    fitting: DeepImagePrior,
    noise_kind: Noise,
    *,
    prior: ImagePrior,
    samples: int,
    generator: torch.Generator,
    memory: int,
    tell: Progress,
) -> Reconstruction:
    """The work of :func:`reconstruct`, on input that has been checked."""
    tell(0.0, "first estimate")
    observed = observe(grid, scan, noise_kind, memory=memory // 2)
    (fitted,) = fit_images(
        module,
        [observed],
        fitting,
        generator=generator,
        progress=within(tell, 0.02, 0.5, "network"),
    )
    tell(0.5, "derivatives of the network")
    model = linear_model(
        fitted, observed, normalised=isinstance(prior, NormalisedFeatures), memory=memory
    )
    tell(0.6, "matrices of the evidence")
    problem = model.problem(prior)
    tell(0.7, "evidence")
    tuned = tune(
        problem,
        prior,
        level=observed.level,
        progress=lambda step: tell(min(0.7 + step / 500, 0.9), f"evidence, step {step}"),
    )
    tell(0.9, "posterior")
    posterior = model.posterior(
        problem,
        tuned.scales,
        samples=samples,
        generator=generator,
        progress=within(tell, 0.9, 1.0, "posterior"),
    )
    tell(1.0, "done")
    unit, size = observed.unit, scan.size
    found = posterior.scaled(unit)

    def picture(flat: Tensor) -> Tensor:
        return flat.to(grid.dtype).reshape(*flat.shape[:-1], size, size)

    noise = unit * float(problem.noise_variances(tuned.scales).median().sqrt())
    return Reconstruction(
        image=picture(found.mean),
        standard_deviation=picture(found.variance.sqrt()),
        samples=picture(found.samples),
        noise=noise,
        log_evidence=tuned.log_evidence - len(problem.residual) * math.log(unit),
        covariance=None if found.covariance is None else found.covariance.to(grid.dtype),
        from_prior=None if found.from_noise is None else picture(_from_prior(found)),
        network_image=picture(unit * fitted.image.flatten()),
        network=fitted,
        tuned=tuned,
        path=model.plan.sentence,
        warnings=fit_warnings(
            grid, scan, noise, residual=math.sqrt(fitted.misfit / observed.level)
        ),
    )


def _from_prior(posterior: ImagePosterior) -> Float[Tensor, " pixels"]:
    assert posterior.from_noise is not None
    tiny = torch.finfo(posterior.variance.dtype).tiny
    return (1 - posterior.from_noise / posterior.variance.clamp_min(tiny)).clamp(0, 1)
