"""Mixtures of posteriors from independent beginnings (Wilson and Izmailov 2020)."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import noise_variance, with_noise
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.errors import CosetError, require_counts, require_kinds
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.ensemble import DeepEnsemble
from coset.inference.hmc import HMC
from coset.inference.laplace.method import Laplace
from coset.inference.map_estimate import MaximumAPosteriori, require_training
from coset.inference.method import Method, fit_telling, require_method
from coset.inference.monte_carlo_dropout import MCDropout
from coset.inference.nuts import NUTS
from coset.inference.run_record import Checkpoint, part_of
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from coset.inference.swag import SWAG
from coset.inference.training.loop import train_stack
from coset.inference.training.state import report_of
from coset.posterior.families import FitReport, Mixture, Posterior, Snapshot, snapshots_of
from coset.posterior.predict import MonteCarlo, PredictionRule
from coset.progress import within
from coset.vocabulary import Progress, Weights
from coset.weights.stacking import unstack

_TRAINING = 0.5
"""Share of the training in the progress of Multi-Laplace."""

_WITHOUT_EVIDENCE = (DeepEnsemble, MCDropout, SWAG, HMC, NUTS, SGHMC, SGLD)


@runtime_checkable
class ManyAtOnce(Protocol):
    """A method that fits several posteriors side by side."""

    def fit_many(
        self,
        problem: Problem,
        modes: int,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> tuple[Posterior, ...]:
        """Several posteriors from different beginnings."""
        ...


@dataclass(frozen=True)
class MultiMode:
    """Fits a method several times from different weights: Multi-SWAG, Multi-Laplace and so on.

    The posterior is the mixture ``Σ_k w_k q_k`` with equal weights, or with ``w_k`` in proportion
    to the evidence that each component reports.

    A checkpoint of ``inner`` holds its stack of modes or, where they are fitted in turn, a folder
    for each; one of ``base`` holds its training.

    Attributes:
        inner: The method.
        modes: How many times.
        by_evidence: Whether components weigh by their evidence (Laplace) or its bound (MeanField).
        base: The training before each fit, for methods that do not train: Laplace, and what is
            made of it (``RebasedGaussian(Laplace())``).
    """

    inner: Method
    modes: int = 5
    by_evidence: bool = False
    base: MaximumAPosteriori = field(default_factory=MaximumAPosteriori)

    def __post_init__(self) -> None:
        require_method(self.inner, "inner")
        require_training(self.base, "MultiMode")
        require_kinds(self)
        require_counts(modes=self.modes)
        fixed = isinstance(self.inner, MaximumAPosteriori) and self.inner.precision is None
        if self.by_evidence and (fixed or isinstance(self.inner, _WITHOUT_EVIDENCE)):
            raise self._no_evidence()

    @property
    def rule(self) -> PredictionRule:
        """How its posteriors predict unless told otherwise: as those of the inner method."""
        found: PredictionRule = getattr(self.inner, "rule", MonteCarlo())
        return found

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Mixture:
        """Fits all components.

        Args:
            problem: What to fit.
            start: A stack with the beginning of each mode, or ``None``: fresh weights for each.
            generator: Seeds each mode in turn.
            progress: Told how far the fits are.
        """
        along: tuple[Snapshot, ...] = ()
        if isinstance(self.inner, ManyAtOnce):
            parts = self.inner.fit_many(
                problem, self.modes, start=start, generator=generator, progress=progress
            )
        else:
            parts, along = self._in_turn(problem, start, generator, progress)
        mixture = Mixture(parts, self._weighting(parts))
        report = _report(parts, mixture.log_weights.exp())
        return replace(mixture, report=replace(report, snapshots=along or _snapshots(parts)))

    def _in_turn(
        self,
        problem: Problem,
        start: Weights | None,
        generator: torch.Generator,
        progress: Progress | None,
    ) -> tuple[tuple[Posterior, ...], tuple[Snapshot, ...]]:
        """The posteriors, and the snapshots of the training before them."""
        seeds, begin = member_seeds(self.modes, generator), 0.0
        along: tuple[Snapshot, ...] = ()
        if _stays(self.inner):  # around trained weights, which it does not move
            first = starting_points(problem, start, seeds)
            begin = _TRAINING
            trained = train_stack(
                problem,
                first,
                self.base.recipe,
                seeds,
                progress=within(progress, 0.0, begin, "training"),
                checkpoint=self.base.checkpoint,
            )
            start, along = trained.weights, report_of(trained, problem.likelihood).snapshots
        starts = self._starts(problem, start, seeds)
        edges = torch.linspace(begin, 1.0, self.modes + 1).tolist()
        parts = []
        for number, (seed, own) in enumerate(zip(seeds, starts, strict=True)):
            told = within(progress, edges[number], edges[number + 1], f"mode {number + 1}")
            inner, child = _with_own_folder(self.inner, number), torch.Generator().manual_seed(seed)
            parts.append(_fit_one(inner, problem, own, child, told))
        return tuple(parts), along

    def _starts(
        self, problem: Problem, start: Weights | None, seeds: list[int]
    ) -> list[Weights | None]:
        if start is None:
            return [None] * self.modes
        return [*unstack(starting_points(problem, start, seeds))]

    def _weighting(self, parts: tuple[Posterior, ...]) -> Tensor | None:
        if not self.by_evidence:
            return None
        found = [_evidence(part.report) for part in parts]
        if any(value is None for value in found):
            raise self._no_evidence()
        return torch.tensor(found, dtype=torch.float64)

    def _no_evidence(self) -> CosetError:
        return CosetError(
            f"got components without an evidence from {type(self.inner).__name__}",
            "needed a log-evidence of each to weigh by it",
            "use by_evidence=False",
        )


def _stays(method: object) -> bool:
    """Whether a method, or the one inside it, stays at the weights it is given."""
    if isinstance(method, MultiMode):  # trains its own modes
        return False
    return isinstance(method, Laplace) or (hasattr(method, "inner") and _stays(method.inner))


def _fit_one(
    inner: Method,
    problem: Problem,
    start: Weights | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Posterior:
    """One mode, which is told of at its beginning and its end if not in between."""
    if progress is not None:
        progress(0.0, "begun")
    found = fit_telling(inner, problem, start=start, generator=generator, progress=progress)
    if progress is not None:
        progress(1.0, "done")
    return found


def _with_own_folder(inner: Method, number: int) -> Method:
    """The method of one mode; its checkpoints, and those of methods inside, get a folder more."""
    if not is_dataclass(inner):
        return inner
    changes: dict[str, Any] = {}
    for part in fields(inner):
        value = getattr(inner, part.name)
        if isinstance(value, Checkpoint):
            changes[part.name] = part_of(value, f"mode-{number:03d}")
        elif callable(getattr(value, "fit", None)):
            changes[part.name] = _with_own_folder(value, number)
    return replace(inner, **changes)


def _snapshots(parts: tuple[Posterior, ...]) -> tuple[Snapshot, ...]:
    """Those that all components have, as stacks."""
    found = [snapshots_of(part) for part in parts]
    stacks = {
        epoch: {name: torch.stack([each[epoch][name] for each in found]) for name in first}
        for epoch, first in found[0].items()
        if all(epoch in each for each in found)
    }
    return tuple(Snapshot(epoch, weights) for epoch, weights in stacks.items())


def _evidence(report: FitReport) -> float | None:
    if report.log_evidence is not None:
        return report.log_evidence
    return report.diagnostics.get("evidence_bound")


def _report(parts: tuple[Posterior, ...], shares: Float[Tensor, " k"]) -> FitReport:
    """Means of the components' numbers, and all their warnings."""
    reports = [part.report for part in parts]
    shared = set.intersection(*(set(report.diagnostics) for report in reports))
    diagnostics = {
        name: sum(report.diagnostics[name] for report in reports) / len(reports)
        for name in sorted(shared)
    }
    warnings = tuple(
        f"mode {number}: {warning}"
        for number, report in enumerate(reports)
        for warning in report.warnings
    )
    priors = {id(report.prior): report.prior for report in reports}
    return FitReport(
        likelihood=_noise(reports, shares),
        prior=next(iter(priors.values())) if len(priors) == 1 else None,
        diagnostics=diagnostics,
        warnings=warnings,
    )


def _noise(reports: list[FitReport], shares: Float[Tensor, " k"]) -> Likelihood | None:
    """Noise whose variance is the mean of the components', each by its share in the mixture."""
    found = [report.likelihood for report in reports]
    learnt = [noise for noise in found if noise is not None and hasattr(noise, "with_noise")]
    if not learnt or len(learnt) < len(found):
        return None
    one = torch.zeros(1, 1, dtype=torch.float64)
    variances = [noise_variance(noise, one) for noise in learnt]
    each = torch.stack([variance.mean() for variance in variances if variance is not None])
    return with_noise(learnt[0], float(shares.double() @ each) ** 0.5)
