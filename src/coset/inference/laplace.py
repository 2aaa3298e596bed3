"""The linearised Laplace approximation (MacKay 1992; Immer et al. 2021; Antorán et al. 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.batches import Data, as_batches
from coset.bayes.likelihood import Categorical, GaussianNoise, Likelihood
from coset.bayes.problem import Problem
from coset.curvature.kfac import KFAC
from coset.curvature.measure import Curvature, Cuts, Measured
from coset.curvature.tangent import Tangent, tangent_of
from coset.errors import CosetError
from coset.inference.grouping import Groups, group_weights
from coset.inference.tuning import ByEvidence, Tuned, Tuner
from coset.linalg import cast, inverse, scale, shift
from coset.posterior.evidence import spectrum_of
from coset.posterior.families import FitReport
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import Linearised
from coset.posterior.shrinkage import best_shrinkage
from coset.vocabulary import Progress, Weights
from coset.weights.layout import Layout
from coset.weights.stacking import check_fit

Subset = str | tuple[str, ...] | None

_DOUBT = 0.1
"""How far training confidence may lie below training accuracy before a fit warns."""


@dataclass(frozen=True)
class Laplace:
    """A Gaussian around a trained network, from the curvature of its likelihood.

    ``N(θ̃, (H + Λ)⁻¹)`` with the Gauss-Newton matrix ``H`` and prior precisions ``Λ``.  Nothing is
    trained: the network's own weights, or ``start``, are the mean and are not moved.

    Attributes:
        curvature: What stands for ``H``: :class:`coset.KFAC`, :class:`coset.Full`,
            :class:`coset.DiagonalOnly`.
        subset: Shell patterns of the tensors that are uncertain; ``None``: all parameters.
        tuning: How the prior's precisions and unknown noise are found; ``None`` keeps them.
    """

    curvature: Curvature = field(default_factory=KFAC)
    subset: Subset = None
    tuning: ByEvidence | None = field(default_factory=ByEvidence)

    @property
    def rule(self) -> Linearised:
        """How its posteriors predict unless told otherwise."""
        return Linearised()

    @torch.no_grad()
    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Gaussian:
        """Measures the curvature at the trained weights and tunes the prior.

        Args:
            problem: Network, likelihood, prior and data.
            start: Trained weights, where not the network's own.
            generator: For subsets that are drawn.
            progress: Told how far it is.
        """
        tell = progress or (lambda share, line: None)
        weights = problem.network.weights if start is None else start
        check_fit(weights, problem.network.weights, what="trained weights")
        layout = self._layout(problem)
        tell(0.0, "curvature")
        if self.tuning is None:
            return self._untuned(problem, weights, layout)
        settings = self.tuning.settled(problem.likelihood)
        noise = None
        if _unknown_noise(problem) and not settings.noise:
            noise = _residual_noise(problem, weights)
            problem = problem.with_likelihood(noise)
        learn = _unknown_noise(problem)
        unit = problem.with_likelihood(GaussianNoise(1.0)) if learn else problem
        groups = group_weights(
            problem, layout, settings.groups, rows=isinstance(self.curvature, KFAC)
        )
        cuts = _cuts(layout, groups.labels)
        measured = self.curvature.build(unit, weights, layout, cuts=cuts)
        tell(0.4, "evidence")
        tangent = tangent_of(unit, weights, layout)
        tuner = Tuner(settings, tangent, self.curvature, groups, learn, cuts)
        tuned = tuner.run(measured)
        tell(0.9, "checks")
        noise = GaussianNoise(tuned.noise_precision**-0.5) if learn else noise
        posterior = _posterior(problem, tangent, groups, tuned, noise)
        checked = _shrunk(posterior, problem, settings.validation)
        tell(1.0, "done")
        return checked

    def _layout(self, problem: Problem) -> Layout:
        layout = problem.network.layout
        if self.subset is None:
            return layout
        patterns = (self.subset,) if isinstance(self.subset, str) else self.subset
        return layout.select(*patterns)

    def _untuned(self, problem: Problem, weights: Weights, layout: Layout) -> Gaussian:
        """Keeps the prior and a given noise as they are."""
        if _unknown_noise(problem):
            raise CosetError(
                "got Gaussian noise of unknown size and tuning=None",
                "needed the noise, or a way to find it",
                "give GaussianNoise(std=…) or tuning=ByEvidence()",
            )
        flat = problem.prior.flat(layout, layout.flatten(weights)).double()
        if not bool((flat > 0).all()):
            raise CosetError("got a prior precision of zero", "needed positive precisions")
        precision, labels = flat.unique(return_inverse=True)
        cuts = _cuts(layout, labels)
        measured = self.curvature.build(problem, weights, layout, cuts=cuts)
        spectrum = spectrum_of(measured.operator, labels, len(precision))
        fit = sum(
            float(problem.likelihood.log_prob(problem.network.apply(weights, x), y).double().sum())
            for x, y in problem.train
        )
        penalty = float((flat * layout.flatten(weights).double().square()).sum()) / 2
        report = FitReport(
            log_evidence=fit - penalty - float(spectrum.half_logdet(precision)),
            diagnostics={"effective_weights": float(spectrum.effective(precision).sum())},
        )
        return _gaussian(weights, layout, measured, flat, 1.0, report)


def _unknown_noise(problem: Problem) -> bool:
    return isinstance(problem.likelihood, GaussianNoise) and problem.likelihood.std is None


def _residual_noise(problem: Problem, weights: Weights) -> GaussianNoise:
    """Noise of the size of the network's own residuals."""
    pairs = [(problem.network.apply(weights, x), y) for x, y in problem.train]
    outputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return GaussianNoise().estimate(outputs, targets)


def _cuts(layout: Layout, labels: Tensor) -> Cuts:
    """Where weights and bias, or rows of weights, have different precisions."""
    tables = layout.unflatten(labels)
    separate, rows = set(), set()
    for name, table in tables.items():
        prefix, _, last = name.rpartition(".")
        bias = tables.get(f"{prefix}.bias" if prefix else "bias")
        if table.dim() < 2:
            continue
        flat = table.flatten(1)
        if not bool((flat == flat[0, 0]).all()):
            rows.add(name)
        if last == "bias" or bias is None or len(bias) != len(table):
            continue
        if not bool((flat == bias.unsqueeze(1)).all()):
            separate.add(name)
    return Cuts(frozenset(separate), frozenset(rows))


def _shrunk(posterior: Gaussian, problem: Problem, validation: "Data | None") -> Gaussian:
    """With validation data, the best multiple of the covariance; without, a look at the fit."""
    likelihood = posterior.report.likelihood or problem.likelihood
    if validation is None:
        warnings = _doubts(posterior, problem, likelihood)
        report = replace(posterior.report, warnings=(*posterior.report.warnings, *warnings))
        return replace(posterior, report=report)
    factor = best_shrinkage(posterior, problem.network, likelihood, as_batches(validation))
    diagnostics = {**posterior.report.diagnostics, "shrinkage": factor}
    report = replace(posterior.report, diagnostics=diagnostics)
    # a covariance of exactly zero has no root to sample with
    covariance = scale(posterior.covariance, max(factor, 1e-12))
    return replace(posterior, covariance=covariance, report=report)


def _doubts(posterior: Gaussian, problem: Problem, likelihood: Likelihood) -> list[str]:
    """Whether the predictions on training data are far less sure than they are right."""
    if not isinstance(likelihood, Categorical):
        return []
    inputs, targets = next(iter(problem.train))
    if problem.network.apply(problem.network.weights, inputs[:1]).dim() != 2:
        return []
    predictions = Linearised()(
        posterior, problem.network, likelihood, inputs, generator=torch.Generator()
    ).mean
    confidence = float(predictions.amax(1).mean())
    accuracy = float((predictions.argmax(1) == targets).double().mean())
    if confidence > accuracy - _DOUBT:
        return []
    return [
        f"on training data the predictions are right in {accuracy:.0%} of the cases and sure to "
        f"{confidence:.0%} on average: the network may be under-confident, and added variance "
        "would hurt; give ByEvidence(validation=…)"
    ]


def _posterior(
    problem: Problem,
    tangent: Tangent,
    groups: Groups,
    tuned: Tuned,
    noise: GaussianNoise | None,
) -> Gaussian:
    report = FitReport(
        likelihood=noise,
        prior=groups.prior(tuned.precision, _by_name(problem)),
        log_evidence=tuned.log_evidence,
        diagnostics=tuned.diagnostics,
        warnings=tuned.warnings,
    )
    flat = tuned.precision[groups.labels]
    return _gaussian(
        tangent.weights, tangent.layout, tuned.curvature, flat, tuned.noise_precision, report
    )


def _by_name(problem: Problem) -> Mapping[str, float | Tensor]:
    """The given precision of every parameter, for those that are not covered."""
    layout = problem.network.layout
    weights = problem.network.weights
    return {name: problem.prior.of(name, weights[name]) for name in layout.names}


def _gaussian(
    weights: Weights,
    layout: Layout,
    measured: Measured,
    precision: Float[Tensor, " p"],
    noise: float,
    report: FitReport,
) -> Gaussian:
    mean = {name: weights[name].clone() for name in layout.names}
    operator = measured.operator if noise == 1 else scale(measured.operator, noise)
    covariance = cast(inverse(shift(operator, precision)), mean[layout.names[0]].dtype)
    return Gaussian(mean, covariance, measured.layers, report)
