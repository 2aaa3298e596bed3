"""What SGLD and SGHMC share: chains over batches of the data, begun, run and reported alike."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.errors import CosetError, require_counts, require_kinds
from coset.inference.diagnostics import collect
from coset.inference.sampling.chains import Begun, Keeping, Length, Sampler, run
from coset.inference.sampling.step_sizes import largest_curvature
from coset.inference.sampling.targets import FullBatch, MiniBatch, require_finite
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights
from coset.weights.randomness import own_randomness

_LOOKS = 4
"""How often in the burn-in the largest curvature is measured."""


@dataclass(frozen=True)
class Cyclical:
    """Steps that fall along half a cosine, again and again (Zhang et al. 2020, eq. 1).

    Each cycle begins with large steps and no noise, to find another mode, and ends with small
    steps and noise, to sample around it.

    Attributes:
        cycles: How many.
        length: Steps of a cycle.
        exploration: Share of a cycle without noise, of which nothing is kept.
        draws: States kept of each cycle, evenly spaced over the rest of it.
    """

    cycles: int = 4
    length: int = 1000
    exploration: float = 0.5
    draws: int = 10

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(cycles=self.cycles, length=self.length, draws=self.draws)
        if not 0 <= self.exploration < 1:
            raise CosetError(f"got exploration={self.exploration}", "needed 0 ≤ value < 1")
        if self.draws > self.length - self._quiet:
            raise CosetError(
                f"got {self.draws} draws of {self.length - self._quiet} steps with noise",
                "needed at most as many as there are such steps",
            )

    @property
    def _quiet(self) -> int:
        return int(self.exploration * self.length)

    @property
    def steps(self) -> int:
        """All steps of a chain."""
        return self.cycles * self.length

    @property
    def warmup(self) -> int:
        """The exploration of the first cycle."""
        return self._quiet

    def factor(self, number: int) -> float:
        """What the step size is multiplied by.

        >>> [round(Cyclical(2, 4, 0.5, 1).factor(step), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 1.0]
        """
        return (1 + math.cos(math.pi * (number % self.length) / self.length)) / 2

    def noisy(self, number: int) -> bool:
        """Whether a step has noise."""
        return number % self.length >= self._quiet

    def keeps(self, number: int) -> bool:
        """Whether the state after step ``number`` is kept.

        >>> [step for step in range(8) if Cyclical(2, 4, 0.5, 1).keeps(step)]
        [3, 7]
        """
        place, room = number % self.length - self._quiet + 1, self.length - self._quiet
        return place > 0 and (place * self.draws) // room > ((place - 1) * self.draws) // room


@dataclass(frozen=True)
class StochasticState:
    """The chains, their velocities, and the largest curvature seen."""

    positions: Float[Tensor, "m p"]
    buffers: Float[Tensor, "m q"]
    velocity: Float[Tensor, "m p"]
    curvature: Float[Tensor, ""]


@dataclass(frozen=True)
class Step:
    """The sizes of one step.

    Attributes:
        size: Step size, times the schedule's factor.
        temperature: Of the noise; zero while a cycle explores.
    """

    size: float
    temperature: float


class StochasticSampler(Sampler, Protocol):
    """A sampler whose gradients come from batches."""

    @property
    def burn_in(self) -> int:
        """Steps before the first that is kept."""
        ...

    @property
    def schedule(self) -> Cyclical | None:
        """How long chains run with cycles."""
        ...

    @property
    def temperature(self) -> float:
        """Of the noise."""
        ...

    @property
    def batch_size(self) -> int:
        """Examples in a batch."""
        ...

    def choose_step(self, curvature: float, batch: float) -> float:
        """A step size for the largest curvature, when a batch is this share of the data."""
        ...

    def move(
        self,
        state: StochasticState,
        gradient: Float[Tensor, "m p"],
        noise: Float[Tensor, "m p"],
        step: Step,
    ) -> StochasticState:
        """One step of all chains."""
        ...


@dataclass(frozen=True)
class _Bound:
    """A sampler tied to its data: a kernel."""

    sampler: StochasticSampler
    batches: MiniBatch
    exact: FullBatch
    keeping: Keeping
    chosen: list[float] = field(default_factory=list)

    def step(
        self, state: StochasticState, number: int, *, generator: torch.Generator
    ) -> tuple[StochasticState, Mapping[str, Float[Tensor, " m"]]]:
        """One step of all chains."""
        state = self._looked(state, number, generator)
        step = self.sizes(state, number)
        found = self.batches(number, state.positions, state.buffers)
        require_finite(found.energy, found.gradient, where=f"at step {number + 1}")
        noise = torch.randn(
            state.positions.shape,
            dtype=state.positions.dtype,
            device=state.positions.device,
            generator=generator,
        )
        moved = self.sampler.move(
            replace(state, buffers=found.buffers), found.gradient, noise, step
        )
        return moved, {"mean_energy": found.energy}

    def _looked(
        self, state: StochasticState, number: int, generator: torch.Generator
    ) -> StochasticState:
        """Measures the curvature from time to time while nothing is kept yet."""
        every = max(1, self.keeping.warmup // _LOOKS)
        early = number <= self.keeping.warmup and number % every == 0
        if self.sampler.step_size is not None or not (number == 0 or early):
            return state
        now = largest_curvature(self.exact, state.positions, state.buffers, generator=generator)
        # the last look is where the chains stay; the ones before keep the way there stable
        return replace(state, curvature=torch.tensor(now, dtype=torch.float64))

    def sizes(self, state: StochasticState, number: int) -> Step:
        """The sizes of step ``number``."""
        share = self.batches.batch_size / self.batches.target.problem.train.size
        size = self.sampler.step_size
        if size is None:
            size = self.sampler.choose_step(float(state.curvature), share)
        cycles = self.sampler.schedule
        if cycles is None:
            return Step(size, self.sampler.temperature)
        temperature = self.sampler.temperature if cycles.noisy(number) else 0.0
        return Step(size * cycles.factor(number), temperature)


def sample(
    sampler: StochasticSampler,
    problem: Problem,
    *,
    learnt: Likelihood | None,
    start: Weights | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Samples:
    """Runs a sampler's chains and reports how they went; ``learnt`` is the likelihood, if it was.

    Dropout is off; batch norm works on batches, and its running statistics go with the draws.
    """
    begun = Begun.of(sampler, problem, start, generator)
    with own_randomness(begun.seeds[0]):
        return _sample(sampler, begun, learnt, generator, progress)


def _sample(
    sampler: StochasticSampler,
    begun: Begun,
    learnt: Likelihood | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Samples:
    batches = MiniBatch.of(begun.problem, begun.stack, sampler.batch_size, begun.seeds[0])
    positions, buffers = (part.detach().clone() for part in batches.target.split(begun.stack))
    keeping: Keeping = sampler.schedule or length_of(sampler)
    kernel = _Bound(sampler, batches, FullBatch.of(begun.problem, begun.stack), keeping)
    none = torch.zeros((), dtype=torch.float64)
    state = StochasticState(positions, buffers, torch.zeros_like(positions), none)
    history = run(
        kernel,
        state,
        keeping,
        generator=generator,
        record=begun.record(sampler, generator),
        progress=progress,
    )
    return collect(batches.target, history, kernel.sizes(history.state, 0).size, learnt)


def length_of(sampler: StochasticSampler) -> Length:
    """How long the chains of a sampler run without cycles."""
    return Length(sampler.burn_in, sampler.draws, sampler.thinning, sampler.chains)


def check_settings(sampler: StochasticSampler) -> None:
    """Refuses settings that cannot be run."""
    require_kinds(sampler)
    require_counts(0, burn_in=sampler.burn_in)  # by the name that it has here
    _ = length_of(sampler)
    size = sampler.step_size
    if size is not None and not 0 < size < math.inf:
        raise CosetError(f"got a step size of {size}", "needed a positive number, or None")
    if not 0 <= sampler.temperature < math.inf:
        raise CosetError(f"got a temperature of {sampler.temperature}", "needed zero or more")
    require_counts(batch_size=sampler.batch_size)
