"""The compact representation: one Gaussian for samples that differ by symmetries.

Xiao, Liu and Bamler (2023) align the samples of a posterior to one of them and fit a diagonal
Gaussian; here they are aligned to their own mean, and the Gaussian may have a covariance.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from coset.alignment.by_weights import ByWeights
from coset.alignment.match import By
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.batch_norm import refresh_statistics
from coset.inference.compacting import (
    Aligned,
    align,
    diagonal,
    label_switches,
    low_rank,
    stream,
    unaligned,
    unit_blocks,
)
from coset.inference.diagnostics import r_hat, some_weights
from coset.inference.ensemble import DeepEnsemble
from coset.inference.method import Method
from coset.posterior.families import FitReport, Posterior, Samples
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.predict import finite_members
from coset.symmetry.discover import discover
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Progress, Weights
from coset.weights.stacking import members_of

_MEMBERS = 32
"""Draws kept where batch-norm statistics have to be taken from the data for each."""


@dataclass(frozen=True)
class RebasedGaussian:
    """Moves the samples of another method along their orbits, then fits a Gaussian to them.

    With ``align`` the samples first become as alike as the network's symmetries allow, without a
    change of their functions.  The fit is ``N(mean, diag(std²) + Σ f fᵀ)`` with the ``rank``
    leading directions ``f`` of the samples, and on the diagonal what they leave.

    Attributes:
        inner: The method that gives samples: an ensemble, HMC, anything.
        rank: Directions kept; zero for a diagonal Gaussian, as in the paper.
        align: How samples are matched; ``None``: not at all (the paper's q_d).
        reference: What they are matched to: their own mean, found by matching and averaging in
            turns, or the first of them, as in the paper.
        rounds: Most turns of matching and averaging.
        per_unit: A full covariance for the weights into each unit, in place of ``rank``.
        samples: Draws taken of an inner posterior that is not a finite set.
    """

    inner: Method = field(default_factory=DeepEnsemble)
    rank: int = 0
    align: By | None = field(default_factory=ByWeights)
    reference: Literal["mean", "first"] = "mean"
    rounds: int = 10
    per_unit: bool = False
    samples: int = 100

    def __post_init__(self) -> None:
        if self.rank < 0 or self.rounds < 1 or self.samples < 2:
            raise CosetError(
                f"got a rank of {self.rank}, {self.rounds} rounds and {self.samples} samples",
                "needed a rank of 0 or more, a round and two samples at least",
            )
        if self.reference not in ("mean", "first"):
            raise CosetError(f"got reference={self.reference!r}", 'needed "mean" or "first"')
        if self.per_unit and self.rank:
            raise CosetError(
                f"got per_unit=True and a rank of {self.rank}", "needed one of the two"
            )

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Posterior:
        """Fits the inner method, aligns its samples, and fits the Gaussian.

        Raises:
            CosetError: If there are fewer samples than the rank, or the network cannot be traced.
        """
        inner = self.inner.fit(problem, start=start, generator=generator)
        return self.compact(problem, inner, generator=generator, progress=progress)

    def compact(
        self,
        problem: Problem,
        posterior: Posterior,
        *,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Posterior:
        """The Gaussian of a posterior that is there already (samples of an earlier run, say)."""
        members = self._members(posterior, generator)
        count = members_of(members)
        if count < max(self.rank, 2):
            raise CosetError(
                f"got {count} samples for a rank of {self.rank}",
                "needed at least as many samples as the rank, and two",
                "let the inner method give more samples, or lower the rank",
            )
        if self.align is None:
            aligned, numbers = unaligned(members), dict[str, float]()
        else:
            group = symmetries(problem)
            aligned = align(
                group,
                members,
                by=self.align,
                to_mean=self.reference == "mean",
                rounds=self.rounds,
                generator=generator,
                progress=progress,
            )
            numbers = label_switches(group, aligned)
        report = self._report(posterior.report, aligned, numbers, problem)
        return self._gaussian(problem, aligned.weights, report, generator)

    def compact_stream(
        self,
        problem: Problem,
        source: Callable[[], Iterable[Weights]],
        *,
        generator: torch.Generator,
    ) -> LowRankGaussian:
        """The diagonal Gaussian of samples that are read one at a time, however many there are.

        Args:
            problem: Whose network the samples belong to; it has no batch-norm statistics.
            source: Gives all samples in the same order whenever it is called (files, say).
            generator: For matchings that use random numbers.
        """
        if self.rank or self.per_unit or self.align is None or problem.network.buffers:
            raise CosetError(
                "got samples one at a time for a covariance, without an alignment, or for a "
                "network with batch-norm statistics",
                "needed a diagonal fit of aligned samples",
                "use compact with all samples",
            )
        layout, group = problem.network.layout, symmetries(problem)
        found = stream(
            group,
            source,
            layout,
            by=self.align,
            to_mean=self.reference == "mean",
            rounds=self.rounds,
            generator=generator,
        )
        count = len(found.elements)
        if count < 2:
            raise CosetError(f"got {count} samples", "needed two at least")
        std = (found.moments.squares[0] / (count - 1)).sqrt()
        warnings = () if found.settled else (_unsettled(found.rounds),)
        return LowRankGaussian(
            layout.unflatten(found.moments.mean[0]),
            layout.unflatten(std),
            report=FitReport(diagnostics={"rounds": float(found.rounds)}, warnings=warnings),
        )

    def _members(self, posterior: Posterior, generator: torch.Generator) -> Weights:
        finite = finite_members(posterior)
        if finite is None:
            return posterior.sample(self.samples, generator=generator)
        stack, log_weights = finite
        if log_weights is None:
            return stack
        return posterior.sample(max(self.samples, members_of(stack)), generator=generator)

    def _gaussian(
        self, problem: Problem, aligned: Weights, report: FitReport, generator: torch.Generator
    ) -> Posterior:
        network = problem.network
        samples = {name: aligned[name] for name in network.layout.names}
        fixed = {name: aligned[name].mean(0) for name in network.buffers}
        gaussian: Posterior
        if self.per_unit:
            gaussian = unit_blocks(samples, fixed, report)
        elif self.rank:
            gaussian = low_rank(samples, self.rank, fixed, report)
        else:
            gaussian = diagonal(samples, fixed, report)
        if not fixed:
            return gaussian
        drawn = gaussian.sample(_MEMBERS, generator=generator)
        return Samples(refresh_statistics(problem, drawn), report=report)

    def _report(
        self, inner: FitReport, aligned: Aligned, numbers: dict[str, float], problem: Problem
    ) -> FitReport:
        found = {**inner.diagnostics, **numbers, "rounds": float(aligned.rounds)}
        chains = int(inner.diagnostics.get("chains", 0))
        flat = problem.network.layout.flatten(aligned.weights)
        if chains and len(flat) % chains == 0 and len(flat) // chains >= 4:
            by_chain = flat.unflatten(0, (chains, -1)).transpose(0, 1)
            found["r_hat_aligned_weights"] = float(r_hat(some_weights(by_chain)).max())
        warnings = inner.warnings
        if not aligned.settled:
            warnings += (_unsettled(aligned.rounds),)
        return replace(inner, diagnostics=found, warnings=warnings, log_evidence=None)


def _unsettled(rounds: int) -> str:
    return f"the alignment had not settled after {rounds} rounds; raise rounds"


def symmetries(problem: Problem) -> SymmetryGroup:
    """The symmetry group of a problem's network, traced on its first example."""
    module = problem.network.module
    if module is None:
        raise CosetError(
            "got a network without its module, whose symmetries cannot be found",
            "needed one made by functionalise",
            "make the problem with functionalise(module), or use align=None",
        )
    inputs: Tensor = problem.train.rows(torch.arange(1))[0]
    return discover(module, inputs)
