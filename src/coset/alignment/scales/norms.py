"""Scales fitted to norms of units.

Multiplying the scale of a unit by ``s`` multiplies the norm ``M`` of all that it scales up, and
divides the norm ``V`` of all that it scales down.  So scales follow from the ratios ``M / V``.
Norms of several tensors are taken together: a lone bias near zero says nothing of a scale.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coset.alignment.scales.tables import Runs, Vector

TINY = 1e-200
"""Squares up to which a unit counts as zero: it has no scale."""

_FAINT = 0.01
"""Share of the mean square over a factor below which a square has less say."""


@dataclass(frozen=True)
class Units:
    """The units that have scales, factor after factor.

    Squares of units have two rows: of all that their scales multiply, and of all that they divide.

    Attributes:
        runs: Which belong to one factor.
        reach: The power of scales in what they multiply, and in what they divide, in the mean; zero
            where there is nothing.
    """

    runs: Runs
    reach: Vector

    def log_ratios(self, squares: Vector) -> Vector:
        """``log(M / V)``."""
        multiplied, divided = np.where(self.reach > 0, half_log(squares), 0.0)
        found: Vector = multiplied - divided
        return found

    def say(self, goal: Vector) -> Vector:
        """How much each side of a unit counts: 1, less where its goal is nearly zero, 0 if it is.

        To follow the ratio of a unit that has all but died on one side, the other side would be
        blown up.
        """
        means = [self.runs.spread(self.runs.totals(side) / self.runs.lengths) for side in goal]
        say: Vector = np.minimum(goal / np.maximum(_FAINT * np.stack(means), TINY), 1.0)
        return say

    def missing(self, squares: Vector, goal: Vector | None, say: Vector | float = 1.0) -> Vector:
        """Logarithms of scales that bring ratios to those of a goal, or to a common level.

        Every unit is looked at as if all others kept their scales.  Where a side is zero here or in
        the goal the other one decides; without a goal such a unit keeps its scale.

        Args:
            squares: Of the units.
            goal: Those of another network; ``None``: in each factor the mean of the logarithms.
            say: With a goal, how much each side counts.
        """
        known = np.where(squares > TINY, 1.0, 0.0)
        if goal is None:
            whole = np.where(self.reach > 0, known, 1.0).min(0)
            ratios, present = self.log_ratios(squares), self.runs.totals(whole)
            level = self.runs.totals(ratios * whole) / np.maximum(present, 1.0)
            missing: Vector = (self.runs.spread(level) - ratios) * whole
        else:
            known *= say
            multiplied, divided = known * (half_log(goal) - half_log(squares))
            missing = multiplied - divided
        reached = np.add.reduce(known * self.reach, 0)
        return missing / np.where(reached > 0, reached, 1.0)


def fit_logs(
    units: Units,
    squares: Callable[[Vector], Vector],
    goal: Vector | None,
    *,
    most: int,
    tolerance: float,
) -> Vector:
    """Logarithms of scales at which nothing is missing.

    In each round every unit gets the scale that would do if all others kept theirs.  What is then
    wrong with layers as a whole passes on from layer to layer, which Anderson's way of taking
    rounds together (1965) makes fast.

    Args:
        units: What has scales.
        squares: Those of the units after scales with some logarithms.
        goal: Those that are wanted; ``None``: a common level.
        most: The most rounds.
        tolerance: The largest change at which it stops.
    """
    mixing, logs = _Mixing(), np.zeros(units.runs.size)
    say = 1.0 if goal is None else units.say(goal)
    for _ in range(most):
        step = units.missing(squares(logs), goal, say)
        logs = mixing.following(logs, step)
        if np.maximum.reduce(np.abs(step), initial=0.0) <= tolerance:
            break
    return logs


class _Mixing:
    """Anderson's extrapolation of ``x + f(x)`` from the last few steps."""

    def __init__(self, depth: int = 20) -> None:
        self._depth = depth
        self._points: list[Vector] = []
        self._steps: list[Vector] = []

    def following(self, point: Vector, step: Vector) -> Vector:
        """Where to go on."""
        self._points = [*self._points[-self._depth :], point]
        self._steps = [*self._steps[-self._depth :], step]
        found: Vector = point + step
        if len(self._steps) > 1:
            changes, moves = (np.diff(given, axis=0) for given in (self._steps, self._points))
            shares = np.linalg.lstsq(changes.T, step, rcond=1e-10)[0]
            found = found - shares @ (changes + moves)
        return found


def half_log(squares: Vector) -> Vector:
    """The logarithm of norms."""
    found = np.log(np.maximum(squares, TINY))
    found /= 2
    return found
