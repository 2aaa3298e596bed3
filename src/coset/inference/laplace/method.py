"""The linearised Laplace approximation (MacKay 1992; Immer et al. 2021; Antorán et al. 2022)."""

from dataclasses import dataclass, field, replace

import torch

from coset.bayes.batches import as_batches
from coset.bayes.defaults import has_constant_curvature, unknown_noise, with_noise
from coset.bayes.likelihood import GaussianNoise, Likelihood
from coset.bayes.problem import Problem
from coset.curvature.kfac import KFAC
from coset.curvature.matrix_free import MatrixFree
from coset.curvature.measure import Curvature
from coset.curvature.sampled import plain, uncorrected
from coset.curvature.tangent import Tangent
from coset.errors import CosetError, require_kinds
from coset.inference.doubts import examine
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.evidence import spectrum_of
from coset.inference.laplace.groups import cuts_of
from coset.inference.laplace.noise import fit_whitened, residual_noise
from coset.inference.laplace.part import Part, Subnetwork, Subset, layout_of, part_of
from coset.inference.laplace.tuning import Tuner
from coset.inference.matrix_free.fit import fit_matrix_free
from coset.inference.passes import Passes
from coset.inference.run_record import Checkpoint
from coset.inference.training.noise import is_learnt
from coset.posterior.families import FitReport
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import Linearised
from coset.posterior.links import TopDifference
from coset.posterior.tangent_samples import TangentSamples
from coset.vocabulary import Progress, Weights
from coset.weights.denormals import denormals_as_zeros
from coset.weights.layout import Layout
from coset.weights.stacking import check_fit

_RULE = Linearised(link=TopDifference())
"""The link that measured best: it keeps the most probable class and ignores common shifts."""

_CURVATURE = 0.3
"""Share of the first look at the curvature in the progress."""


@dataclass(frozen=True)
class Laplace:
    """A Gaussian around a trained network, from the curvature of its likelihood.

    ``N(θ̃, (H + Λ)⁻¹)`` with the Gauss-Newton matrix ``H`` and prior precisions ``Λ``.  Nothing is
    trained: the network's own weights, or ``start``, are the mean and are not moved.

    Attributes:
        curvature: What stands for ``H``: :class:`coset.KFAC`, :class:`coset.Full`,
            :class:`coset.DiagonalOnly`, :class:`coset.LowRank`, :class:`coset.MatrixFree`, or
            :class:`coset.MonteCarloFisher` of one of the first three.
        subset: What is uncertain: :class:`coset.LastLayer`, :class:`coset.Subnetwork` (always with
            its full covariance) or shell patterns of tensors; ``None``: all parameters.
        tuning: How the prior's precisions and unknown noise are found; ``None`` keeps them.
        checkpoint: Where a long run of :class:`coset.MatrixFree` is written down, to be taken up
            again; other curvatures are measured in one pass.
    """

    curvature: Curvature | MatrixFree = field(default_factory=KFAC)
    subset: Subset = None
    tuning: ByEvidence | None = field(default_factory=ByEvidence)
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_kinds(self)
        if self.checkpoint is not None and not isinstance(self.curvature, MatrixFree):
            raise CosetError(
                f"got a checkpoint with {type(self.curvature).__name__}()",
                "needed MatrixFree(), whose runs are long enough to be taken up again",
                "leave the checkpoint out",
            )

    @property
    def rule(self) -> Linearised:
        """How its posteriors predict unless told otherwise."""
        return _RULE

    @torch.no_grad()
    @denormals_as_zeros()
    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Gaussian | TangentSamples:
        """Measures the curvature at the trained weights and tunes the prior.

        Args:
            problem: Network, likelihood, prior and data.
            start: Trained weights, where not the network's own.
            generator: For subsets that are drawn.
            progress: Told how far it is.
        """
        weights = problem.network.weights if start is None else start
        check_fit(weights, problem.network.weights, what="trained weights", typed=True)
        if self.tuning is None and is_learnt(problem.likelihood):
            raise CosetError(
                "got Gaussian noise of unknown size and tuning=None",
                "needed the noise, or a way to find it",
                "give GaussianNoise(std=…) or tuning=ByEvidence()",
            )
        problem.check_batch_norm()
        problem.network.layout.check(weights)
        ready = self._with_read_validation(problem)
        if isinstance(self.curvature, MatrixFree):
            tell = progress or (lambda share, line: None)
            tell(0.0, "curvature")
            return ready._by_samples(self.curvature, problem, weights, generator, tell)
        passes = Passes(progress)
        heard = passes.over(problem)
        found = ready._by_curvature(self.curvature, heard, weights, generator, passes)
        passes.phase(1.0, 1.0, "done")
        return found

    def _with_read_validation(self, problem: Problem) -> "Laplace":
        """The same with held-out data that are read and checked, before any work."""
        if self.tuning is None or self.tuning.validation is None:
            return self
        held_out = as_batches(self.tuning.validation)
        replace(problem, train=held_out).check()
        return replace(self, tuning=replace(self.tuning, validation=held_out))

    def _by_curvature(
        self,
        curvature: Curvature,
        problem: Problem,
        weights: Weights,
        generator: torch.Generator,
        passes: Passes,
    ) -> Gaussian | TangentSamples:
        unknown = unknown_noise(problem.likelihood)
        unit = problem
        if unknown == "covariance" and self.tuning is not None:
            unit = problem.with_likelihood(GaussianNoise(1.0))  # in whitened outputs
        elif unknown == "size":
            unit = problem.with_noise(1.0)
        part = part_of(self.subset, curvature, unit, weights, generator=generator)
        part = replace(part, fixed=_others(part.layout, weights))
        if self.tuning is None:
            passes.phase(0.0, 1.0, "curvature", passes=2)
            return _untuned(problem, weights, part)
        settings, notes = self.tuning.settled(unit.link()).with_safe_mean(unit, weights)
        if unknown != "covariance":
            posterior, _ = _tuned(problem, weights, part, settings, passes)
        else:
            posterior = fit_whitened(
                problem,
                weights,
                lambda white: _tuned(white, weights, part, settings, passes),
                settings,
            )
        report = replace(posterior.report, warnings=(*posterior.report.warnings, *notes))
        posterior = replace(posterior, report=report)
        passes.phase(0.95, 1.0, "checks")
        return examine(posterior, problem, settings.validation, _RULE.link)

    def _by_samples(
        self,
        curvature: MatrixFree,
        problem: Problem,
        weights: Weights,
        generator: torch.Generator,
        tell: Progress,
    ) -> Gaussian | TangentSamples:
        if isinstance(self.subset, Subnetwork):
            raise CosetError(
                "got a Subnetwork with MatrixFree()",
                "needed whole tensors",
                "use Full() with a Subnetwork, or name patterns",
            )
        if unknown_noise(problem.likelihood) == "covariance":
            raise CosetError(
                "got noise of unknown covariance with MatrixFree()",
                "needed the covariance",
                "let KFAC() learn it, and give the likelihood of that predictor",
            )
        layout = layout_of(self.subset, problem)
        sampled = fit_matrix_free(
            problem,
            weights,
            layout,
            curvature,
            self.tuning,
            generator=generator,
            tell=tell,
            checkpoint=self.checkpoint,
        )
        sampled = replace(sampled, fixed=_others(layout, weights))
        if self.tuning is None:
            return sampled
        return examine(sampled, problem, self.tuning.validation, _RULE.link)


def _others(layout: Layout, weights: Weights) -> Weights:
    """What is not covered: draws are weights of the whole network."""
    covered = set(layout.names)
    return {name: tensor.clone() for name, tensor in weights.items() if name not in covered}


def _untuned(problem: Problem, weights: Weights, part: Part) -> Gaussian:
    """Keeps the prior and a given noise as they are; precisions that want gradients get them."""
    flat = part.layout.flatten(weights).double()
    with torch.enable_grad():
        each = part.entries(problem.prior.flat(part.layout, flat))
    if not bool((each > 0).all()):
        raise CosetError("got a prior precision of zero", "needed positive precisions")
    precision, labels = each.unique(return_inverse=True)
    cuts = cuts_of(part.own, labels)
    measured = part.curvature.build(problem, weights, part.own, cuts=cuts)
    spectrum = spectrum_of(measured.operator, labels, len(precision))
    fit = sum(
        float(problem.likelihood.log_prob(problem.network.apply(weights, x), y).double().sum())
        for x, y in problem.train
    )
    penalty = float((each * part.entries(flat).square()).sum()) / 2
    report = FitReport(
        log_evidence=fit - penalty - float(spectrum.half_logdet(precision)),
        evidence_curvature=type(plain(part.curvature)).__name__,
        diagnostics={"effective_weights": float(spectrum.effective(precision).sum())},
        warnings=measured.notes,
    )
    with torch.set_grad_enabled(each.requires_grad):
        return part.gaussian(weights, measured, each, 1.0, report)


def _tuned(
    problem: Problem, weights: Weights, part: Part, settings: ByEvidence, passes: Passes
) -> tuple[Gaussian, Tangent]:
    """Finds the precisions, and the noise where it is unknown."""
    noise: Likelihood | None = None
    if is_learnt(problem.likelihood) and not settings.noise:
        noise = residual_noise(problem, weights)
        problem = problem.with_likelihood(noise)
    learn = is_learnt(problem.likelihood)
    unit = problem.with_noise(1.0) if learn else problem
    groups = part.groups(problem, settings)
    cuts = cuts_of(part.own, groups.labels)
    first = _first(part.curvature, unit, weights, settings)
    passes.phase(0.0, _CURVATURE, "curvature")
    measured = first.build(unit, weights, part.own, cuts=cuts)
    tangent = part.tangent(unit, weights)
    tuner = Tuner(settings, tangent, part.curvature, groups, learn, cuts)
    left = 0.95 - _CURVATURE
    tuned = tuner.run(
        measured,
        lambda begin, end: passes.phase(
            _CURVATURE + left * begin, _CURVATURE + left * end, "evidence"
        ),
    )
    flat = tuned.precision[groups.labels]
    report = FitReport(
        likelihood=with_noise(unit.likelihood, tuned.noise_precision**-0.5) if learn else noise,
        prior=part.prior(problem, flat),
        log_evidence=tuned.log_evidence,
        evidence_curvature=tuner.structure,
        diagnostics=tuned.diagnostics,
        warnings=(*tuned.warnings, *tuned.curvature.notes),
    )
    posterior = part.gaussian(weights, tuned.curvature, flat, tuned.noise_precision, report)
    return posterior, tangent


def _first(
    curvature: Curvature, problem: Problem, weights: Weights, settings: ByEvidence
) -> Curvature:
    """What tuning begins with: plain KFAC where eigenvalues are corrected at the mode anyway."""
    gaussian = has_constant_curvature(problem.likelihood, *problem.first_outputs(weights))
    if gaussian or settings.hessian != "tangent":
        return curvature
    return uncorrected(curvature)
