"""What HMC and NUTS share: chains over the exact energy, begun, run and reported alike."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.diagnostics import collect
from coset.inference.sampling.adaptation import Warmup, fellows
from coset.inference.sampling.axes import along_axes
from coset.inference.sampling.chains import Begun, Length, Sampler, run
from coset.inference.sampling.hamiltonian import (
    Energy,
    HamiltonianState,
    Point,
    fresh_momenta,
    single_step_acceptance,
)
from coset.inference.sampling.targets import FullBatch, require_finite
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights
from coset.weights.randomness import own_randomness


class FullBatchSampler(Sampler, Protocol):
    """A sampler that needs the exact energy."""

    @property
    def target_acceptance(self) -> float:
        """What the adaptation aims at."""
        ...

    @property
    def adapt_mass(self) -> bool:
        """Whether the mass is adapted."""
        ...

    @property
    def warmup(self) -> int:
        """Steps before the first that is kept."""
        ...

    def step(
        self, energy: Energy, state: HamiltonianState, number: int, *, generator: torch.Generator
    ) -> tuple[HamiltonianState, Mapping[str, Float[Tensor, " m"]]]:
        """One step of all chains."""
        ...


def length_of(sampler: FullBatchSampler) -> Length:
    """How long the chains of a sampler run."""
    return Length(sampler.warmup, sampler.draws, sampler.thinning, sampler.chains)


def warmup_of(sampler: FullBatchSampler) -> Warmup:
    """How the warm-up of a sampler goes."""
    return Warmup(sampler.warmup, sampler.step_size, sampler.target_acceptance, sampler.adapt_mass)


def check_settings(sampler: FullBatchSampler) -> None:
    """Refuses settings that cannot be run."""
    _ = length_of(sampler), warmup_of(sampler)


def begin_step(
    sampler: FullBatchSampler, state: HamiltonianState, number: int, *, generator: torch.Generator
) -> tuple[Point, float]:
    """Where a trajectory begins, with fresh momenta, and its step size."""
    mass = state.adaptation.inverse_mass
    momenta = fresh_momenta(state.positions, mass, generator=generator)
    size = warmup_of(sampler).size(state.adaptation, number)
    return Point(state.positions, momenta, state.energy, state.gradient), size


def end_step(
    sampler: FullBatchSampler,
    energy: Energy,
    state: HamiltonianState,
    number: int,
    point: Point,
    acceptance: Float[Tensor, " m"],
    *,
    generator: torch.Generator,
) -> HamiltonianState:
    """The state at the point a trajectory has chosen, with what is learnt from it."""
    learnt = warmup_of(sampler).after(
        state.adaptation,
        number,
        point.positions,
        point.gradient,
        float(acceptance.mean()),
        single_step_acceptance(
            energy, point.positions, point.energy, point.gradient, generator=generator
        ),
    )
    return HamiltonianState(point.positions, state.buffers, point.energy, point.gradient, learnt)


@dataclass(frozen=True)
class _Bound:
    """A sampler tied to its energy: a kernel."""

    sampler: FullBatchSampler
    energy: Energy

    def step(
        self, state: HamiltonianState, number: int, *, generator: torch.Generator
    ) -> tuple[HamiltonianState, Mapping[str, Float[Tensor, " m"]]]:
        """One step of all chains."""
        return self.sampler.step(self.energy, state, number, generator=generator)


def sample(
    sampler: FullBatchSampler,
    problem: Problem,
    *,
    learnt: Likelihood | None,
    start: Weights | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Samples:
    """Runs a sampler's chains and reports how they went; ``learnt`` is the likelihood, if it was.

    Batch-norm statistics stay those of the first weights, and dropout is off: the energy is that of
    the network in evaluation mode.
    """
    begun = Begun.of(sampler, problem, start, generator)
    with own_randomness(begun.seeds[0]):
        return _sample(sampler, begun, learnt, generator, progress)


def _sample(
    sampler: FullBatchSampler,
    begun: Begun,
    learnt: Likelihood | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Samples:
    problem, length = begun.problem, length_of(sampler)
    turned, axes = along_axes(problem)
    target = FullBatch.of(turned, begun.stack)
    positions, buffers = (part.detach().clone() for part in target.target.split(begun.stack))
    energy = Energy.of(target, buffers)
    history = run(
        _Bound(sampler, energy),
        _begin(
            sampler,
            target,
            energy,
            positions if axes is None else axes.turned(positions),
            buffers,
            generator,
        ),
        length,
        generator=generator,
        record=begun.record(sampler, generator),
        progress=progress,
    )
    if axes is not None:
        history = replace(history, positions=axes.back(history.positions))
    size = warmup_of(sampler).size(history.state.adaptation, length.steps)
    _require_moves(float(history.records["acceptance"].mean()), size)
    return collect(replace(target.target, problem=problem), history, size, learnt)


def _begin(
    sampler: FullBatchSampler,
    target: FullBatch,
    energy: Energy,
    positions: Float[Tensor, "m p"],
    buffers: Float[Tensor, "m q"],
    generator: torch.Generator,
) -> HamiltonianState:
    first = energy(positions)
    require_finite(first.energy, first.gradient, where="at the first weights")
    acceptance = single_step_acceptance(
        energy, positions, first.energy, first.gradient, generator=generator
    )
    groups = fellows(target.target.parameters).to(positions.device)
    begun = warmup_of(sampler).begin(positions, first.gradient, groups, acceptance)
    return HamiltonianState(positions, buffers, first.energy, first.gradient, begun)


def _require_moves(acceptance: float, size: float) -> None:
    if acceptance < 1e-3:
        raise CosetError(
            f"got chains that refuse every step: a mean acceptance of {acceptance:.2g} "
            f"with a step size of {size:.3g}",
            "needed steps that are accepted",
            "leave step_size=None with a longer warm-up, or give a smaller one",
        )
