"""The run loop of all samplers: warm-up, thinning, several chains at once, exact resume."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.errors import require_counts
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.run_fingerprint import described, digest
from coset.inference.run_record import Checkpoint, RunRecord, refilled
from coset.vocabulary import Progress, Weights
from coset.weights.denormals import denormals_as_zeros
from coset.weights.randomness import own_state, set_own_state

_SECONDS_BETWEEN_REPORTS = 0.25


class Sampler(Protocol):
    """What all samplers can be told; their fields say what they mean."""

    @property
    def step_size(self) -> float | None:
        """Of one step; ``None``: chosen by the sampler."""
        ...

    @property
    def draws(self) -> int:
        """States kept of each chain."""
        ...

    @property
    def thinning(self) -> int:
        """Steps from one kept state to the next."""
        ...

    @property
    def chains(self) -> int:
        """Chains run side by side."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Where the run is written down."""
        ...


@dataclass(frozen=True)
class Begun:
    """A problem with chains at their first weights.

    Attributes:
        problem: What is sampled; its noise is known.
        seeds: One a chain.
        stack: The first weights.
    """

    problem: Problem
    seeds: Sequence[int]
    stack: Weights

    @staticmethod
    def of(
        sampler: Sampler, problem: Problem, start: Weights | None, generator: torch.Generator
    ) -> "Begun":
        """Chains of a sampler, from ``start`` or from fresh weights."""
        seeds = member_seeds(sampler.chains, generator)
        return Begun(problem, seeds, starting_points(problem, start, seeds))

    def record(self, sampler: Sampler, generator: torch.Generator) -> RunRecord:
        """Where the run of a sampler is written down."""

        def settings() -> Mapping[str, Any]:
            return {
                "kind": "chains",
                "method": described(sampler),
                "seed": int(generator.initial_seed()),
                "generator": digest({"": generator.get_state()}),
            }

        return RunRecord.of(sampler.checkpoint, self.problem, self.stack, settings)


class Chains(Protocol):
    """What every state of a kernel has."""

    @property
    def positions(self) -> Float[Tensor, "m p"]:
        """Parameters of each chain."""
        ...

    @property
    def buffers(self) -> Float[Tensor, "m q"]:
        """Buffers of each chain."""
        ...


State = TypeVar("State", bound=Chains)


class Kernel(Protocol[State]):
    """One way to move all chains by one step; states are frozen dataclasses of tensors."""

    def step(
        self, state: State, number: int, *, generator: torch.Generator
    ) -> tuple[State, Mapping[str, Float[Tensor, " m"]]]:
        """The state after step ``number``, counted from 0 at the start of the warm-up.

        Also returns what is recorded of the step, one number a chain each.
        """
        ...


@dataclass(frozen=True)
class Length:
    """How long chains run and which states are kept.

    Attributes:
        warmup: Steps before the first that may be kept.
        draws: States kept of each chain.
        thinning: Steps from one kept state to the next.
        chains: Chains run side by side.
    """

    warmup: int
    draws: int
    thinning: int
    chains: int

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("draws", 1), ("thinning", 1), ("chains", 1)):
            require_counts(least, **{name: getattr(self, name)})

    @property
    def steps(self) -> int:
        """All steps of a chain."""
        return self.warmup + self.draws * self.thinning

    def keeps(self, number: int) -> bool:
        """Whether the state after step ``number`` is kept.

        >>> [step for step in range(8) if Length(2, 3, 2, 1).keeps(step)]
        [3, 5, 7]
        """
        return number >= self.warmup and (number - self.warmup + 1) % self.thinning == 0


class Keeping(Protocol):
    """Which states of a run are kept; :class:`Length` or a cyclical schedule."""

    @property
    def steps(self) -> int:
        """All steps of a chain."""
        ...

    @property
    def warmup(self) -> int:
        """Steps before anything is recorded."""
        ...

    def keeps(self, number: int) -> bool:
        """Whether the state after step ``number`` is kept."""
        ...


@dataclass(frozen=True)
class History(Generic[State]):
    """What a run leaves behind.

    Attributes:
        positions: Kept parameters, draws first, then chains.
        buffers: Kept buffers.
        records: What the kernel recorded after the warm-up, ``(steps, m)`` each.
        state: The last state.
    """

    positions: Float[Tensor, "d m p"]
    buffers: Float[Tensor, "d m q"]
    records: Mapping[str, Float[Tensor, "s m"]]
    state: State


@denormals_as_zeros()
def run(
    kernel: Kernel[State],
    state: State,
    keeping: Keeping,
    *,
    generator: torch.Generator,
    record: RunRecord,
    progress: Progress | None = None,
) -> History[State]:
    """Runs all chains from ``state``, or on from where their record is.

    Args:
        kernel: How to take a step.
        state: The first state.
        keeping: How long, and what to keep.
        generator: The only source of randomness.
        record: Where the run is written down.
        progress: Told a few times a second how far the chains are.
    """
    fresh: dict[str, list[Tensor]] = {"positions": [], "buffers": []}
    collected: dict[str, list[Tensor]] = {name: [] for name in fresh}
    begin = 0
    earlier = record.resume(lambda saved: _taken_up(state, saved, generator))
    if earlier is not None:
        state, begin = earlier
        collected |= record.appended(begin)
    written, last = begin, 0.0
    for number in range(begin, keeping.steps):
        state, told = kernel.step(state, number, generator=generator)
        if keeping.keeps(number):
            fresh["positions"].append(state.positions)
            fresh["buffers"].append(state.buffers)
        if number >= keeping.warmup:
            for name, values in told.items():
                fresh.setdefault(f"record.{name}", []).append(values)
        done = number + 1
        if record.due(done) or done == keeping.steps:
            record.append(written, done, fresh)
            random = {"generator": generator.get_state(), "torch": own_state()}
            record.write({"step": done, "chains": state, **random})
            fresh, collected = _moved(fresh, collected)
            written = done
        if progress is not None and (
            time.monotonic() - last > _SECONDS_BETWEEN_REPORTS or done == keeping.steps
        ):
            last = time.monotonic()
            phase = "warm-up" if number < keeping.warmup else "sampling"
            progress(done / keeping.steps, f"{phase}, step {done} of {keeping.steps}")
    _, collected = _moved(fresh, collected)
    return _history(state, collected)


def _taken_up(
    first: State, saved: Mapping[str, Any], generator: torch.Generator
) -> tuple[State, int]:
    """State and step of a run that was written down; its generators go on too."""
    state = refilled(first, saved["chains"])
    generator.set_state(saved["generator"])
    set_own_state(saved["torch"])
    return state, int(saved["step"])


def _moved(
    fresh: dict[str, list[Tensor]], collected: dict[str, list[Tensor]]
) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    joined = {name: collected.get(name, []) + values for name, values in fresh.items()}
    return {name: [] for name in fresh}, collected | joined


def _history(state: State, collected: Mapping[str, list[Tensor]]) -> History[State]:
    records = {
        name.removeprefix("record."): torch.stack(values)
        for name, values in collected.items()
        if name.startswith("record.") and values
    }
    return History(
        torch.stack(collected["positions"]), torch.stack(collected["buffers"]), records, state
    )
