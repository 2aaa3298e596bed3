"""The compact representation: one Gaussian for samples that differ by symmetries.

Xiao, Liu and Bamler (2023) align the samples of a posterior to one of them and fit a diagonal
Gaussian; here they are aligned to their own mean, and the Gaussian may have a covariance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from coset.alignment.by_covariance import ByCovariance
from coset.alignment.by_weights import ByWeights
from coset.alignment.match import By
from coset.bayes.problem import Problem
from coset.errors import CosetError, require_counts, require_kinds, told
from coset.inference.alignment_report import (
    chains_of,
    convergence,
    with_places,
    without_evidence,
)
from coset.inference.batch_norm import refresh_statistics
from coset.inference.compacting import (
    Places,
    by_likelihood,
    diagonal,
    find_places,
    label_switches,
    low_rank,
    moved,
    streamed,
    switches_along,
    unit_blocks,
)
from coset.inference.ensemble import DeepEnsemble
from coset.inference.folding import fold_masks
from coset.inference.foresight import expected_members, innermost
from coset.inference.method import Method, fit_telling, require_method
from coset.inference.monte_carlo_dropout import MCDropout
from coset.inference.symmetries import symmetries
from coset.posterior.families import FitReport, Posterior, Samples
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.predict import finite_members
from coset.posterior.random_masks import RandomMasks
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Inputs, Progress, Weights
from coset.weights.masks import split_masks
from coset.weights.stacking import members_of, stack, unstack

_EXAMPLES, _FEW = 5000, 8
"""Training inputs that covariances are taken from, and by which folded masks are checked."""


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
            turns; the first of them, as in the paper; or their Gaussian, found from the mean by
            matching for the highest density and fitting in turns.
        rounds: Most turns of matching and averaging.
        per_unit: A full covariance for the weights into each unit, in place of ``rank``.
        samples: Draws taken of an inner posterior that is not a finite set.
        by_outputs: Whether weights that read the data are compared by the outputs they cause on
            the training inputs (:class:`ByCovariance`), so that those of inputs that are always
            zero have no say; in place of ``align``.
        members: Draws kept where there are batch-norm statistics, which have to be taken from
            the data for each.
    """

    inner: Method = field(default_factory=DeepEnsemble)
    rank: int = 0
    align: By | None = field(default_factory=ByWeights)
    reference: Literal["mean", "first", "gaussian"] = "mean"
    rounds: int = 100
    per_unit: bool = False
    samples: int = 100
    by_outputs: bool = False
    members: int = 32

    def __post_init__(self) -> None:
        require_method(self.inner, "inner")
        require_kinds(self)
        require_counts(0, rank=self.rank)
        require_counts(rounds=self.rounds, members=self.members)
        require_counts(2, samples=self.samples)
        if self.by_outputs and self.align != ByWeights():
            raise CosetError(
                f"got by_outputs=True and align={told(self.align)}", "needed one of the two"
            )
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
        group = self._foreseen(problem)
        inner = fit_telling(
            self.inner, problem, start=start, generator=generator, progress=progress
        )
        return self._compact(problem, inner, group, generator)

    def _foreseen(self, problem: Problem) -> SymmetryGroup | None:
        """The symmetries; refuses before the inner method runs what would be refused after."""
        count = expected_members(self.inner, normalised=bool(problem.network.statistics))
        if count is not None:
            self._require_enough(count or self.samples)
        dropping = innermost(self.inner)
        if isinstance(dropping, MCDropout):
            sites, network = dropping.sites(problem), problem.network
            masks = RandomMasks(network.weights, sites, dropping.per_example)
            drawn = masks.sample(2, generator=torch.Generator().manual_seed(0))
            fold_masks(network, drawn, _some_inputs(problem, _FEW))
        return None if self.align is None else symmetries(problem)

    def _require_enough(self, count: int) -> None:
        if count < max(self.rank, 2):
            raise CosetError(
                f"got {count} samples for a rank of {self.rank}",
                "needed at least as many samples as the rank, and two",
                "let the inner method give more samples, or lower the rank",
            )

    def compact(
        self,
        problem: Problem,
        posterior: Posterior,
        *,
        generator: torch.Generator,
    ) -> Posterior:
        """The Gaussian of a posterior that is there already (samples of an earlier run, say)."""
        group = None if self.align is None else symmetries(problem)
        return self._compact(problem, posterior, group, generator)

    def _compact(
        self,
        problem: Problem,
        posterior: Posterior,
        group: SymmetryGroup | None,
        generator: torch.Generator,
    ) -> Posterior:
        members = self._members(problem, posterior, generator)
        self._require_enough(members_of(members))
        report = without_evidence(posterior.report)
        if group is None:
            return self._gaussian(problem, members, report, generator)
        separate = unstack(members)
        places = self._places(problem, group, separate, generator)
        aligned = stack(list(moved(group, places, separate)))
        chains = chains_of(posterior, members_of(members))
        numbers = label_switches(group, places, max(chains, 1))
        if chains:
            flat = problem.network.layout.flatten(aligned)
            numbers |= convergence(flat.unflatten(0, (chains, -1)).transpose(0, 1))
        report = with_places(report, places, numbers)
        return self._gaussian(problem, aligned, report, generator)

    def label_switching(
        self, problem: Problem, posterior: Posterior, *, generator: torch.Generator
    ) -> Int[Tensor, "m s"]:
        """How many units change places from each sample of a posterior to the next.

        One row a chain; for samples that are no chains, one row with all of them.
        """
        if self.align is None:
            raise CosetError("got align=None", "needed an alignment to count its changes")
        members = self._members(problem, posterior, generator)
        group, chains = symmetries(problem), chains_of(posterior, members_of(members))
        places = self._places(problem, group, unstack(members), generator)
        return switches_along(group, places, max(chains, 1))

    def compact_stream(
        self, problem: Problem, members: Sequence[Weights], *, generator: torch.Generator
    ) -> LowRankGaussian:
        """The diagonal Gaussian of samples that are read one at a time, however many there are.

        Args:
            problem: Whose network the samples belong to; it has no batch-norm statistics.
            members: Anything with a length whose ``members[k]`` reads one sample (files, say).
            generator: For matchings that use random numbers.
        """
        if self.rank or self.per_unit or problem.network.buffers:
            raise CosetError(
                "got samples one at a time for a covariance, or for a network with batch-norm "
                "statistics or frozen parameters",
                "needed a diagonal fit",
                "use compact with all samples",
            )
        if len(members) < 2:
            raise CosetError(f"got {len(members)} samples", "needed two at least")
        if split_masks(members[0])[1]:
            raise CosetError(
                "got samples with dropout masks, one at a time",
                "needed weights alone",
                "use compact with all samples, which folds the masks into the weights",
            )
        layout = problem.network.layout
        if self.align is None:
            return streamed((members[k] for k in range(len(members))), layout, FitReport())
        group = symmetries(problem)
        places = self._places(problem, group, members, generator)
        report = with_places(FitReport(), places, label_switches(group, places))
        return streamed(moved(group, places, members), layout, report)

    def _places(
        self,
        problem: Problem,
        group: SymmetryGroup,
        members: Sequence[Weights],
        generator: torch.Generator,
    ) -> Places:
        assert self.align is not None
        places = find_places(
            group,
            members,
            by=_through_outputs(problem) if self.by_outputs else self.align,
            to_mean=self.reference != "first",
            rounds=self.rounds,
            generator=generator,
        )
        if self.reference != "gaussian":
            return places
        return by_likelihood(group, members, places, rounds=self.rounds, generator=generator)

    def _members(
        self, problem: Problem, posterior: Posterior, generator: torch.Generator
    ) -> Weights:
        """Whole networks: what draws leave out is the module's own, and masks become weights."""
        drawn = fold_masks(
            problem.network, self._drawn(posterior, generator), _some_inputs(problem, _FEW)
        )
        count, own = members_of(drawn), problem.network.weights
        return {
            name: drawn.get(name, tensor.expand(count, *tensor.shape))
            for name, tensor in own.items()
        }

    def _drawn(self, posterior: Posterior, generator: torch.Generator) -> Weights:
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
        fixed = {name: aligned[name].mean(0) for name in network.statistics}
        fixed |= {name: aligned[name][0] for name in network.frozen}  # all alike
        gaussian: Posterior
        if self.per_unit:
            gaussian = unit_blocks(samples, fixed, report)
        elif self.rank:
            gaussian = low_rank(samples, self.rank, fixed, report)
        else:
            gaussian = diagonal(samples, fixed, report)
        if not network.statistics:
            return gaussian
        drawn = gaussian.sample(self.members, generator=generator)
        return Samples(refresh_statistics(problem, drawn), report=report)


def _through_outputs(problem: Problem) -> ByCovariance:
    """Matching through the covariance of the training inputs."""
    assert problem.network.module is not None, "its symmetries have been found"
    return ByCovariance(problem.network.module, _some_inputs(problem, _EXAMPLES))


def _some_inputs(problem: Problem, most: int) -> Inputs:
    """At most so many training inputs, evenly spread."""
    size = problem.train.size
    return problem.train.rows(torch.linspace(0, size - 1, min(size, most)).long())[0]
