"""Posterior families: what a method returns, and how one draws from it.

A posterior knows its tensors and how to be sampled, and nothing else; predicting is a function of
posterior, network, likelihood and rule (:mod:`coset.posterior.predict`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.bayes.prior import GaussianPrior
from coset.posterior.draws import check_draws
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.weights.stacking import members_of


@dataclass(frozen=True)
class Snapshot:
    """Weights as they were after an epoch of training: of one network, or a stack."""

    epoch: int
    weights: Weights

    __repr__ = brief


@dataclass(frozen=True)
class FitReport:
    """What a fit found out besides the posterior itself.

    Attributes:
        likelihood: The likelihood with its learnt noise, where a method learns one.
        prior: The prior with its tuned precisions, where a method tunes them.
        log_evidence: The log marginal likelihood, for methods that have one.
        evidence_curvature: The structure whose determinant is in it, such as ``"KFAC"``;
            ``"Full"``: the exact one.
        diagnostics: Named numbers (final loss, acceptance, R-hat).
        warnings: What a reader of the results must know: no convergence, switched-off groups.
        snapshots: Weights along the training, where they were asked for.
    """

    likelihood: Likelihood | None = None
    prior: GaussianPrior | None = None
    log_evidence: float | None = None
    evidence_curvature: str | None = None
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()

    __repr__ = brief


@runtime_checkable
class Posterior(Protocol):
    """A distribution over weights."""

    @property
    def layout(self) -> Layout:
        """The tensors a draw contains."""
        ...

    @property
    def report(self) -> FitReport:
        """What the fit found out."""
        ...

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """A stack of ``draws`` members."""
        ...


@runtime_checkable
class Finite(Protocol):
    """A posterior that is a finite set of members: predictions integrate it exactly."""

    @property
    def members(self) -> Weights:
        """All members, as a stack."""
        ...

    @property
    def log_weights(self) -> Float[Tensor, " m"]:
        """Normalised log-weight of each member."""
        ...


def snapshots_of(posterior: Posterior) -> Mapping[int, Weights]:
    """Weights along the training, by epoch, where :class:`coset.Snapshots` asked for them."""
    return {each.epoch: each.weights for each in posterior.report.snapshots}


@dataclass(frozen=True)
class PointMass:
    """All mass on one setting of the weights (maximum a posteriori)."""

    weights: Weights
    report: FitReport = FitReport()

    __repr__ = brief
    snapshots = property(snapshots_of)

    @cached_property
    def layout(self) -> Layout:
        """The tensors of the point."""
        return Layout.of(self.weights)

    @property
    def members(self) -> Weights:
        """The point, as a stack of one."""
        return {name: tensor.unsqueeze(0) for name, tensor in self.weights.items()}

    @property
    def log_weights(self) -> Float[Tensor, " m"]:
        """One member has weight one."""
        return torch.zeros(1)

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """The same weights ``draws`` times."""
        check_draws(draws, generator)
        return {name: tensor.expand(draws, *tensor.shape) for name, tensor in self.weights.items()}


@dataclass(frozen=True)
class Samples:
    """A finite set of members, equally likely unless ``log_weights`` says otherwise."""

    stack: Weights
    weighting: Float[Tensor, " m"] | None = None
    report: FitReport = FitReport()

    __repr__ = brief
    snapshots = property(snapshots_of)

    @cached_property
    def layout(self) -> Layout:
        """The tensors of one member."""
        names = tuple(self.stack)
        return Layout(names, tuple(tuple(self.stack[name].shape[1:]) for name in names))

    @property
    def members(self) -> Weights:
        """All members."""
        return self.stack

    @cached_property
    def log_weights(self) -> Float[Tensor, " m"]:
        """Normalised log-weights."""
        if self.weighting is None:
            return torch.zeros(members_of(self.stack)).log_softmax(0)
        return self.weighting.log_softmax(0)

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """Exactly ``draws`` members.

        Equal weights: without repeating one before all have been drawn, so that asking for as many
        draws as members gives each once.  Unequal weights: independent draws.
        """
        check_draws(draws, generator)
        count = members_of(self.stack)
        if self.weighting is None:
            rounds = -(-draws // count)
            order = [torch.randperm(count, generator=generator) for _ in range(rounds)]
            index = torch.cat(order)[:draws]
        else:
            index = torch.multinomial(
                self.log_weights.exp(), draws, replacement=True, generator=generator
            )
        return {name: tensor[index] for name, tensor in self.stack.items()}


@dataclass(frozen=True)
class Mixture:
    """A mixture of posteriors, one component per mode."""

    components: tuple[Posterior, ...]
    weighting: Float[Tensor, " k"] | None = None
    report: FitReport = FitReport()

    __repr__ = brief
    snapshots = property(snapshots_of)

    @property
    def layout(self) -> Layout:
        """The tensors of a draw of the first component, which all share."""
        return self.components[0].layout

    @cached_property
    def log_weights(self) -> Float[Tensor, " k"]:
        """Normalised log-weight of each component."""
        count = len(self.components)
        return (torch.zeros(count) if self.weighting is None else self.weighting).log_softmax(0)

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """Draws shared out over the components in proportion to their weights.

        Systematic sampling: a component of weight ``w`` gets ``⌊w · draws⌋`` or one more.
        """
        check_draws(draws, generator)
        counts = _systematic_counts(self.log_weights.exp(), draws, generator)
        parts = [
            component.sample(count, generator=generator)
            for component, count in zip(self.components, counts, strict=True)
            if count
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _systematic_counts(
    weights: Float[Tensor, " k"], draws: int, generator: torch.Generator
) -> list[int]:
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    edges = weights.double().cumsum(0)
    edges[-1] = 1.0  # rounding must not lose the last draw
    points = (torch.arange(draws, dtype=torch.float64) + offset) / draws
    return torch.bincount(torch.bucketize(points, edges), minlength=len(weights)).tolist()
