"""What Hamiltonian samplers learn during the warm-up: a step size and a diagonal mass.

One step size and one mass serve all chains, so that every chain learns from the others.  Units of a
layer can change places without changing the function, so their weights have the same law, and a
weight also learns from its fellows in the other units.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.weights.layout import Layout

_FIRST, _LAST, _WINDOW = 0.05, 0.15, 10
"""Shares of the warm-up without a change of mass at both ends, and steps of the first window."""

_SHORT = 40
"""Steps below which a warm-up leaves the mass alone."""

_PRIOR = 50.0
"""States that what the fellows of a weight say counts for, against the weight's own."""


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

    def variance(self, groups: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Mean over chains of the variance inside each, drawn towards that of the group.

        Variances inside chains, because chains may sit in different modes.
        """
        raw = self.squares.mean(0) / (self.count - 1)
        seen = self.count * len(self.mean)
        return (seen * raw + _PRIOR * group_means(raw, groups)) / (seen + _PRIOR)


def group_means(values: Float[Tensor, " p"], groups: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
    """Each value replaced by the mean of its group.

    >>> group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]))
    tensor([2., 2., 5.])
    """
    total = values.new_zeros(int(groups.max()) + 1)
    count = total.index_add(0, groups, torch.ones_like(values))
    return (total.index_add(0, groups, values) / count.clamp_min(1))[groups]


def fellows(layout: Layout) -> Int[Tensor, " p"]:
    """The group of each parameter: the same place in other units, all entries of a vector.

    >>> fellows(Layout(("weight", "bias"), ((2, 3), (2,)))).tolist()
    [0, 1, 2, 0, 1, 2, 3, 3]
    """
    groups, begin = [], 0
    for shape in layout.shapes:
        places = prod(shape[1:])
        groups.append((begin + torch.arange(places)).expand(shape[0] if shape else 1, -1).flatten())
        begin += places
    return torch.cat(groups)


@dataclass(frozen=True)
class Adaptation:
    """Everything learnt so far.

    Attributes:
        step: The step size.
        moments: Moments of the weights in the current window.
        gradients: Moments of the gradients there.
        groups: Which parameters share what they learn.
        inverse_mass: Diagonal of the inverse mass, an estimate of the posterior variances.
    """

    step: StepSize
    moments: Moments
    gradients: Moments
    groups: Int[Tensor, " p"]
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

        >>> Windows(200).ends()
        [20, 40, 80, 170]
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
        self,
        positions: Float[Tensor, "m p"],
        gradient: Float[Tensor, "m p"],
        groups: Int[Tensor, " p"],
        acceptance_of: Callable[[float, Tensor], float],
    ) -> Adaptation:
        """The first mass is the size of the gradients, the first step size fits it."""
        mass = positions.new_ones(positions.shape[1])
        if self.mass and Windows(self.steps).ends():
            sizes = group_means(gradient.square().mean(0), groups).sqrt()
            mass = 1 / sizes.clamp_min(1e-3 * float(sizes.max()) or 1.0)
        size = self.step_size or _reasonable(lambda step: acceptance_of(step, mass))
        none = Moments.none(positions)
        return Adaptation(StepSize.starting_at(size), none, none, groups, mass)

    def after(
        self,
        adaptation: Adaptation,
        number: int,
        positions: Float[Tensor, "m p"],
        gradient: Float[Tensor, "m p"],
        acceptance: float,
        acceptance_of: Callable[[float, Tensor], float],
    ) -> Adaptation:
        """What is known after step ``number`` of the warm-up."""
        if number >= self.steps:
            return adaptation
        if self.step_size is None:
            step = adaptation.step.updated(acceptance, self.acceptance)
            adaptation = replace(adaptation, step=step)
        windows = Windows(self.steps)
        ends = windows.ends() if self.mass else []
        if not ends or not windows.first <= number < ends[-1]:
            return adaptation
        adaptation = replace(
            adaptation,
            moments=adaptation.moments.including(positions),
            gradients=adaptation.gradients.including(gradient),
        )
        return self._changed(adaptation, acceptance_of) if number + 1 in ends else adaptation

    def _changed(
        self, adaptation: Adaptation, acceptance_of: Callable[[float, Tensor], float]
    ) -> Adaptation:
        """With the mass of the window that has ended, ``√(Var w / Var ∇U)``.

        Both variances give those of a Gaussian, ``σ²`` and ``1 / σ²``.  Where the posterior is none
        the mean of the two keeps the steps large (Seyboldt, Carlson and Carpenter 2024).
        """
        groups = adaptation.groups
        mass = (adaptation.moments.variance(groups) / adaptation.gradients.variance(groups)).sqrt()
        none = Moments.none(adaptation.moments.mean)
        adaptation = replace(adaptation, moments=none, gradients=none)
        if not bool((mass > 0).all() & mass.isfinite().all()):
            return adaptation  # chains that never moved say nothing of the mass
        if self.step_size is None:
            size = _reasonable(lambda step: acceptance_of(step, mass))
            adaptation = replace(adaptation, step=StepSize.starting_at(size))
        return replace(adaptation, inverse_mass=mass)

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
