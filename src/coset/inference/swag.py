"""SWA-Gaussian (Maddox, Garipov, Izmailov, Vetrov and Wilson 2019)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError, require_counts, require_kinds
from coset.inference.batch_norm import refresh_statistics
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.map_estimate import MaximumAPosteriori, require_training
from coset.inference.run_record import Checkpoint, part_of, refuse_two_checkpoints
from coset.inference.sampling.adaptation import Moments
from coset.inference.sampling.step_sizes import largest_curvature
from coset.inference.sampling.targets import FullBatch
from coset.inference.training.loop import train_stack
from coset.inference.training.optimisers import SGD
from coset.inference.training.recipe import Recipe
from coset.inference.training.schedules import Constant
from coset.inference.training.state import Trained, TrainingState, of_member, report_of
from coset.posterior.families import FitReport, Posterior, Samples
from coset.posterior.low_rank import LowRankGaussian
from coset.progress import within
from coset.vocabulary import Progress, Weights
from coset.weights.layout import Layout
from coset.weights.stacking import unstack

_SECOND = 0x1F83D9ABFB41BD6B  # sets the data order of the collection apart from the training's


@dataclass(frozen=True)
class SWAG:
    """A Gaussian around the mean of SGD's iterates, with the shape of their cloud.

    After a training, SGD goes on at a constant rate, and its weights at the end of each epoch give
    a mean ``w̄``, variances ``σ²`` and, from the last ``K`` epochs, columns ``D = w_i - w̄_i``.  A
    draw is ``w̄ + √s σ ⊙ ε + √(s / (K - 1)) D z`` (eq. 1 with ``s = ½``), with one noise vector
    ``z`` for all tensors and ``K`` the number of columns that are stored.

    Batch-norm statistics of each draw are taken from the training data anew.  That needs the data,
    so for a network with such statistics the posterior is a set of ``members`` draws.

    Attributes:
        rank: Columns kept, ``K``; zero for a diagonal Gaussian, whose variance is then whole.
        scale: ``s``.
        base: The training before.
        epochs: Epochs collected; ``None``: twice the rank, and at least 20.
        learning_rate: Constant rate of the collection; ``None``: the inverse of the largest
            curvature of the mean loss, times one minus the momentum.
        momentum: Momentum of the collection.
        members: Draws kept where there are batch-norm statistics.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    rank: int = 20
    scale: float = 0.5
    base: MaximumAPosteriori = field(default_factory=MaximumAPosteriori)
    epochs: int | None = None
    learning_rate: float | None = None
    momentum: float = 0.9
    members: int = 32
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_training(self.base, "SWAG")
        require_kinds(self)
        require_counts(0, rank=self.rank)
        require_counts(members=self.members)
        if self.epochs is not None:
            require_counts(epochs=self.epochs)
        if not 0 < self.scale < math.inf:
            raise CosetError(f"got a scale of {self.scale}", "needed a positive one")
        if self.collected < max(self.rank, 2):
            raise CosetError(
                f"got {self.epochs} epochs for a rank of {self.rank}",
                "needed at least as many epochs as the rank, and two: each gives one column",
                "collect longer, or lower the rank",
            )
        _ = SGD(1.0 if self.learning_rate is None else self.learning_rate, self.momentum)
        refuse_two_checkpoints("SWAG", self.base)

    @property
    def collected(self) -> int:
        """Epochs collected."""
        return max(2 * self.rank, 20) if self.epochs is None else self.epochs

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Posterior:
        """Trains from ``start``, or from fresh weights, and collects.

        Raises:
            CosetError: If data or weights do not fit the network, or a loss stops being finite.
        """
        (only,) = self.fit_many(problem, 1, start=start, generator=generator, progress=progress)
        return only

    def fit_many(
        self,
        problem: Problem,
        modes: int,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> tuple[Posterior, ...]:
        """Several posteriors from different beginnings, trained side by side as one stack."""
        seeds = member_seeds(modes, generator)
        starts = starting_points(problem, start, seeds)
        trained = train_stack(
            problem,
            starts,
            self.base.recipe,
            seeds,
            progress=within(progress, 0.0, 0.5, "training"),
            checkpoint=part_of(self.checkpoint, "training"),
        )
        rate = self.learning_rate or self._rate(problem, trained, generator)
        # batches of at most an eighth of the data: without gradient noise there is no cloud
        # but not of one example, of which batch norm takes no variance: nine are three times three
        least = 3 if problem.network.statistics else 1
        batch = min(self.base.batch_size, max(least, problem.train.size // 8))
        recipe = Recipe(SGD(rate, self.momentum), Constant(), self.collected, batch)
        iterates = _Iterates(problem.network.layout, self.rank)
        again = train_stack(
            problem,
            trained.weights,
            recipe,
            [seed ^ _SECOND for seed in seeds],
            progress=within(progress, 0.5, 1.0, "collecting"),
            on_epoch=iterates.collect,
            checkpoint=part_of(self.checkpoint, "collection"),
            kind=f"collection of rank {self.rank}",
        )
        report = report_of(again, problem.likelihood)
        before = report_of(trained, problem.likelihood)
        report = replace(
            report,
            diagnostics={**report.diagnostics, "learning_rate": rate},
            snapshots=before.snapshots,
        )
        return tuple(
            self._posterior(
                problem, again.collected, member, row, of_member(report, row), generator
            )
            for row, member in enumerate(unstack(again.weights))
        )

    def _rate(self, problem: Problem, trained: Trained, generator: torch.Generator) -> float:
        known = report_of(trained, problem.likelihood).likelihood
        exact = FullBatch.of(
            problem if known is None else problem.with_likelihood(known), trained.weights
        )
        positions, buffers = exact.target.split(trained.weights)
        curvature = largest_curvature(
            exact, positions, buffers, generator=generator, setting="learning_rate"
        )
        return (1 - self.momentum) * problem.train.size / curvature

    def _posterior(
        self,
        problem: Problem,
        collected: Mapping[str, Any],
        member: Weights,
        row: int,
        report: FitReport,
        generator: torch.Generator,
    ) -> Posterior:
        layout, moments = problem.network.layout, Moments(**collected["moments"])
        variance = moments.squares[row] / moments.count
        scale = self.scale if self.rank else 1.0
        columns = {}
        if self.rank:
            stored = torch.stack([column[row] for column in collected["columns"]])
            columns = layout.unflatten(stored * (scale / max(len(stored) - 1, 1)) ** 0.5)
        fixed = {name: member[name] for name in problem.network.buffers}
        gaussian = LowRankGaussian(
            layout.unflatten(moments.mean[row]),
            layout.unflatten((scale * variance).sqrt()),
            columns,
            fixed,
            report,
        )
        if not problem.network.statistics:
            return gaussian
        drawn = gaussian.sample(self.members, generator=generator)
        return Samples(refresh_statistics(problem, drawn), report=report)


@dataclass(frozen=True)
class _Iterates:
    """Running moments of the iterates, and the last columns, kept in the state of the training."""

    layout: Layout
    rank: int

    def collect(self, state: TrainingState) -> None:
        """Takes in the weights at the end of an epoch."""
        flat = self.layout.flatten(state.weights).detach()
        known = state.collected
        moments = Moments(**known["moments"]) if known else Moments.none(flat)
        moments = moments.including(flat)
        columns = (*known.get("columns", ()), flat - moments.mean)
        state.collected = {
            "moments": vars(moments),
            "columns": columns[-self.rank :] if self.rank else (),
        }
