"""The tangent of a fitted network as a linear model of the readings, in what memory there is."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.tomography.deep_image_prior import Fitted
from coset.tomography.evidence import EvidenceProblem, Scales
from coset.tomography.features import Features, blocks_of, whole_of
from coset.tomography.iterative_posterior import iterative_posterior
from coset.tomography.observed import Observed
from coset.tomography.posterior import ImagePosterior, exact_posterior
from coset.tomography.priors import ImagePrior, TotalVariationInformed
from coset.tomography.products import SparseOperator
from coset.tomography.taps import TAPS, gram, own
from coset.tomography.total_variation import edges
from coset.vocabulary import Progress

_EDGES = 4096
"""Neighbouring pixels that the expected total variation is found from, at most."""

_TUNED, _LEAST = 1000, 100
"""Readings that scales are tuned on where all are too many: at most, and at least."""

_SAMPLES = 64
"""Samples that standard deviations are found from where there is no closed form, at least."""


@dataclass(frozen=True)
class Plan:
    """What fits into memory.

    Attributes:
        tuned_on: Readings that derivatives and evidence are kept for; all, unless too many.
        keeps_pixels: Whether derivatives of all pixels and their covariance are kept.
        sentence: What is done, and why.
    """

    tuned_on: int
    keeps_pixels: bool
    sentence: str


@dataclass(frozen=True)
class LinearModel:
    """``y = A (f + J (θ - θ~)) + noise`` with derivatives of readings in memory.

    Attributes:
        features: The derivatives as products.
        observed: All readings.
        tuned: Those that the evidence is of.
        pixels: Derivatives of all pixels, where memory allows.
        readings: Derivatives of the readings in ``tuned``.
        plan: What is done where, and why.
    """

    features: Features
    observed: Observed
    tuned: Observed
    pixels: list[Float[Tensor, "pixels filters taps"]] | None
    readings: list[Float[Tensor, "readings filters taps"]]
    plan: Plan

    def problem(self, prior: ImagePrior) -> EvidenceProblem:
        """The evidence of the readings."""
        return evidence_problem(self.features, self.tuned, self.pixels, self.readings, prior)

    def posterior(
        self,
        problem: EvidenceProblem,
        scales: Scales,
        *,
        samples: int,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> ImagePosterior:
        """The image given all readings: in closed form, or by conjugate gradients."""
        observed, features = self.observed, self.features
        if self.plan.tuned_on < len(observed.values):
            found = iterative_posterior(
                features,
                observed,
                scales,
                samples=max(samples, _SAMPLES),
                generator=generator,
                progress=progress,
            )
            return replace(found, samples=found.samples[:samples])
        every = torch.eye(observed.size**2)
        return exact_posterior(
            features,
            features.chunks(every) if self.pixels is None else [self.pixels],
            self.readings,
            observed.operator,
            problem,
            scales,
            samples=samples,
            dense=self.plan.keeps_pixels,
            generator=generator,
        )


def linear_model(
    fitted: Fitted, observed: Observed, *, normalised: bool = False, memory: int = 4 << 30
) -> LinearModel:
    """The tangent at a fitted network.

    Args:
        fitted: The network.
        observed: Its readings.
        normalised: Whether each weight is measured by its effect on readings (the g-prior).
        memory: Bytes that may be taken.
    """
    blocks = whole_of(fitted.network) if normalised else blocks_of(fitted.network)
    features = Features(fitted, blocks)
    plan = planned(features, len(observed.values), memory)
    tuned = observed.some(plan.tuned_on)
    if plan.keeps_pixels:
        pixels = features.rows(torch.eye(observed.size**2))
        readings = [_projected(tuned.operator, rows) for rows in pixels]
    else:
        pixels = None
        readings = features.rows(tuned.operator.adjoint(torch.eye(len(tuned.values))))
    if normalised:
        features = features.measured(readings)
        readings = features.in_units(readings)
        pixels = None if pixels is None else features.in_units(pixels)
    return LinearModel(features, observed, tuned, pixels, readings, plan)


def planned(features: Features, readings: int, memory: int) -> Plan:
    """Estimates memory before any of it is taken.

    The matrices of the evidence take ``8 · readings²`` bytes for each distance class, derivatives
    ``4`` or ``8`` bytes a weight and reading, and again for pixels.  Too many readings for that are
    solved for by conjugate gradients, with scales tuned on a part of them.
    """
    weights = features.count
    matrices = sum(6 if block.taps == TAPS else 1 for block in features.blocks)
    item = features.fitted.image.element_size()

    def needed(count: int) -> int:
        return 8 * count**2 * (matrices + 3) + (item + 8) * count * weights

    evidence = needed(readings)
    pixels = features.fitted.image.numel()
    dense = (item + 8) * pixels * weights + 16 * pixels**2
    if evidence > memory:
        part = min(_TUNED, readings)
        while part >= _LEAST and needed(part) > memory:
            part = part * 9 // 10
        if part < _LEAST:
            raise CosetError(
                f"got {readings} readings and {weights} weights, whose matrices take "
                f"{evidence / 2**30:.1f} GiB, and {needed(_LEAST) / 2**30:.1g} GiB for "
                f"{_LEAST} readings alone",
                f"needed at most memory={memory / 2**30:.1g} GiB",
                "give more memory, or a narrower network",
            )
        return Plan(
            part,
            False,
            f"Exact linear algebra over {readings} readings would take {evidence / 2**30:.1f} GiB, "
            f"more than the {memory / 2**30:.1f} GiB allowed: scales are tuned on {part} random "
            "readings, the image is found from all of them by conjugate gradients, and standard "
            f"deviations from {_SAMPLES} samples or more (each is known to within 9 %).",
        )
    if evidence + dense <= memory:
        return Plan(
            readings,
            True,
            f"Exact linear algebra over {readings} readings and {pixels} pixels "
            f"({(evidence + dense) / 2**30:.1f} GiB).",
        )
    return Plan(
        readings,
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
        dispersed=observed.counts is not None and observed.dispersion is None,
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
