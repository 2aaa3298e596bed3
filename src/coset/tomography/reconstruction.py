"""From readings to an image with error bars, in one call."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from coset.errors import CosetError, require_counts, require_kind
from coset.tomography.checks import checked_noise, checked_readings, fit_warnings
from coset.tomography.deep_image_prior import DeepImagePrior, Fitted, fit_images, image_network
from coset.tomography.evidence import EvidenceProblem, Tuned, tune
from coset.tomography.features import Features, blocks_of
from coset.tomography.observed import Noise, Observed, observe
from coset.tomography.posterior import exact_posterior
from coset.tomography.priors import ImagePrior, TotalVariationInformed
from coset.tomography.scans import Scan
from coset.tomography.taps import TAPS, gram, own
from coset.tomography.total_variation import edges
from coset.vocabulary import Progress

_EDGES = 4096
"""Neighbouring pixels that the expected total variation is found from, at most."""


@dataclass(frozen=True)
class Reconstruction:
    """An image and what is known about it.

    Attributes:
        image: The posterior mean.
        standard_deviation: Of every pixel.
        samples: Draws from the posterior.
        noise: Standard deviation of the noise of readings: learnt, given, or for counts the
            typical one of a line integral.
        log_evidence: Of the readings under the linearised model.
        covariance: Of all pixels, row by row, where memory allows.
        network_image: The image of the fitted network, before linearising it.
        network: The fitted network.
        tuned: Scales of the prior and how they were found.
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
    warnings: tuple[str, ...] = ()

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
    progress: Progress | None = None,
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
        progress: Told of the work done.
    """
    require_kind(Scan, scan=scan)
    require_kind(ImagePrior, prior=prior)
    require_counts(0, samples=samples)
    require_counts(memory=memory)
    tell = progress or (lambda fraction, line: None)
    random = torch.Generator().manual_seed(0) if generator is None else generator
    noise = checked_noise(noise)
    found = checked_readings(readings, scan, noise, missing)
    tell(0.0, "first estimate")
    observed = observe(found, scan, noise)
    module = image_network(scan.size) if network is None else network
    (fitted,) = fit_images(
        module, [observed], fitting, generator=random, progress=_part(tell, 0.02, 0.5)
    )
    tell(0.5, "derivatives of the network")
    return _linearised(
        fitted, observed, prior, scan, found.dtype, samples, random, memory, tell,
        fit_warnings(found, scan, noise),
    )  # fmt: skip


def _linearised(
    fitted: Fitted,
    observed: Observed,
    prior: ImagePrior,
    scan: Scan,
    dtype: torch.dtype,
    samples: int,
    generator: torch.Generator,
    memory: int,
    tell: Progress,
    warnings: tuple[str, ...],
) -> Reconstruction:
    size = scan.size
    features = Features(fitted, blocks_of(fitted.network))
    pixels = features.rows(torch.eye(size**2))
    readings = [
        observed.operator.forward(rows.flatten(1).mT.contiguous()).mT.unflatten(1, rows.shape[1:])
        for rows in pixels
    ]
    tell(0.6, "matrices of the evidence")
    problem = evidence_problem(features, observed, pixels, readings, prior)
    tell(0.7, "evidence")
    tuned = tune(
        problem,
        prior,
        level=observed.level,
        progress=lambda step: tell(min(0.7 + step / 500, 0.9), f"evidence, step {step}"),
    )
    tell(0.9, "posterior")
    posterior = exact_posterior(
        features,
        [pixels],
        readings,
        observed.operator,
        problem,
        tuned.scales,
        samples=samples,
        dense=True,
        generator=generator,
    )
    tell(1.0, "done")
    unit = observed.unit
    known = problem.noise_variances(tuned.scales)
    count = len(problem.residual)

    def picture(flat: Tensor) -> Tensor:
        return (unit * flat).to(dtype).reshape(*flat.shape[:-1], size, size)

    return Reconstruction(
        image=picture(posterior.mean),
        standard_deviation=picture(posterior.variance.sqrt()),
        samples=picture(posterior.samples),
        noise=unit * float(known.median().sqrt()),
        log_evidence=tuned.log_evidence - count * float(torch.tensor(unit).double().log()),
        covariance=None
        if posterior.covariance is None
        else (unit**2 * posterior.covariance).to(dtype),
        network_image=picture(fitted.image.flatten()),
        network=fitted,
        tuned=tuned,
        warnings=warnings,
    )


def evidence_problem(
    features: Features,
    observed: Observed,
    pixels: list[Float[Tensor, "pixels filters taps"]],
    readings: list[Float[Tensor, "readings filters taps"]],
    prior: ImagePrior,
) -> EvidenceProblem:
    """Readings of the linear model and the matrices that its covariance is a sum of."""
    image = fitted_image(features)
    projected = observed.operator.forward(image)
    values, variance = observed.gaussian(projected)
    change = torch.zeros_like(values)
    for rows, weights in zip(readings, features.weights(), strict=True):
        change += rows.flatten(1).double() @ weights.flatten().double()
    pairs = edges(observed.size)
    differences = [rows[pairs[:, 0]] - rows[pairs[:, 1]] for rows in pixels]
    strength = 1.0
    if isinstance(prior, TotalVariationInformed):
        strength = prior.strength * features.fitted.weight * len(values)
    return EvidenceProblem(
        grams=tuple(_class_grams(rows) for rows in readings),
        residual=values - projected + change,
        noise=variance,
        edge_means=image[pairs[:, 0]] - image[pairs[:, 1]],
        edge_variances=tuple(_class_squares(rows) for rows in differences),
        edge_weight=1.0,
        strength=strength,
        network_residual=values - projected,
        outer=tuple(w.double().mT @ w.double() for w in features.weights()),
    )


def fitted_image(features: Features) -> Float[Tensor, " pixels"]:
    """The network's image, flat, in double precision."""
    return features.fitted.image.double().flatten()


def _class_grams(rows: Float[Tensor, "n filters taps"]) -> Float[Tensor, "classes n n"]:
    if rows.shape[2] == TAPS:
        return gram(rows)
    flat = rows.flatten(1).double()
    return (flat @ flat.mT)[None]


def _class_squares(rows: Float[Tensor, "n filters taps"]) -> Float[Tensor, "classes n"]:
    if rows.shape[2] == TAPS:
        return own(rows)
    return rows.flatten(1).double().square().sum(1)[None]


def _part(tell: Progress, start: float, end: float) -> Callable[[float, str], None]:
    return lambda fraction, line: tell(start + (end - start) * fraction, line)
