"""The evidence of the linearised image in observation space, and the scales that maximise it.

With ``y = A h(θ) + noise``, ``h(θ) = f + J (θ - θ~)`` and ``θ ~ N(0, S)`` the readings have the
covariance ``K = A J S Jᵀ Aᵀ + noise``, which is a sum over blocks and distance classes of fixed
matrices (:mod:`coset.tomography.taps`).  One step costs one Cholesky factor:

``log p(y) = -½ [rᵀ K⁻¹ r + log |2π K|]``, ``r = y - A (f - J θ~)``;
``∂ log p / ∂ c = ½ [αᵀ G α - tr(K⁻¹ G)]`` for the coefficient ``c`` of a matrix ``G``, with
``α = K⁻¹ r``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from coset.linalg.cholesky import cholesky
from coset.tomography.priors import ByMarginalLikelihood, ImagePrior, TotalVariationInformed
from coset.tomography.taps import DISTANCES, class_weights, tap_correlation
from coset.tomography.total_variation import expected_absolute, expected_absolute_slope

_LENGTHS, _START_LENGTH = (0.05, 50.0), 1.0
"""Between which lengths are looked for, in pixels, and from where."""


@dataclass(frozen=True)
class Scales:
    """Hyperparameters: a variance for each block, a length for those of 3 × 3 taps, the noise.

    Attributes:
        variances: One a block.
        lengths: One a block; NaN where there is one tap.
        noise: Variance of the noise of readings, or the factor of known variances.
    """

    variances: Float[Tensor, " blocks"]
    lengths: Float[Tensor, " blocks"]
    noise: Float[Tensor, ""]

    def coefficients(self) -> list[Tensor]:
        """What each block's class matrices are multiplied with."""
        return [
            variance[None] if bool(length.isnan()) else variance * class_weights(length)
            for variance, length in zip(self.variances, self.lengths, strict=True)
        ]

    def covariances(self) -> list[Float[Tensor, "taps taps"]]:
        """The covariance of the taps of a filter of each block."""
        return [
            variance.reshape(1, 1) if bool(length.isnan()) else variance * tap_correlation(length)
            for variance, length in zip(self.variances, self.lengths, strict=True)
        ]


@dataclass(frozen=True)
class EvidenceProblem:
    """All that the evidence needs, found once.

    Attributes:
        blocks: Names of the parts of the network.
        grams: Class matrices of each block, between readings.
        residual: ``y - A (f - J θ~)``.
        noise: Known variances of the readings; ``None``: one variance, learnt.
        dispersed: Whether known variances have a common factor of at least one, learnt.
        edge_means: Differences of neighbouring pixels in the fitted image.
        edge_variances: Class sums of the differences for each block.
        edge_weight: How many edges each of these stands for.
        strength: ``λ`` of the prior on lengths.
        network_residual: ``y - A f``, for evidence at the network's weights.
        outer: ``Σ_filters θ~ θ~ᵀ`` of each block, for the same.
    """

    blocks: tuple[str, ...]
    grams: tuple[Float[Tensor, "classes readings readings"], ...]
    residual: Float[Tensor, " readings"]
    noise: Float[Tensor, " readings"] | None
    edge_means: Float[Tensor, " edges"]
    edge_variances: tuple[Float[Tensor, "classes edges"], ...]
    edge_weight: float
    strength: float
    network_residual: Float[Tensor, " readings"]
    outer: tuple[Float[Tensor, "taps taps"], ...]
    dispersed: bool = False

    def covariance(self, scales: Scales) -> Float[Tensor, "readings readings"]:
        """The covariance of the readings."""
        coefficients = scales.coefficients()
        total = torch.zeros_like(self.grams[0][0])
        for weights, matrices in zip(coefficients, self.grams, strict=True):
            total += torch.tensordot(weights, matrices, dims=1)
        total.diagonal().add_(self.noise_variances(scales))
        return total

    def noise_variances(self, scales: Scales) -> Float[Tensor, " readings"]:
        """The variance of the noise of each reading."""
        known = torch.ones_like(self.residual) if self.noise is None else self.noise
        return scales.noise * known

    def log_evidence(self, scales: Scales) -> Float[Tensor, ""]:
        """``log N(r; 0, K)``, at the mode of the linear model; differentiable by autograd."""
        found: Tensor = _LogEvidence.apply(self, scales.noise, *scales.coefficients())
        return found

    def log_evidence_at_network(self, scales: Scales) -> Float[Tensor, ""]:
        """``-½ [‖y - A f‖² / noise + θ~ᵀ S⁻¹ θ~ + log |2π K|]``, at the network's weights.

        Only the log-determinant is as in :meth:`log_evidence`: θ~ is not the mode.
        """
        fixed = replace(self, residual=torch.zeros_like(self.residual))
        spread = (self.network_residual.square() / self.noise_variances(scales)).sum()
        for matrix, outer in zip(scales.covariances(), self.outer, strict=True):
            spread = spread + (torch.linalg.inv(matrix) * outer).sum()
        return fixed.log_evidence(scales) - spread / 2

    def expected_total_variation(
        self, scales: Scales, block: int
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """``κ`` of the image if only this block is uncertain, and ``dκ / d log length``."""
        log_length = scales.lengths[block].log()
        length, variance = log_length.exp(), scales.variances[block]
        weights = variance * class_weights(length)
        changes = variance * (-DISTANCES / length).exp() * DISTANCES / length
        sums = self.edge_variances[block]
        spread, change = weights @ sums, changes @ sums
        kappa = expected_absolute(self.edge_means, spread).sum()
        slope = expected_absolute_slope(self.edge_means, spread, change).sum()
        return self.edge_weight * kappa, self.edge_weight * slope

    def log_length_prior(self, scales: Scales) -> Float[Tensor, ""]:
        """``Σ log λ - λ κ + log |dκ / d log length|`` over the blocks that have a length."""
        total = torch.zeros_like(scales.noise)
        for block in range(len(self.grams)):
            if not bool(scales.lengths[block].isnan()):
                kappa, slope = self.expected_total_variation(scales, block)
                tiny = torch.finfo(slope.dtype).tiny
                total = total + math.log(self.strength) - self.strength * kappa
                total = total + slope.abs().clamp_min(tiny).log()
        return total


class _LogEvidence(torch.autograd.Function):
    """The log evidence with its exact derivatives, from one Cholesky factor."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        problem: EvidenceProblem,
        noise: Tensor,
        *coefficients: Tensor,
    ) -> Tensor:
        total = torch.zeros_like(problem.grams[0][0])
        for weights, matrices in zip(coefficients, problem.grams, strict=True):
            total += torch.tensordot(weights, matrices, dims=1)
        known = torch.ones_like(problem.residual) if problem.noise is None else problem.noise
        total.diagonal().add_(noise * known)
        factor = cholesky(total)
        solved = torch.cholesky_solve(problem.residual[:, None], factor)[:, 0]
        slope = (torch.outer(solved, solved) - torch.cholesky_inverse(factor)) / 2
        ctx.save_for_backward(
            (slope.diagonal() * known).sum(),
            *[torch.tensordot(matrices, slope, dims=2) for matrices in problem.grams],
        )
        logdet = 2 * factor.diagonal().log().sum()
        count = len(problem.residual)
        return -(problem.residual @ solved + logdet + count * math.log(2 * math.pi)) / 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(gradient * slope for slope in ctx.saved_tensors)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Tuned:
    """Scales at the maximum, and how they got there.

    Attributes:
        blocks: Names of the parts of the network.
        scales: At the end.
        objective: What was maximised, at the end.
        log_evidence: Of the readings at these scales.
        trace: The objective after every step.
        path: The scales after every step.
    """

    blocks: tuple[str, ...]
    scales: Scales
    objective: float
    log_evidence: float
    trace: tuple[float, ...]
    path: tuple[Scales, ...]


def tune(
    problem: EvidenceProblem,
    prior: ImagePrior,
    *,
    level: float,
    progress: Callable[[int], None] | None = None,
    iterations: int = 150,
) -> Tuned:
    """Maximises evidence, times the prior on lengths if there is one, by a quasi-Newton method.

    Args:
        problem: Readings and matrices.
        prior: Which terms count.
        level: A first guess of the variance of the noise.
        progress: Told of each step.
        iterations: Steps at most.
    """
    taps = [len(matrices) > 1 for matrices in problem.grams]
    learns_noise = problem.noise is None or problem.dispersed
    at_network = (
        isinstance(prior, TotalVariationInformed | ByMarginalLikelihood) and prior.mean == "network"
    )
    informed = isinstance(prior, TotalVariationInformed)

    def settled(vector: Tensor) -> Scales:
        blocks, lengths = len(taps), sum(taps)
        places = iter(vector[blocks : blocks + lengths].exp())
        nan = torch.full((), math.nan, dtype=vector.dtype)
        return Scales(
            vector[:blocks].exp(),
            torch.stack([next(places) if has else nan for has in taps]),
            vector[-1].exp() if learns_noise else torch.ones((), dtype=vector.dtype),
        )

    def cost(values: Tensor) -> Tensor:
        scales = settled(values)
        found = (
            problem.log_evidence_at_network(scales) if at_network else problem.log_evidence(scales)
        )
        if informed:
            found = found + problem.log_length_prior(scales)
        return -found

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        vector = torch.from_numpy(point).requires_grad_()
        found = cost(vector)
        found.backward()
        assert vector.grad is not None
        return float(found.detach()), vector.grad.numpy()

    typical = [float(matrices[0].diagonal().mean()) for matrices in problem.grams]
    share = max(float(problem.residual.square().mean()), level) / len(taps)
    start = [math.log(share / max(each, 1e-300)) for each in typical]
    # more than 3,000 times what the readings call for is rounding where the tangent does not fit
    bounds = [(value - 16.0, value + 8.0) for value in start]
    start += [math.log(_START_LENGTH)] * sum(taps)
    bounds += [(math.log(_LENGTHS[0]), math.log(_LENGTHS[1]))] * sum(taps)
    if problem.dispersed:
        start.append(0.5)
        bounds.append((0.0, 16.0))
    elif learns_noise:
        start.append(math.log(level))
        bounds.append((math.log(level) - 12.0, math.log(level) + 8.0))
    trace: list[float] = []
    path: list[Scales] = []

    def step(intermediate_result: object) -> None:
        point = torch.from_numpy(intermediate_result.x.copy())  # type: ignore[attr-defined]
        trace.append(-float(intermediate_result.fun))  # type: ignore[attr-defined]
        path.append(settled(point))
        if progress is not None:
            progress(len(trace))

    found = minimize(
        evaluate,
        np.array(start),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=step,
        options={"maxiter": iterations, "ftol": 1e-8, "gtol": 1e-3},
    )
    scales = settled(torch.from_numpy(found.x))
    evidence = float(problem.log_evidence(scales))
    return Tuned(problem.blocks, scales, -float(found.fun), evidence, tuple(trace), tuple(path))
