"""The linearised Laplace approximation (MacKay 1992; Immer et al. 2021; Antorán et al. 2022)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coset.bayes.batches import as_batches
from coset.bayes.defaults import has_constant_curvature, unknown_noise, with_noise
from coset.bayes.likelihood import GaussianNoise, Likelihood
from coset.bayes.problem import Problem
from coset.curvature.kfac import KFAC
from coset.curvature.matrix_free import MatrixFree
from coset.curvature.measure import Curvature
from coset.curvature.sampled import plain, uncorrected
from coset.curvature.tangent import Tangent, outputs_along, tangent_at
from coset.errors import CosetError, require_counts, require_kinds
from coset.inference.doubts import examine, with_kept_prior
from coset.inference.laplace.budget import (
    EPOCH,
    LAYER,
    LEAST,
    Plan,
    Work,
    decomposition,
    factor_bytes,
    features_share,
    gigabytes,
    plan_of,
    some_rows,
    stretches_of,
    untuned_passes,
)
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.evidence import evidence_at, spectrum_of
from coset.inference.laplace.features import problem_of_layer
from coset.inference.laplace.groups import Groups, cuts_of
from coset.inference.laplace.noise import fit_whitened, residual_noise
from coset.inference.laplace.part import LastLayer, Part, Subnetwork, Subset, layout_of, part_of
from coset.inference.laplace.tuning import Tuner
from coset.inference.laplace.written import written_measured
from coset.inference.matrix_free.fit import fit_matrix_free
from coset.inference.passes import Passes, Stage
from coset.inference.run_fingerprint import described, digest
from coset.inference.run_record import Checkpoint, RunRecord, Steps
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


@dataclass(frozen=True)
class Run:
    """How far a fit is: told, and written down.

    Attributes:
        passes: Told.
        steps: Written down.
        begin: Share of the work that lies before the curvature.
    """

    passes: Passes
    steps: Steps
    begin: float = 0.0

    def at(self, share: float) -> float:
        """A share of what follows the beginning, as one of all."""
        return self.begin + (1 - self.begin) * share


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
        effort: How many epochs of training a fit may cost.  Where it is too little for all, mode
            and precisions are found on some of the rows, and one pass over all rows measures the
            curvature.  ``None``: four, or more where that is half a minute or less;
            ``math.inf``: everything on all rows.
        memory: Bytes that a fit may take beyond network, data and posterior.
        checkpoint: Where a long fit is written down, to be taken up again: each pass over the data
            and each search for a mode, and long passes in stretches.
    """

    curvature: Curvature | MatrixFree = field(default_factory=KFAC)
    subset: Subset = None
    tuning: ByEvidence | None = field(default_factory=ByEvidence)
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    effort: float | None = None
    memory: int = 1 << 30

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(memory=self.memory)
        _check_effort(self.effort, self.curvature)

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
        run = Run(Passes(progress), self._steps(problem, weights, generator))
        found = ready._by_curvature(
            self.curvature, run.passes.over(problem), weights, generator, run
        )
        run.passes.phase(1.0, 1.0, "done")
        return found

    def _steps(self, problem: Problem, weights: Weights, generator: torch.Generator) -> Steps:
        """Where this fit is written down, if anywhere."""
        starts = {name: tensor.unsqueeze(0) for name, tensor in weights.items()}

        def told() -> Mapping[str, Any]:
            tuning = self.tuning and replace(self.tuning, validation=None)
            return {
                "kind": "laplace",
                "settings": described(replace(self, tuning=tuning)),
                "seed": digest({"": generator.get_state()}),
            }

        record = RunRecord.of(self.checkpoint, problem, starts, told)
        record.resume(lambda _: None)  # a folder that cannot be written in is refused now
        return Steps(record)

    def _with_read_validation(self, problem: Problem) -> "Laplace":
        """The same with held-out data that are read and checked, before any work."""
        if self.tuning is None or self.tuning.validation is None:
            return self
        held_out = as_batches(self.tuning.validation, module=problem.network.module)
        replace(problem, train=held_out).check()
        return replace(self, tuning=replace(self.tuning, validation=held_out))

    def _by_curvature(
        self,
        curvature: Curvature,
        problem: Problem,
        weights: Weights,
        generator: torch.Generator,
        run: Run,
    ) -> Gaussian | TangentSamples:
        passes, steps = run.passes, run.steps
        unknown = unknown_noise(problem.likelihood)
        unit = problem
        if unknown == "covariance" and self.tuning is not None:
            unit = problem.with_likelihood(GaussianNoise(1.0))  # in whitened outputs
        elif unknown == "size":
            unit = problem.with_noise(1.0)
        last_layer_because = self._last_layer_because(unit, weights)
        if last_layer_because is not None:
            alone = replace(self, subset=LastLayer())
            found = alone._by_curvature(curvature, problem, weights, generator, run)
            told = (last_layer_because, *found.report.warnings)
            return replace(found, report=replace(found.report, warnings=told))
        part = part_of(self.subset, curvature, unit, weights, generator=generator)
        part = replace(part, fixed=_others(part.layout, weights))
        asked, effort = problem, self.effort
        if isinstance(self.subset, LastLayer):
            run = replace(run, begin=features_share(problem, part.layout))
            passes.phase(0.0, run.begin, "features of the last layer")
            layer = problem_of_layer(problem, weights, part.layout, self.memory, steps)
            if layer is not None:
                problem, unit = layer, replace(unit, network=layer.network, train=layer.train)
                effort = None  # what is left is little: the network has run
        if self.tuning is None:
            passes.phase(run.begin, 1.0, "curvature", passes=2)
            return with_kept_prior(_untuned(problem, weights, part, steps), asked, _RULE)
        settings, notes = self.tuning.settled(unit.link()).with_safe_mean(unit, weights)
        if unknown != "covariance":
            groups = part.groups(problem, settings)
            plan = self._plan(unit, settings, effort, groups=len(groups.names))
            some = some_rows(problem, plan, generator)
            some = some if plan.is_whole else passes.over(some)
            posterior, _ = _tuned(problem, weights, part, settings, groups, run, plan, some)
        else:
            groups, whole = part.groups(unit, settings), self._plan(unit, settings, math.inf)
            posterior = fit_whitened(
                problem,
                weights,
                lambda white: _tuned(white, weights, part, settings, groups, run, whole, white),
                settings,
            )
        report = replace(posterior.report, warnings=(*posterior.report.warnings, *notes))
        posterior = replace(posterior, report=report)
        passes.phase(run.at(0.98), 1.0, "checks")
        looked_at = problem if settings.validation is None else asked
        return examine(posterior, looked_at, settings.validation, _RULE.link)

    def planned(self, problem: Problem) -> Plan | None:
        """What a fit will do, counted before it begins; ``None`` where that is not known."""
        if isinstance(self.curvature, MatrixFree):
            return None
        size = problem.train.size
        if unknown_noise(problem.likelihood) == "size":
            problem = problem.with_noise(1.0)
        if isinstance(self.subset, LastLayer):
            return Plan(size, size, passes=LAYER)
        because = self._last_layer_because(problem, problem.network.weights)
        if because is not None:
            return Plan(size, size, passes=LAYER, because=because)
        if self.tuning is None:
            return Plan(size, size, passes=untuned_passes(problem, self.curvature))
        if unknown_noise(problem.likelihood) == "covariance":
            problem = problem.with_likelihood(GaussianNoise(1.0))
            return self._plan(problem, self.tuning.settled(problem.link()), math.inf)
        return self._plan(problem, self.tuning.settled(problem.link()), self.effort)

    def _plan(
        self, problem: Problem, settings: ByEvidence, effort: float | None, groups: int = 1
    ) -> Plan:
        """On how many rows what is found; a subnetwork's exact Jacobian is one over all rows."""
        assert not isinstance(self.curvature, MatrixFree)
        effort = math.inf if isinstance(self.subset, Subnetwork) else effort
        plan = plan_of(problem, self.curvature, settings, effort, free=self._is_free, groups=groups)
        return replace(plan, memory=self.memory)

    @property
    def _is_free(self) -> bool:
        """Whether nobody asked for a curvature or a subset, so that the budget may choose."""
        return self.curvature == KFAC() and self.subset is None

    def _last_layer_because(self, problem: Problem, weights: Weights) -> str | None:
        """Why the last layer alone is fitted, where even one pass over all layers is too much."""
        if not self._is_free:
            return None
        needed = factor_bytes(problem, weights)
        if needed > self.memory:
            return (
                f"the last layer alone: Kronecker factors of all layers take {gigabytes(needed)} "
                f"of the {gigabytes(self.memory)} that memory= allows; Laplace(memory="
                f"{math.ceil(needed / 2**30)} << 30) has them"
            )
        if self.effort is not None and self.effort * EPOCH < LEAST:
            return (
                f"the last layer alone: one pass of curvature over all layers is more than "
                f"effort={self.effort:g}; effort={math.ceil(LEAST / EPOCH)} has it"
            )
        return None

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
            return with_kept_prior(sampled, problem, _RULE)
        return examine(sampled, problem, self.tuning.validation, _RULE.link)


def _check_effort(effort: float | None, curvature: Curvature | MatrixFree) -> None:
    if effort is None:
        return
    if not effort > 0:
        raise CosetError(
            f"got an effort of {effort} epochs",
            "needed a positive number of epochs of training",
            "leave it out for the default of four, or give math.inf for all rows",
        )
    if isinstance(curvature, MatrixFree):
        raise CosetError(
            "got an effort with MatrixFree()",
            "needed a curvature whose passes are known before",
            "give MatrixFree(samples=…, solver=…) what it may do",
        )


def _others(layout: Layout, weights: Weights) -> Weights:
    """What is not covered: draws are weights of the whole network."""
    covered = set(layout.names)
    return {name: tensor.clone() for name, tensor in weights.items() if name not in covered}


def _untuned(problem: Problem, weights: Weights, part: Part, steps: Steps) -> Gaussian:
    """Keeps the prior and a given noise as they are; precisions that want gradients get them."""
    flat = part.layout.flatten(weights).double()
    with torch.enable_grad():
        each = part.entries(problem.prior.flat(part.layout, flat))
    if not bool((each > 0).all()):
        raise CosetError("got a prior precision of zero", "needed positive precisions")
    precision, labels = each.unique(return_inverse=True)
    cuts = cuts_of(part.own, labels)
    measured = written_measured(
        steps, lambda: part.curvature.build(problem, weights, part.own, cuts=cuts)
    )
    spectrum = spectrum_of(measured.operator, labels, len(precision))
    squares = part.entries(flat).detach().square()
    norms = torch.zeros_like(precision.detach()).index_add_(0, labels, squares)
    report = FitReport(
        log_evidence=evidence_at(problem, weights, spectrum, precision, norms),
        evidence_curvature=type(plain(part.curvature)).__name__,
        diagnostics={"effective_weights": float(spectrum.effective(precision).sum())},
        warnings=measured.notes,
    )
    with torch.set_grad_enabled(each.requires_grad):
        return part.gaussian(weights, measured, each, 1.0, report)


def _tuned(
    problem: Problem,
    weights: Weights,
    part: Part,
    settings: ByEvidence,
    groups: Groups,
    run: Run,
    plan: Plan,
    some: Problem,
) -> tuple[Gaussian, Tangent]:
    """Finds the precisions, and the noise where it is unknown.

    Args:
        problem: Over all rows.
        weights: Of the whole network.
        part: What is uncertain.
        settings: Of the search, without ``"auto"``.
        groups: Which weights share a precision.
        run: Told how far it is.
        plan: On which rows what is found.
        some: The same problem over the rows for mode and precisions.
    """
    passes, steps = run.passes, run.steps
    noise: Likelihood | None = None
    if is_learnt(problem.likelihood) and not settings.noise:
        noise = residual_noise(problem, weights)
        problem, some = problem.with_likelihood(noise), some.with_likelihood(noise)
    learn = is_learnt(problem.likelihood)
    unit, few = (each.with_noise(1.0) if learn else each for each in (problem, some))
    cuts = cuts_of(part.own, groups.labels)
    first = _first(part.curvature, unit, weights, settings)
    work, count = Work.of(unit, part.curvature, settings), stretches_of(problem, plan.last)
    begin = run.at(work.outputs(part.own.size, plan))  # the rest is known once these are
    passes.phase(run.begin, begin, "outputs", passes=2)
    tangent = part.tangent(few, weights, plan.memory)
    tuner = Tuner(settings, tangent, part.curvature, groups, learn, cuts, work, steps, count)
    algebra = decomposition(unit, weights) if isinstance(plain(part.curvature), KFAC) else 0.0
    passes.plan(begin, run.at(0.98), _stages(work, tuner.stages, plan, algebra / plan.rows))
    passes.stage(0)
    measured = written_measured(steps, lambda: first.build(few, weights, part.own, cuts=cuts))

    def tell(number: int) -> None:
        passes.stage(number + 1)

    if plan.is_whole:
        tuned = tuner.run(measured, tell)
    else:

        def whole(direction: Tensor) -> tuple[Tangent, Tensor]:
            where = unit, weights, part.layout
            outputs, change, targets = steps.kept(lambda: outputs_along(*where, direction))
            return tangent_at(*where, outputs, targets), change

        last = plan.last_curvature(part.curvature)
        tuned = tuner.run_on_some(measured, whole, last, plan.directions, tell)
    flat = tuned.precision[groups.labels]
    report = FitReport(
        likelihood=with_noise(unit.likelihood, tuned.noise_precision**-0.5) if learn else noise,
        prior=part.prior(flat),
        log_evidence=tuned.log_evidence,
        evidence_curvature=tuned.structure,
        diagnostics={**tuned.diagnostics, **plan.diagnostics},
        warnings=(*tuned.warnings, *tuned.curvature.notes, *plan.notes),
    )
    posterior = part.gaussian(weights, tuned.curvature, flat, tuned.noise_precision, report)
    return posterior, tangent


def _stages(work: Work, search: list[Stage], plan: Plan, algebra: float) -> list[Stage]:
    """The parts of a fit, in forward passes over the rows that mode and precisions are from."""
    first = Stage("curvature", work.first + algebra, 1 + algebra / work.first)
    if plan.is_whole:
        return [first, *search]
    more = plan.size / plan.rows
    return [
        first,
        *search[:-1],
        Stage("outputs of all rows", more * work.last),
        Stage("mode of all rows", more * plan.ahead, 2.0 * plan.directions),
        Stage("curvature of all rows", more * work.look(plan.columns)),
    ]


def _first(
    curvature: Curvature, problem: Problem, weights: Weights, settings: ByEvidence
) -> Curvature:
    """What tuning begins with: plain KFAC where eigenvalues are corrected at the mode anyway."""
    gaussian = has_constant_curvature(problem.likelihood, *problem.first_outputs(weights))
    if gaussian or settings.hessian != "tangent":
        return curvature
    return uncorrected(curvature)
