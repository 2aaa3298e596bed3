"""Learning-rate schedules as values: a factor for each fraction of the training done."""

import math
from dataclasses import dataclass
from typing import Protocol

from coset.errors import CosetError, require_kinds


class Schedule(Protocol):
    """What the learning rate is multiplied by."""

    def factor(self, done: float) -> float:
        """The factor after the fraction ``done`` of all steps, from 0 to 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the full rate.

    >>> Constant().factor(0.3)
    1.0
    """

    def factor(self, done: float) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """A linear rise, then half a cosine down: ``(1 + cos(π t)) / 2``.

    Attributes:
        warmup: Fraction of the training spent on the rise.
        final: The factor at the end.

    >>> Cosine().factor(0.0), round(Cosine().factor(0.5), 12), Cosine().factor(1.0)
    (1.0, 0.5, 0.0)
    """

    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        require_kinds(self)
        _require_fractions(warmup=self.warmup, final=self.final)

    def factor(self, done: float) -> float:
        """The factor."""
        if done < self.warmup:
            return done / self.warmup
        fall = (done - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 1.0
        return _half_cosine(1.0, self.final, fall)


@dataclass(frozen=True)
class Steps:
    """A drop at each of some fractions of the training.

    Attributes:
        at: Where the rate drops.
        drop: What it is multiplied by each time.

    >>> [Steps(at=(0.5, 0.75), drop=0.5).factor(done) for done in (0.0, 0.5, 0.8)]
    [1.0, 0.5, 0.25]
    """

    at: tuple[float, ...] = (0.5, 0.75)
    drop: float = 0.1

    def __post_init__(self) -> None:
        require_kinds(self)
        _require_fractions(drop=self.drop, **{f"at[{i}]": at for i, at in enumerate(self.at)})

    def factor(self, done: float) -> float:
        """The factor."""
        return float(self.drop ** sum(done >= at for at in self.at))


@dataclass(frozen=True)
class OneCycle:
    """Up to the full rate and down again, along half cosines (Smith and Topin 2017).

    Attributes:
        peak: Where the full rate is reached.
        initial: The factor at the beginning.
        final: The factor at the end.

    >>> [round(OneCycle(initial=0.2).factor(done), 3) for done in (0.0, 0.15, 0.3)]
    [0.2, 0.6, 1.0]
    """

    peak: float = 0.3
    initial: float = 0.04
    final: float = 4e-6

    def __post_init__(self) -> None:
        require_kinds(self)
        _require_fractions(peak=self.peak, initial=self.initial, final=self.final)

    def factor(self, done: float) -> float:
        """The factor."""
        if done < self.peak:
            return _half_cosine(self.initial, 1.0, done / self.peak)
        return _half_cosine(1.0, self.final, (done - self.peak) / max(1 - self.peak, 1e-12))


def _half_cosine(before: float, after: float, share: float) -> float:
    return after + (before - after) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def _require_fractions(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise CosetError(f"got {name}={value}", "needed a number from 0 to 1")


_IMPLEMENTATIONS: tuple[Schedule, ...] = (Constant(), Cosine(), Steps(), OneCycle())
