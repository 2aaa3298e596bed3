"""What Hamiltonian samplers learn during the warm-up: a step size and a diagonal mass.

One step size and one mass serve all chains, so that every chain learns from the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError

_FIRST, _LAST, _WINDOW = 0.15, 0.1, 25
"""Shares of the warm-up without a change of mass at both ends, and steps of the first window."""

_SHORT = 80
"""Steps below which a warm-up leaves the mass alone."""


@dataclass(frozen=True)
class StepSize:
    """Dual averaging of the step size (Hoffman and Gelman 2014, algorithm 5).

    Attributes:
        log_step: The step size to try next, its logarithm.
        log_mean: The running mean, which is used after the warm-up.
        error: Running mean of target minus observed acceptance.
        centre: What ``log_step`` is pulled to.
        count: Updates since the last restart.
    """

    log_step: Float[Tensor, ""]
    log_mean: Float[Tensor, ""]
    error: Float[Tensor, ""]
    centre: Float[Tensor, ""]
    count: Float[Tensor, ""]

    @staticmethod
    def starting_at(step: float) -> "StepSize":
        """Begins at ``step`` and looks upwards first."""
        log_step = torch.tensor(math.log(step), dtype=torch.float64)
        zero = torch.zeros((), dtype=torch.float64)
        return StepSize(log_step, log_step, zero, log_step + math.log(10), zero)

    def updated(self, acceptance: float, target: float) -> "StepSize":
        """Learns from the mean acceptance of one step of all chains."""
        count = self.count + 1
        share = 1 / (count + 10)
        error = (1 - share) * self.error + share * (target - acceptance)
        log_step = self.centre - count.sqrt() / 0.05 * error
        weight = count**-0.75
        return replace(
            self,
            log_step=log_step,
            log_mean=weight * log_step + (1 - weight) * self.log_mean,
            error=error,
            count=count,
        )


@dataclass(frozen=True)
class Moments:
    """Running means and sums of squared deviations (Welford), one row a chain."""

    count: Float[Tensor, ""]
    mean: Float[Tensor, "m p"]
    squares: Float[Tensor, "m p"]

    @staticmethod
    def none(like: Float[Tensor, "m p"]) -> "Moments":
        """Of nothing."""
        return Moments(like.new_zeros(()), torch.zeros_like(like), torch.zeros_like(like))

    def including(self, values: Float[Tensor, "m p"]) -> "Moments":
        """With one more value a row.

        >>> moments = Moments.none(torch.zeros(1, 1))
        >>> for value in (1.0, 2.0, 3.0):
        ...     moments = moments.including(torch.full((1, 1), value))
        >>> moments.mean.item(), moments.squares.item()
        (2.0, 2.0)
        """
        count = self.count + 1
        difference = values - self.mean
        mean = self.mean + difference / count
        return Moments(count, mean, torch.addcmul(self.squares, difference, values - mean))

    def variance(self) -> Float[Tensor, " p"]:
        """Mean over chains of the variance inside each, drawn towards their geometric mean.

        Variances inside chains, because chains may sit in different modes.
        """
        raw = self.squares.mean(0) / (self.count - 1)
        tiny = torch.finfo(raw.dtype).tiny
        typical = raw.clamp_min(tiny).log().mean().exp()
        seen = self.count * len(self.mean)
        return (seen * raw + 5 * typical) / (seen + 5)


@dataclass(frozen=True)
class Adaptation:
    """Everything learnt so far.

    Attributes:
        step: The step size.
        moments: Moments of the current window.
        inverse_mass: Diagonal of the inverse mass, an estimate of the posterior variances.
    """

    step: StepSize
    moments: Moments
    inverse_mass: Float[Tensor, " p"]

    @property
    def trial_step(self) -> float:
        """The step size during the warm-up."""
        return float(self.step.log_step.exp())

    @property
    def final_step(self) -> float:
        """The step size after it."""
        return float(self.step.log_mean.exp())


@dataclass(frozen=True)
class Windows:
    """When the mass is estimated: windows that double in length, between two quiet ends.

    Attributes:
        warmup: Steps of the warm-up.
    """

    warmup: int

    @property
    def first(self) -> int:
        """Where the first window begins."""
        return int(_FIRST * self.warmup)

    @property
    def last(self) -> int:
        """Where the last window ends."""
        return self.warmup - int(_LAST * self.warmup)

    def ends(self) -> list[int]:
        """Steps after which the mass changes.

        >>> Windows(1000).ends()
        [175, 225, 325, 900]
        """
        found, begin, length = [], self.first, _WINDOW
        if self.warmup < _SHORT:  # too short to estimate a mass and then a step size for it
            return []
        while begin + length + 2 * length <= self.last:
            begin += length
            found.append(begin)
            length *= 2
        return [*found, self.last]


@dataclass(frozen=True)
class Warmup:
    """How the warm-up goes.

    Attributes:
        steps: Its length.
        step_size: A fixed step size; ``None``: adapted.
        acceptance: The mean acceptance the step size aims at.
        mass: Whether the mass is adapted; else it is one everywhere.
    """

    steps: int
    step_size: float | None
    acceptance: float
    mass: bool

    def __post_init__(self) -> None:
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise CosetError(f"got a step size of {self.step_size}", "needed a positive number")
        if not 0 < self.acceptance < 1:
            raise CosetError(
                f"got a target acceptance of {self.acceptance}", "needed more than 0, less than 1"
            )
        if self.step_size is None and self.steps < 20:
            raise CosetError(
                f"got a warm-up of {self.steps} steps",
                "needed at least 20 to find a step size",
                "give a longer warm-up, or a step_size",
            )

    def begin(
        self, positions: Float[Tensor, "m p"], acceptance_of: Callable[[float, Tensor], float]
    ) -> Adaptation:
        """The first step size accepts about the target share; the mass is one."""
        mass = positions.new_ones(positions.shape[1])
        size = self.step_size or _reasonable(lambda step: acceptance_of(step, mass))
        return Adaptation(StepSize.starting_at(size), Moments.none(positions), mass)

    def after(
        self,
        adaptation: Adaptation,
        number: int,
        positions: Float[Tensor, "m p"],
        acceptance: float,
        acceptance_of: Callable[[float, Tensor], float],
    ) -> Adaptation:
        """What is known after step ``number`` of the warm-up."""
        if number >= self.steps:
            return adaptation
        step = adaptation.step
        if self.step_size is None:
            step = step.updated(acceptance, self.acceptance)
        windows = Windows(self.steps)
        ends = windows.ends() if self.mass else []
        if not ends or not windows.first <= number < ends[-1]:
            return replace(adaptation, step=step)
        moments = adaptation.moments.including(positions)
        if number + 1 not in ends:
            return replace(adaptation, step=step, moments=moments)
        mass = moments.variance()
        if not bool((mass > 0).all()):  # chains that never moved say nothing of the mass
            return replace(adaptation, step=step, moments=Moments.none(positions))
        if self.step_size is None:
            step = StepSize.starting_at(_reasonable(lambda size: acceptance_of(size, mass)))
        return Adaptation(step, Moments.none(positions), mass)

    def size(self, adaptation: Adaptation, number: int) -> float:
        """The step size of step ``number``."""
        if self.step_size is not None:
            return self.step_size
        return adaptation.trial_step if number < self.steps else adaptation.final_step


def _reasonable(acceptance_of: Callable[[float], float]) -> float:
    """A step size, by doubling and halving, around which a single step is accepted to 80 %."""
    size, direction = 0.1, 0
    for _ in range(60):
        now = 1 if acceptance_of(size) > 0.8 else -1
        if direction not in (0, now):
            return size
        direction = now
        size *= 2.0**direction
    raise CosetError(
        f"got energies that reject every step, down to a size of {size:g}",
        "needed an energy that changes smoothly",
        "look for infinite numbers in the data, or start from trained weights",
    )
