"""From readings to an image with error bars, in one call."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from coset.errors import CosetError, require_counts, require_kind
from coset.progress import reporting, within
from coset.tomography.checks import checked_noise, checked_readings, fit_warnings
from coset.tomography.deep_image_prior import DeepImagePrior, Fitted, fit_images, image_network
from coset.tomography.evidence import EvidenceProblem, Tuned, tune
from coset.tomography.features import Features, blocks_of, whole_of
from coset.tomography.observed import Noise, Observed, observe
from coset.tomography.posterior import ImagePosterior, exact_posterior
from coset.tomography.priors import ImagePrior, NormalisedFeatures, TotalVariationInformed
from coset.tomography.products import SparseOperator
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
    random = torch.Generator().manual_seed(0) if generator is None else generator
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
    observed = observe(grid, scan, noise_kind)
    (fitted,) = fit_images(
        module,
        [observed],
        fitting,
        generator=generator,
        progress=within(tell, 0.02, 0.5, "network"),
    )
    tell(0.5, "derivatives of the network")
    posterior, problem, tuned, path = _linearised(
        fitted,
        observed,
        scan,
        prior=prior,
        samples=samples,
        generator=generator,
        memory=memory,
        tell=tell,
    )
    tell(1.0, "done")
    unit, size = observed.unit, scan.size

    def picture(flat: Tensor) -> Tensor:
        return (unit * flat).to(grid.dtype).reshape(*flat.shape[:-1], size, size)

    covariance = posterior.covariance
    noise = unit * float(problem.noise_variances(tuned.scales).median().sqrt())
    return Reconstruction(
        image=picture(posterior.mean),
        standard_deviation=picture(posterior.variance.sqrt()),
        samples=picture(posterior.samples),
        noise=noise,
        log_evidence=tuned.log_evidence - len(problem.residual) * math.log(unit),
        covariance=None if covariance is None else (unit**2 * covariance).to(grid.dtype),
        network_image=picture(fitted.image.flatten()),
        network=fitted,
        tuned=tuned,
        path=path,
        warnings=fit_warnings(grid, scan, noise),
    )


def _linearised(
    fitted: Fitted,
    observed: Observed,
    scan: Scan,
    *,
    prior: ImagePrior,
    samples: int,
    generator: torch.Generator,
    memory: int,
    tell: Progress,
) -> tuple[ImagePosterior, EvidenceProblem, Tuned, str]:
    """Scales and posterior, with derivatives of all readings in memory."""
    normalised = isinstance(prior, NormalisedFeatures)
    blocks = whole_of(fitted.network) if normalised else blocks_of(fitted.network)
    features = Features(fitted, blocks)
    plan = planned(features, observed, memory)
    if plan.keeps_pixels:
        pixels = features.rows(torch.eye(scan.size**2))
        readings = [_projected(observed.operator, rows) for rows in pixels]
    else:
        pixels = None
        readings = features.rows(observed.operator.adjoint(torch.eye(len(observed.values))))
    if normalised:
        features = features.measured(readings)
        readings = features.in_units(readings)
        pixels = None if pixels is None else features.in_units(pixels)
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
        features.chunks(torch.eye(scan.size**2)) if pixels is None else [pixels],
        readings,
        observed.operator,
        problem,
        tuned.scales,
        samples=samples,
        dense=plan.keeps_pixels,
        generator=generator,
    )
    return posterior, problem, tuned, plan.sentence


@dataclass(frozen=True)
class Plan:
    """What fits into memory.

    Attributes:
        keeps_pixels: Whether derivatives of all pixels and their covariance are kept.
        sentence: What is done, and why.
    """

    keeps_pixels: bool
    sentence: str


def planned(features: Features, observed: Observed, memory: int) -> Plan:
    """Estimates memory before any of it is taken.

    The matrices of the evidence take ``8 · readings²`` bytes for each distance class, derivatives
    ``4`` or ``8`` bytes a weight and reading, and again for pixels.
    """
    weights, readings = features.count, len(observed.values)
    matrices = sum(6 if block.taps == TAPS else 1 for block in features.blocks)
    item = features.fitted.image.element_size()
    evidence = 8 * readings**2 * (matrices + 3) + (item + 8) * readings * weights
    pixels = observed.size**2
    dense = (item + 8) * pixels * weights + 16 * pixels**2
    if evidence > memory:
        raise CosetError(
            f"got {readings} readings and {weights} weights, whose matrices take "
            f"{evidence / 2**30:.1f} GiB",
            f"needed at most memory={memory / 2**30:.1f} GiB",
            "give more memory, fewer readings, or a narrower network",
        )
    if evidence + dense <= memory:
        return Plan(
            True,
            f"Exact linear algebra over {readings} readings and {pixels} pixels "
            f"({(evidence + dense) / 2**30:.1f} GiB).",
        )
    return Plan(
        False,
        f"Exact linear algebra over {readings} readings ({evidence / 2**30:.1f} GiB); the "
        f"covariance of all {pixels} pixels would take {dense / 2**30:.1f} GiB more and was left "
        "out.",
    )


def evidence_problem(
    features: Features,
    observed: Observed,
    pixels: list[Float[Tensor, "pixels filters taps"]] | None,
    readings: list[Float[Tensor, "readings filters taps"]],
    prior: ImagePrior,
) -> EvidenceProblem:
    """Readings of the linear model and the matrices that its covariance is a sum of."""
    image = features.fitted.image.double().flatten()
    projected = observed.operator.forward(image)
    values, variance = observed.gaussian(projected)
    change = torch.zeros_like(values)
    for rows, weights in zip(readings, features.weights(), strict=True):
        change += rows.flatten(1).double() @ weights.flatten().double()
    pairs = edges(observed.size)
    every = len(pairs)
    if pixels is not None:
        differences = [rows[pairs[:, 0]] - rows[pairs[:, 1]] for rows in pixels]
    else:
        random = torch.Generator().manual_seed(0)
        pairs = pairs[torch.randperm(every, generator=random)[:_EDGES]]
        places = torch.arange(len(pairs))
        forms = torch.zeros(len(pairs), observed.size**2)
        forms[places, pairs[:, 0]], forms[places, pairs[:, 1]] = 1.0, -1.0
        differences = features.rows(forms)
    strength = 1.0
    if isinstance(prior, TotalVariationInformed):
        strength = prior.strength * features.fitted.weight * len(values)
    return EvidenceProblem(
        blocks=tuple(block.name for block in features.blocks),
        grams=tuple(_class_grams(rows) for rows in readings),
        residual=values - projected + change,
        noise=variance,
        edge_means=image[pairs[:, 0]] - image[pairs[:, 1]],
        edge_variances=tuple(_class_squares(rows) for rows in differences),
        edge_weight=every / len(pairs),
        strength=strength,
        network_residual=values - projected,
        outer=tuple(w.double().mT @ w.double() for w in features.weights()),
    )


def _projected(
    operator: SparseOperator, rows: Float[Tensor, "pixels filters taps"]
) -> Float[Tensor, "readings filters taps"]:
    flat = rows.flatten(1).mT.contiguous()
    return operator.forward(flat).mT.reshape(-1, *rows.shape[1:])


def _class_grams(rows: Float[Tensor, "n filters taps"]) -> Float[Tensor, "classes n n"]:
    if rows.shape[2] == TAPS:
        return gram(rows)
    flat = rows.flatten(1).double()
    return (flat @ flat.mT)[None]


def _class_squares(rows: Float[Tensor, "n filters taps"]) -> Float[Tensor, "classes n"]:
    if rows.shape[2] == TAPS:
        return own(rows)
    return rows.flatten(1).double().square().sum(1)[None]
