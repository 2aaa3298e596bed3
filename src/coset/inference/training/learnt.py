"""Precisions learnt while a network trains, by its marginal likelihood (Immer et al. 2021).

Now and then training stops for a moment: the curvature at the present weights gives the evidence as
a function of the prior's precisions, its maximum becomes the weight decay of the epochs to come.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.kfac import KFAC
from coset.curvature.measure import Curvature
from coset.curvature.sampled import plain
from coset.errors import require_counts, require_kinds
from coset.inference.laplace.evidence import best_precision, evidence_at, spectrum_of
from coset.inference.laplace.groups import Grouping, Groups, cuts_of, group_weights, prior_of
from coset.inference.training.optimisers import Optimiser
from coset.inference.training.state import Trained, TrainingState
from coset.posterior.families import FitReport
from coset.vocabulary import Progress, Weights

_MOST = 10.0
"""A precision changes at most by this factor at a time: weights need epochs to follow."""

_NAMED = 32
"""Groups whose precisions are named in the report."""


@dataclass(frozen=True)
class Learnt:
    """How precisions are learnt during training.

    Attributes:
        every: Epochs between two updates.
        after: Epochs before the first: the evidence of untrained weights says little.
        groups: Which weights share a precision: ``"single"``, ``"layer"`` or ``"normalised"``.
        curvature: What stands for the Gauss-Newton matrix.

    >>> Learnt(every=2).groups
    'layer'
    """

    every: int = 5
    after: int = 5
    groups: Grouping = "layer"
    curvature: Curvature = field(default_factory=lambda: KFAC(corrected=False))

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(every=self.every, after=self.after)


@dataclass(frozen=True)
class Learner:
    """Watches a training, and changes the prior under it.

    Attributes:
        settings: How.
        problem: What is trained, with the prior at the beginning.
        optimiser: Whose weight decay is the prior.
        tell: Told each update.
    """

    settings: Learnt
    problem: Problem
    optimiser: Optimiser
    tell: Callable[[int, str], None]

    @torch.no_grad()
    def after_epoch(self, state: TrainingState) -> None:
        """Updates the precisions, if it is time; a stack of one member."""
        since = state.epoch - self.settings.after
        if since < 0 or since % self.settings.every or not state.numbers:
            return
        weights = {name: tensor[0] for name, tensor in state.weights.items()}
        problem = self.problem
        if state.noise is not None:
            problem = problem.with_noise(float(state.noise.variance[0].sqrt()))
        groups = group_weights(
            problem,
            problem.network.layout,
            self.settings.groups,
            rows=isinstance(plain(self.settings.curvature), KFAC),
        )
        precision, evidence = self._best(problem, weights, groups, self._present(state, groups))
        state.collected["precisions"] = precision
        state.collected["log_evidence"] = evidence
        state.collected["updates"] = int(state.collected.get("updates", 0)) + 1
        self._use(state, groups, precision)
        self.tell(state.epoch, f"epoch {state.epoch}, log evidence {evidence:.6g}")

    def _present(self, state: TrainingState, groups: Groups) -> Float[Tensor, " g"]:
        """The precisions so far: those of the last update, or means of the prior's."""
        if "precisions" in state.collected:
            found: Tensor = state.collected["precisions"]
            return found
        layout = self.problem.network.layout
        like = layout.flatten(self.problem.network.weights).double()
        flat = self.problem.prior.flat(layout, like)
        return (groups.sums(flat) / groups.sizes).clamp_min(1e-12)

    def _best(
        self, problem: Problem, weights: Weights, groups: Groups, present: Float[Tensor, " g"]
    ) -> tuple[Float[Tensor, " g"], float]:
        layout = problem.network.layout
        measured = self.settings.curvature.build(
            problem, weights, layout, cuts=cuts_of(layout, groups.labels)
        )
        spectrum = spectrum_of(measured.operator, groups.labels, len(groups.names))
        norms = groups.sums(layout.flatten(weights).double().square())
        found = best_precision(spectrum, norms, present)
        precision = torch.minimum(torch.maximum(found, present / _MOST), present * _MOST)
        return precision, evidence_at(problem, weights, spectrum, precision, norms)

    def _use(self, state: TrainingState, groups: Groups, precision: Float[Tensor, " g"]) -> None:
        """The same optimiser, with another weight decay."""
        problem = replace(self.problem, prior=prior_of(groups.layout, precision[groups.labels], {}))
        rows = torch.arange(len(state.numbers))
        state.updates = state.updates.select(self.optimiser, problem, rows)
        state.weights = {
            name: state.updates.parameters.get(name, tensor)
            for name, tensor in state.weights.items()
        }

    def report(self, trained: Trained, report: FitReport) -> FitReport:
        """The report of the training, with what was learnt."""
        found = trained.collected
        if "precisions" not in found:
            late = f"no precision was learnt: training ended before epoch {self.settings.after}"
            return replace(report, warnings=(*report.warnings, late))
        layout = self.problem.network.layout
        rows = isinstance(plain(self.settings.curvature), KFAC)
        groups = group_weights(self.problem, layout, self.settings.groups, rows=rows)
        precision = found["precisions"]
        named = {
            f"precision of {name}": float(value)
            for name, value in zip(groups.names[:_NAMED], precision, strict=False)
        }
        updates = {"precision updates": float(found["updates"])}
        return replace(
            report,
            prior=prior_of(layout, precision[groups.labels], {}),
            log_evidence=float(found["log_evidence"]),
            evidence_curvature=type(plain(self.settings.curvature)).__name__,
            diagnostics={**report.diagnostics, **updates, **named},
        )


def teller(progress: Progress | None, epochs: int) -> Callable[[int, str], None]:
    """Passes updates on to whoever watches."""

    def tell(epoch: int, line: str) -> None:
        if progress is not None:
            progress(epoch / epochs, line)

    return tell
