"""Images from projections: a linearised deep image prior beside other ways to error bars."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.metrics import peak_signal_to_noise
from coset.models import unet
from coset.studies.cells.data import pictures
from coset.studies.cells.networks import seeded
from coset.tomography import (
    ByMarginalLikelihood,
    DeepImagePrior,
    NormalisedFeatures,
    ParallelBeam,
    Poisson,
    Reconstruction,
    Simulated,
    TotalVariationInformed,
    baselines,
    choose_angles,
    image_network,
    phantoms,
    reconstruct,
    simulate,
    slices,
)
from coset.tomography.deep_image_prior import Fitted, fit_images
from coset.tomography.evidence import EvidenceProblem, Scales, Tuned, tune
from coset.tomography.linear_model import LinearModel, linear_model
from coset.tomography.observed import Observed, observe
from coset.tomography.posterior import ImagePosterior
from coset.tomography.priors import ImagePrior
from coset.tomography.scoring import image_floor, image_scores
from coset.tomography.total_variation import edges, total_variation

PRIORS: Mapping[str, ImagePrior] = {
    "tv_network": TotalVariationInformed(mean="network"),
    "tv_tangent": TotalVariationInformed(mean="tangent"),
    "ml_network": ByMarginalLikelihood(mean="network"),
    "ml_tangent": ByMarginalLikelihood(mean="tangent"),
    "g": NormalisedFeatures(),
}
"""Linearised networks by what their scales maximise, and at which weights."""

_QUANTILES = torch.arange(1, 100, dtype=torch.float64) / 100

_LENGTHS = torch.logspace(-1, 1, 13, dtype=torch.float64)
"""Lengths at which the expected total variation is shown."""


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """One part of the study."""
    if seed >= int(parameters.get("images", seed + 1)):
        return {"left_out": 1}
    if parameters["part"] == "prior":
        return _priors(parameters, seed)
    if parameters["part"] == "angles":
        return _angles(parameters, seed)
    return _image(parameters, seed)


def _image(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """One image: readings, a fitted network, and error bars by every method asked for."""
    scan = ParallelBeam(int(parameters["size"]), int(parameters["angles"]))
    photons = parameters.get("photons")
    made = _readings(parameters, scan, seed)
    dispersion = None if parameters.get("dispersion") == "learnt" else 1.0
    noise = Poisson(float(photons), dispersion) if photons else "gaussian"
    observed = observe(made.readings, scan, noise)
    settings = DeepImagePrior(
        steps=int(parameters["steps"]), stop=parameters.get("stop", "discrepancy")
    )
    (fitted,) = fit_images(
        _network(parameters), [observed], settings, generator=seeded(seed, "network")
    )
    trial = _Trial(parameters, seed, scan, made, observed, settings, fitted)
    values: dict[str, Any] = {
        "control_adjoint": _adjoint_gap(scan, seed),
        "steps": fitted.steps,
        "psnr_fitted": trial.psnr(fitted.image.double().flatten()),
        "psnr_back_projection": trial.psnr(_back_projected(scan, made, observed, photons)),
    }
    for method in parameters["methods"]:
        values |= trial.linearised(method) if method in PRIORS else trial.baseline(method)
    return values | _comparisons(values)


def _readings(parameters: Mapping[str, Any], scan: ParallelBeam, seed: int) -> Simulated:
    """Readings of a picture of a set, a real slice or a phantom; counts if photons are given."""
    size, photons = scan.size, parameters.get("photons")
    if "data" in parameters:
        image = pictures(parameters).test[0][seed, 0].double()
        image = image / image.max()
    elif parameters["image"] == "vertebra":
        image = slices.vertebra()
    else:
        draw: Callable[..., Tensor] = getattr(phantoms, parameters["image"])
        image = draw(2 * size, generator=seeded(seed, "image"))
    if photons:  # a ray through it all keeps about e^-3 of its photons
        image = image * 3 / (image.max() * size / 2)
    return simulate(
        image,
        scan,
        level=float(parameters.get("noise", 0.05)),
        photons=photons,
        generator=seeded(seed, "noise"),
    )


def _network(parameters: Mapping[str, Any], dropout: float = 0.0) -> nn.Module:
    """The published network, or the same without the sigmoid at its end."""
    width, size = int(parameters["width"]), int(parameters["size"])
    if parameters.get("network") == "unbounded":
        return unet(
            widths=(width,) * 3,
            skips=(4,) * 2,
            downsampling="strided",
            upsampling="bilinear",
            activation="leaky_relu",
            normalisation="none",
        )
    return image_network(size, width=width, dropout=dropout)


def _back_projected(
    scan: ParallelBeam, made: Simulated, observed: Observed, photons: float | None
) -> Float[Tensor, " pixels"]:
    readings = made.readings
    if photons:
        readings = -((readings + 0.5) / photons).log()
    return scan.filtered_back_projection(readings).double().flatten() / observed.unit


class _Trial:
    """One image and all that is found about it; densities are in units of the image."""

    def __init__(
        self,
        parameters: Mapping[str, Any],
        seed: int,
        scan: ParallelBeam,
        made: Simulated,
        observed: Observed,
        settings: DeepImagePrior,
        fitted: Fitted,
    ) -> None:
        self._parameters, self._seed, self._scan = parameters, seed, scan
        self._made, self._observed = made, observed
        self._settings, self._fitted = settings, fitted
        self._models: dict[bool, LinearModel] = {}
        self._problems: dict[bool, EvidenceProblem] = {}
        self._noise = 0.0

    def psnr(self, image: Float[Tensor, " pixels"]) -> float:
        """Of an image in units of the readings."""
        zero = torch.zeros_like(image)
        posterior = ImagePosterior(image, zero + 1, image[None][:0], None)
        return image_scores(posterior.scaled(self._observed.unit), self._made.truth)["psnr"]

    def linearised(self, method: str) -> dict[str, Any]:
        """Scores of a linearised network, and how its scales were found."""
        prior, model, problem = PRIORS[method], *self._linear(method == "g")
        tuned = tune(problem, prior, level=self._observed.level)
        posterior = model.posterior(
            problem, tuned.scales, samples=2, generator=seeded(self._seed, method)
        )
        unit = self._observed.unit
        self._noise = float(problem.noise_variances(tuned.scales).median().sqrt())
        values = self._scores(method, posterior)
        values[f"log_evidence_{method}"] = tuned.log_evidence
        values[f"evidence_steps_{method}"] = len(tuned.trace)
        if problem.dispersed:
            values[f"dispersion_{method}"] = float(tuned.scales.noise)
        if self._made.noise is not None:
            values[f"noise_{method}"] = unit * self._noise / self._made.noise
        if method == "tv_tangent":
            values["control_evidence"] = _evidence_gap(model, problem, tuned.scales)
        if method == self._parameters.get("shown"):
            values |= self._pictures(posterior, tuned)
            values |= _along(tuned) | _by_length(problem, tuned)
        return values

    def baseline(self, method: str) -> dict[str, Any]:
        """Scores of another way to error bars."""
        observed, parameters, seed = self._observed, self._parameters, self._seed
        if method == "constant":
            posterior = baselines.constant_noise(self._fitted, observed, noise=self._noise)
        elif method == "pixels":
            posterior = baselines.pixel_process(observed)
        elif method == "variation":
            posterior = baselines.total_variation_image(observed)
        elif method == "ensemble":
            posterior = baselines.network_ensemble(
                _network(parameters),
                observed,
                self._settings,
                members=int(parameters["members"]),
                generator=seeded(seed, method),
            )
        else:
            posterior = baselines.dropout_network(
                _network(parameters, dropout=0.05),
                observed,
                self._settings,
                draws=int(parameters["draws"]),
                generator=seeded(seed, method),
            )
        return self._scores(method, posterior)

    def _linear(self, normalised: bool) -> tuple[LinearModel, EvidenceProblem]:
        if normalised not in self._models:
            model = linear_model(self._fitted, self._observed, normalised=normalised)
            self._models[normalised] = model
            prior = NormalisedFeatures() if normalised else TotalVariationInformed()
            self._problems[normalised] = model.problem(prior)
        return self._models[normalised], self._problems[normalised]

    def _scores(self, method: str, posterior: ImagePosterior) -> dict[str, Any]:
        size, unit = self._scan.size, self._observed.unit
        floor = unit**2 * image_floor(self._observed.operator, self._observed.level**0.5)
        sides = tuple(side for side in (1, 2, 4, 7, 10) if side < size)
        joint = (*sides, size) if size <= 32 else sides
        found = posterior.scaled(unit)
        scores = image_scores(found, self._made.truth, floor=floor, sides=joint)
        values: dict[str, Any] = {
            f"{name}_{method}": value
            for name, value in scores.items()
            if not name.startswith("density_")
        }
        values["sides"] = list(joint)
        values[f"patches_{method}"] = [scores[f"density_{side}"] for side in joint]
        values[f"marginal_{method}"] = scores["density_1"]
        values[f"joint_{method}"] = scores[f"density_{joint[-1]}"]
        error = self._made.truth.double().flatten() - found.mean
        standardised = error / found.variance.clamp_min(1e-14).sqrt()
        normal = torch.special.ndtri(_QUANTILES)
        values["normal_quantiles"] = normal.tolist()
        values[f"quantiles_{method}"] = standardised.clamp(-10, 10).quantile(_QUANTILES).tolist()
        if found.covariance is not None:
            values[f"regions_{method}"] = _regions_held(found, self._made.truth)
        return values

    def _pictures(self, posterior: ImagePosterior, tuned: Tuned) -> dict[str, Any]:
        size, found = self._scan.size, posterior.scaled(self._observed.unit)
        axis = list(range(size))
        shown = {
            "truth": self._made.truth.double(),
            "image": found.mean.reshape(size, size),
            "deviation": found.variance.sqrt().reshape(size, size),
            "error": (self._made.truth.double().flatten() - found.mean).abs().reshape(size, size),
        }
        values: dict[str, Any] = {}
        for name, picture in shown.items():
            values |= {f"{name}_x": axis, f"{name}_y": axis}
            values[name] = [[float(f"{v:.4g}") for v in row] for row in picture.flip(0).tolist()]
        return values


def _regions_held(posterior: ImagePosterior, truth: Float[Tensor, "size size"]) -> float:
    """The share of square regions whose mean lies in its 95 % interval."""
    size = truth.shape[-1]
    side = max(2, size // 7)
    assert posterior.covariance is not None
    held = []
    grid = torch.arange(size**2).reshape(size, size)
    for top in range(0, size - side + 1, side):
        for left in range(0, size - side + 1, side):
            inside = grid[top : top + side, left : left + side].flatten()
            variance = float(posterior.covariance[inside][:, inside].mean())
            deviation = math.sqrt(max(variance, 0.0))
            error = float(truth.double().flatten()[inside].mean() - posterior.mean[inside].mean())
            held.append(abs(error) <= 1.959964 * deviation)
    return sum(held) / len(held)


def _comparisons(values: Mapping[str, Any]) -> dict[str, float]:
    """What claims are about: differences between methods on the same image."""

    def difference(name: str, one: str, other: str) -> dict[str, float]:
        left, right = values.get(one), values.get(other)
        return {} if left is None or right is None else {name: left - right}

    found: dict[str, float] = {}
    for mean in ("network", "tangent"):
        for other in ("dropout", "ensemble", "constant", "pixels"):
            name = f"{mean}_over_{other}"
            found |= difference(name, f"marginal_tv_{mean}", f"marginal_{other}")
    found |= difference("variation_over_evidence", "joint_tv_tangent", "joint_ml_tangent")
    found |= difference("joint_tangent_over_network", "joint_tv_tangent", "joint_tv_network")
    found |= difference("miscalibration_saved", "calibration_tv_network", "calibration_tv_tangent")
    found |= difference("linear_mean_over_network", "psnr_tv_tangent", "psnr_fitted")
    return found


def _along(tuned: Tuned) -> dict[str, Any]:
    """Evidence and scales along the optimisation."""
    first, last = tuned.trace[0], max(tuned.trace)
    gap = [max(last - value, 1e-3) for value in tuned.trace]
    blocks = [b for b, each in enumerate(tuned.scales.lengths.isnan().tolist()) if not each]
    return {
        "iterations": list(range(1, len(tuned.trace) + 1)),
        "objective_left": gap,
        "objective_gained": last - first,
        "length_first": [float(scales.lengths[blocks[0]]) for scales in tuned.path],
        "length_last": [float(scales.lengths[blocks[-1]]) for scales in tuned.path],
    }


def _by_length(problem: EvidenceProblem, tuned: Tuned) -> dict[str, Any]:
    """The expected total variation of what one block adds, by its length."""
    lengths = tuned.scales.lengths
    blocks = [b for b, each in enumerate(lengths.isnan().tolist()) if not each]
    values: dict[str, Any] = {"lengths": _LENGTHS.tolist()}
    for name, block in (("first", blocks[0]), ("last", blocks[-1])):
        found = []
        for length in _LENGTHS:
            moved = lengths.clone()
            moved[block] = length
            scales = Scales(tuned.scales.variances, moved, tuned.scales.noise)
            found.append(float(problem.expected_total_variation(scales, block)[0]))
        values[f"variation_{name}"] = found
    return values


def _adjoint_gap(scan: ParallelBeam, seed: int) -> float:
    """``|⟨A x, y⟩ - ⟨x, Aᵀ y⟩|`` of random vectors, relative."""
    random = seeded(seed, "adjoint")
    image = torch.randn(scan.size, scan.size, generator=random, dtype=torch.float64)
    readings = torch.randn(len(scan.directions), scan.bins, generator=random, dtype=torch.float64)
    left = float((scan.forward(image) * readings).sum())
    right = float((image * scan.adjoint(readings)).sum())
    return abs(left - right) / max(abs(left), 1e-300)


def _evidence_gap(model: LinearModel, problem: EvidenceProblem, scales: Scales) -> float:
    """How far the quadratic form in readings is from the one in weights, at the mode.

    ``rᵀ K⁻¹ r = ‖r - A J θ*‖² / noise + θ*ᵀ S⁻¹ θ*`` with ``θ* = S Jᵀ Aᵀ K⁻¹ r``.
    """
    residual = problem.residual
    solved = torch.linalg.solve(problem.covariance(scales), residual)
    size, explained = torch.zeros(()).double(), torch.zeros_like(residual)
    for rows, covariance in zip(model.readings, scales.covariances(), strict=True):
        pulled = torch.einsum("nft,n->ft", rows.double(), solved)
        mode = pulled @ covariance
        size = size + (mode * pulled).sum()
        explained = explained + rows.flatten(1).double() @ mode.flatten()
    left = float(residual @ solved)
    rest = ((residual - explained).square() / problem.noise_variances(scales)).sum()
    return abs(left - float(rest) - float(size)) / left


def _angles(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Few equidistant angles, then as many more by expected information or equidistant again."""
    size, few = int(parameters["size"]), int(parameters["angles"])
    candidates = ParallelBeam(size, int(parameters["candidates"]))
    every = len(candidates.directions)
    draw: Callable[..., Tensor] = getattr(phantoms, parameters["image"])
    image = draw(2 * size, generator=seeded(seed, "image"))
    made = simulate(
        image, candidates, level=float(parameters["noise"]), generator=seeded(seed, "noise")
    )

    def scan_of(places: list[int]) -> ParallelBeam:
        return ParallelBeam(size, [candidates.directions[place] for place in places])

    def found(places: list[int]) -> Reconstruction:
        return reconstruct(
            made.readings[places],
            scan_of(places),
            network=image_network(size, width=int(parameters["width"])),
            prior=PRIORS["tv_network"],
            fitting=DeepImagePrior(steps=int(parameters["steps"])),
            generator=seeded(seed, "network"),
        )

    def psnr(result: Reconstruction) -> float:
        return float(peak_signal_to_noise(result.image.double(), made.truth.double()))

    first = list(range(0, every, every // few))
    start = found(first)
    assert start.covariance is not None
    rest = [place for place in range(every) if place not in first]
    chosen = choose_angles(start.covariance, scan_of(rest), few, noise=start.noise)
    greedy = psnr(found(sorted([*first, *(rest[place] for place in chosen.order)])))
    equidistant = psnr(found(list(range(0, every, every // (2 * few)))))
    return {
        "psnr_start": psnr(start),
        "psnr_greedy": greedy,
        "psnr_equidistant": equidistant,
        "greedy_over_equidistant": greedy - equidistant,
        "degrees": [math.degrees(candidates.directions[place]) for place in rest],
        "offered": chosen.offered.tolist(),
        "chosen": [math.degrees(angle) for angle in chosen.directions],
        "chosen_gains": list(chosen.gains),
    }


def _priors(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Draws from three priors of images, with one expected total variation per edge."""
    size, target = int(parameters["size"]), float(parameters["variation"])
    sweeps, draws = int(parameters["sweeps"]), int(parameters["draws"])
    count = len(edges(size))
    random = seeded(seed, "priors")
    chain = variation_chain(size, size**2 / target / count, sweeps, draws, random)
    shown = {
        "variation": chain,
        "informed": _informed(size, target, draws, random),
        # independent values of standard deviation s differ by 2 s / √π on average
        "independent": 0.5
        + target
        * math.sqrt(math.pi)
        / 2
        * torch.randn(draws, size, size, generator=random, dtype=torch.float64),
    }
    if "data" in parameters:
        real = pictures(parameters).test[0][:draws, 0].double()
        shown["real"] = real / real.amax((1, 2), keepdim=True)
    axis = list(range(size))
    values: dict[str, Any] = {}
    for name, images in shown.items():
        values[f"{name}_variation"] = (total_variation(images) / count).tolist()
        picture = images[-1].flip(0)
        values |= {f"{name}_x": axis, f"{name}_y": axis}
        values[name] = [[float(f"{v:.4g}") for v in row] for row in picture.tolist()]
        values[f"{name}_mean_variation"] = float(total_variation(images).mean() / count)
    # of neighbours, over all draws
    for name in ("informed", "independent"):
        left, right = shown[name][:, :, :-1].flatten(1), shown[name][:, :, 1:].flatten(1)
        pair = torch.stack([left - left.mean(), right - right.mean()])
        norms = pair.square().sum((1, 2)).sqrt()
        values[f"{name}_correlation"] = float((pair[0] * pair[1]).sum() / norms.prod())
    values["informed_over_independent"] = (
        values["informed_correlation"] - values["independent_correlation"]
    )
    return values


def _informed(
    size: int, target: float, draws: int, random: torch.Generator
) -> Float[Tensor, "m size size"]:
    """Gaussian images whose expected total variation per edge is exponential (TV-PredCP).

    ``κ = 2 s √(1 - ρ) / √π`` of neighbours with correlation ``ρ = exp(-1/length)``: drawn, then
    solved for the length.
    """
    deviation = 0.3
    places = torch.cartesian_prod(torch.arange(float(size)), torch.arange(float(size))).double()
    apart = torch.cdist(places, places)
    most = 2 * deviation / math.sqrt(math.pi) * math.sqrt(0.999)
    found: list[Tensor] = []
    while len(found) < draws:
        kappa = float(-target * torch.rand((), generator=random, dtype=torch.float64).log())
        if not 1e-3 < kappa < most:
            continue
        correlation = 1 - (kappa * math.sqrt(math.pi) / (2 * deviation)) ** 2
        covariance = (apart * math.log(correlation)).exp() + 1e-8 * torch.eye(size**2)
        root = torch.linalg.cholesky(covariance)
        noise = torch.randn(size**2, generator=random, dtype=torch.float64)
        found.append((0.5 + deviation * root @ noise).reshape(size, size))
    return torch.stack(found)


def variation_chain(
    size: int, strength: float, sweeps: int, draws: int, random: torch.Generator
) -> Float[Tensor, "m size size"]:
    """Images in [0, 1] of density ``exp(-λ TV)``, by Gibbs sampling in the colours of a chessboard.

    Given its neighbours a pixel has a density ``exp(-λ Σ |x - x_j|)``: exponential between
    neighbours that are next to each other, so that it is drawn exactly.
    """
    image = torch.rand(size, size, generator=random, dtype=torch.float64)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    colours = [(row + column) % 2 == parity for parity in (0, 1)]
    kept, every = [], max(1, sweeps // (2 * draws))
    for sweep in range(sweeps):
        for colour in colours:
            padded = torch.nn.functional.pad(image[None], (1, 1, 1, 1), value=math.nan)[0]
            around = torch.stack(
                [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
            )[:, colour]
            image[colour] = draw_between(around.mT, strength, random)
        if sweep >= sweeps - every * draws and (sweeps - 1 - sweep) % every == 0:
            kept.append(image.clone())
    return torch.stack(kept)


def draw_between(
    neighbours: Float[Tensor, "n 4"], strength: float, random: torch.Generator
) -> Float[Tensor, " n"]:
    """From ``exp(-λ Σ |x - x_j|)`` on [0, 1], neighbours that are NaN left out."""
    there = ~neighbours.isnan()
    ordered = neighbours.nan_to_num(2.0).sort(1).values.clamp(max=1.0)
    zero, one = torch.zeros_like(ordered[:, :1]), torch.ones_like(ordered[:, :1])
    knots = torch.cat([zero, ordered, one], 1)
    many = there.sum(1, keepdim=True)
    below = torch.arange(5).minimum(many)
    slopes = strength * (many - 2 * below)  # of the log density, piece by piece
    lengths = knots.diff(dim=1)
    heights = torch.cat([zero, (slopes * lengths).cumsum(1)[:, :-1]], 1)
    steps = slopes * lengths
    safe = torch.where(slopes == 0, torch.ones_like(slopes), slopes)
    masses = torch.where(slopes == 0, lengths, torch.expm1(steps) / safe).clamp_min(1e-300)
    logs = heights + masses.log()
    chances = (logs - logs.amax(1, keepdim=True)).exp()
    piece = torch.multinomial(chances, 1, generator=random)
    share = torch.rand(len(knots), 1, generator=random, dtype=torch.float64)
    slope, step = safe.gather(1, piece), steps.gather(1, piece)
    inside = torch.where(
        slopes.gather(1, piece) == 0,
        share * lengths.gather(1, piece),
        torch.log1p(share * torch.expm1(step)) / slope,
    )
    return (knots.gather(1, piece) + inside)[:, 0].clamp(0, 1)
