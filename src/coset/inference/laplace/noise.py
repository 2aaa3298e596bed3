"""Laplace with noise that is correlated between outputs.

In whitened outputs the noise is one, and all that is known of plain Gaussian noise holds.  An
unknown covariance is found in turn with the precisions: wanted is ``C = mean(r rᵀ + S)`` over
residuals ``r`` at the mode of the tangent model and covariances ``S`` of its outputs, where the
evidence has its maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import count_targets, residuals, with_noise
from coset.bayes.likelihood import Likelihood
from coset.bayes.multivariate import MultivariateNoise, whiten, whitened
from coset.bayes.problem import Problem
from coset.curvature.tangent import Form, Tangent
from coset.inference.laplace.by_evidence import ByEvidence
from coset.linalg import cast, shift, solve
from coset.posterior.gaussian import Gaussian
from coset.posterior.output_moments import output_moments
from coset.vocabulary import Weights

_SMALL, _LARGE = 50, 8
"""Rounds at most, where the tangent model is small and where it is not."""


def fit_whitened(
    problem: Problem,
    weights: Weights,
    fit: Callable[[Problem], tuple[Gaussian, Tangent]],
    settings: ByEvidence,
) -> Gaussian:
    """A posterior under noise of a known or an unknown covariance.

    Args:
        problem: With :class:`MultivariateNoise`.
        weights: All weights of the network.
        fit: Tunes the precisions of a problem with noise of size one.
        settings: Of the search, without ``"auto"``.
    """
    noise = problem.likelihood
    assert isinstance(noise, MultivariateNoise), "the only likelihood that learns a covariance"
    assert settings.form != "auto"
    outputs, targets = _outputs(problem, weights)
    learn = noise.covariance is None
    if learn:
        zero = torch.zeros(outputs.shape[1], outputs.shape[1]).to(outputs)
        noise = noise.estimate(_rows(targets - outputs), zero)
    learn = learn and settings.noise
    rounds = 1
    while True:
        factor = noise.factor(outputs)
        posterior, tangent = fit(whitened(problem, factor))
        if not learn or rounds >= (_SMALL if tangent.is_small else _LARGE):
            break
        residuals = targets - outputs
        if settings.mean != "network":
            residuals = residuals - _moved(posterior, tangent, factor, settings.form)
        if settings.mean == "tangent" and tangent.is_small:
            # the precisions are those of the exact curvature, whatever structure is kept
            spread = _exact_spread(posterior, tangent, factor)
        else:
            spread = _spread(posterior, problem, factor)
        fresh = noise.estimate(_rows(residuals), spread)
        fresh = fresh.at_least(_rows(targets - outputs))  # around which predictions lie
        assert fresh.covariance is not None
        assert noise.covariance is not None
        change = float((fresh.covariance - noise.covariance).norm() / noise.covariance.norm())
        noise = fresh
        rounds += 1
        if change < (1e-6 if tangent.is_small else 1e-3):
            break
    report = posterior.report
    volume = float(factor.double().diagonal().log().sum()) * outputs.numel() / outputs.shape[1]
    assert report.log_evidence is not None
    known = replace(report, likelihood=noise, log_evidence=report.log_evidence - volume)
    return replace(posterior, report=known)


def _outputs(problem: Problem, weights: Weights) -> tuple[Tensor, Tensor]:
    outputs, targets = problem.outputs_and_targets(weights)
    return outputs, targets.reshape(outputs.shape)


def _rows(values: Tensor) -> Float[Tensor, "k c"]:
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def _moved(
    posterior: Gaussian, tangent: Tangent, factor: Float[Tensor, "c c"], form: Form
) -> Tensor:
    """How far the mode's outputs lie from the network's, in the units of the targets."""
    near = posterior.covariance
    if tangent.layout != posterior.layout:
        near = posterior.covariance.inner  # type: ignore[attr-defined]  # of a subnetwork
    flat, small = _precision(posterior, tangent), tangent.is_small
    point = tangent.find_mode(
        flat,
        form,
        preconditioner=None if small else cast(near, flat.dtype),
        tolerance=1e-11 if small else 1e-4,
        steps=20 if small else (2 if form == "full" else 8),  # from the network, or from zero
    )
    change = point.outputs - tangent.outputs
    return (change.movedim(1, -1) @ factor.mT).movedim(-1, 1)


def _precision(posterior: Gaussian, tangent: Tangent) -> Float[Tensor, " p"]:
    """Of each weight of the tangent model."""
    prior = posterior.report.prior
    assert prior is not None
    flat = prior.flat(posterior.layout, posterior.layout.flatten(posterior.mean))
    if tangent.layout == posterior.layout:
        return flat
    # a subnetwork, whose weights are a tensor of their own
    return flat[posterior.covariance.index]  # type: ignore[attr-defined]  # of a subnetwork


def _exact_spread(
    posterior: Gaussian, tangent: Tangent, factor: Float[Tensor, "c c"]
) -> Float[Tensor, "c c"]:
    """The mean covariance of the outputs over the data, by the exact curvature."""
    rows = tangent.jacobian.matrix
    assert rows is not None, "a small tangent model has one"
    system = shift(tangent.exact_curvature(), _precision(posterior, tangent).double())
    rows = rows.double()
    count, outputs = tangent.outputs.shape[:2]
    left, right = (
        side.reshape(count, outputs, -1, rows.shape[1]).movedim(1, 0).flatten(1)
        for side in (rows, solve(system, rows.mT).mT)
    )
    spread = left @ right.mT / (tangent.outputs.numel() // outputs)
    root = factor.double()
    return (root @ spread @ root.mT).to(factor)


def _spread(
    posterior: Gaussian, problem: Problem, factor: Float[Tensor, "c c"]
) -> Float[Tensor, "c c"]:
    """The mean covariance of the outputs over the data, as far as the data leave it open.

    Where the curvature has no direction (:class:`coset.LowRank`) the posterior is as wide as the
    prior, whatever the noise; the share of the noise is therefore that of the effective weights
    ``γ``, which in whitened outputs is ``Σ tr S = γ`` over all data.
    """
    total, count = None, 0
    for inputs, _ in problem.train:
        covariance = output_moments(posterior, problem.network, inputs)[1]
        part = covariance.flatten(3).sum((0, 3)) if covariance.dim() > 3 else covariance.sum(0)
        total = part if total is None else total + part
        count += covariance.numel() // covariance.shape[1] ** 2
    assert total is not None
    share = float(whiten(whiten(total, factor).mT, factor).trace())
    effective = posterior.report.diagnostics["effective_weights"]
    return total / count * (effective / share if share > 0 else 1.0)


_TINY, _LEAST = 1e-24, 1e-3
"""Smallest squares that count, and the smallest share of the data that noise is estimated from."""


def residual_noise(problem: Problem, weights: Weights) -> Likelihood:
    """The likelihood with noise of the size of the network's own residuals."""
    outputs, targets = problem.outputs_and_targets(weights)
    left = residuals(problem.likelihood, outputs, targets)
    mean = left.square().sum() / count_targets(problem.likelihood, outputs, targets)
    return with_noise(problem.likelihood, float(mean.sqrt().clamp_min(1e-12)))


@dataclass(frozen=True)
class Residuals:
    """What the outputs of a tangent model leave of its targets."""

    tangent: Tangent

    @cached_property
    def most_certain(self) -> float:
        """The noise precision ``1 / σ²`` that the network's own residuals allow."""
        count = self._count
        return count / max(self._squares(self.tangent.outputs), _TINY * count)

    def precision(self, outputs: Tensor, effective: float = 0.0) -> float:
        """``(n c - γ) / Σ residual²`` at some outputs, with so many effective weights ``γ``."""
        count = self._count
        return max(count - effective, _LEAST * count) / max(self._squares(outputs), _TINY)

    @cached_property
    def _count(self) -> float:
        tangent = self.tangent
        return count_targets(tangent.likelihood, tangent.outputs, tangent.targets)

    def _squares(self, outputs: Tensor) -> float:
        found = residuals(self.tangent.likelihood, outputs, self.tangent.targets)
        return float(found.double().square().sum())
