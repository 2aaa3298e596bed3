"""The convex problem of the smallest mass: what comes into a unit balances what goes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coset.errors import CosetError
from coset.symmetry.elements import ScalingFactor
from coset.symmetry.removing.monomials import Monomials, Numbers, Term
from coset.symmetry.removing.newton import iterated_direction, newton_direction

TOLERANCE = 1e-12
SWEEPS, STEPS = 2, 60  # there and back; Newton steps at most


@dataclass(frozen=True)
class State:
    """The masses of all monomials at one point.

    Attributes:
        logs: Logarithms of the scales ``(m, count + 1)``, the last of them zero.
        values: For every term ``w² exp(2 a · u)``.
        incoming: For every scale the mass that grows with it, times the power.
        outgoing: That which falls, times the size of the power.
        mass: Of every member.
    """

    logs: Numbers
    values: list[Numbers]
    incoming: Numbers
    outgoing: Numbers
    mass: Numbers

    @cached_property
    def residual(self) -> Numbers:
        """The largest ``|in − out| / (in + out)`` of every member."""
        total = self.incoming + self.outgoing
        gap = np.abs(self.incoming - self.outgoing) / np.where(total > 0, total, 1.0)
        largest: Numbers = gap.max(1)
        return largest


@dataclass(frozen=True)
class Solution:
    """Where the mass is smallest, and how it went."""

    state: State
    iterations: int


@dataclass(frozen=True)
class Balance:
    """The problem for some weights: for every term the sums of squares."""

    problem: Monomials
    sums: Sequence[Numbers]

    def solve(self, start: State) -> Solution:
        """Sweeps, then Newton steps, until incoming and outgoing norms agree."""
        state, done, step = start, 0, np.zeros_like(start.logs)
        if state.residual.max() > TOLERANCE:
            logs, factors = state.logs, self.problem.factors
            for factor in (*factors, *reversed(factors[:-1])):
                logs = self._swept(logs, factor)
            state, done = self.at(logs), SWEEPS
        while state.residual.max() > TOLERANCE and done < SWEEPS + STEPS:
            before = state
            state, done = self._newton(state), done + 1
            step = state.logs - before.logs
            if state is before:
                break
        self._refuse_runaways(state, step)
        return Solution(state, done)

    def at(self, logs: Numbers) -> State:
        """All masses at one point."""
        incoming, outgoing, mass = np.zeros_like(logs), np.zeros_like(logs), np.zeros(len(logs))
        values = self._values(logs, range(len(self.sums)))
        for term, value in zip(self.problem.terms, values, strict=True):
            for touch in term.touches:
                sums = touch.sums(value)
                side = incoming if touch.power > 0 else outgoing
                touch.add_to(side, sums if abs(touch.power) == 1 else abs(touch.power) * sums)
            mass += sums.sum(1)
        incoming[:, -1] = outgoing[:, -1] = 0.0
        return State(logs, values, incoming, outgoing, mass)

    def _values(self, logs: Numbers, which: Sequence[int]) -> list[Numbers]:
        """``w² exp(2 a · u)`` of some terms."""
        scales = {power: np.exp(2 * power * logs) for power in self.problem.powers}
        values = []
        for k in which:
            value = self.sums[k]
            for touch in self.problem.terms[k].touches:
                value = value * touch.of(scales[touch.power])
            values.append(value)
        return values

    def _swept(self, logs: Numbers, factor: ScalingFactor) -> Numbers:
        """Newton on ``log in − log out`` for the scales of one factor.

        That is exact, ``s = sqrt(out / in)``, where a scale appears with one power either way.  A
        factor that meets itself in a tensor is left to Newton.
        """
        touches = self.problem.touches[factor.name]
        own = [k for k, _ in touches]
        if len(set(own)) < len(own):
            return logs
        # for each side the mass, weighted by the powers and by their squares
        sides = {True: np.zeros((2, *logs.shape)), False: np.zeros((2, *logs.shape))}
        for (_, touch), value in zip(touches, self._values(logs, own), strict=True):
            sums, size = touch.sums(value), abs(touch.power)
            for weight, total in zip((size, size * size), sides[touch.power > 0], strict=True):
                touch.add_to(total, sums if weight == 1 else weight * sums)
        usable = (sides[True][0] > 0) & (sides[False][0] > 0)
        usable[:, -1] = False
        (incoming, steep_in), (outgoing, steep_out) = (
            np.where(usable, side, 1.0) for side in (sides[True], sides[False])
        )
        slope = 2 * (steep_in / incoming + steep_out / outgoing)
        return logs - np.where(usable, np.log(incoming / outgoing) / slope, 0.0)

    def _newton(self, state: State) -> State:
        """One Newton step, halved until the mass falls; the same state if it does not."""
        gradient = 2 * (state.incoming - state.outgoing)
        step = newton_direction(self.problem, state.values, gradient)
        slope = (gradient * step).sum(1)
        size = np.ones(len(slope))
        for _ in range(40):
            trial = self.at(state.logs - size[:, None] * step)
            # the last steps change the mass by less than its rounding
            good = trial.mass <= state.mass * (1 + 1e-14) - 1e-4 * size * slope
            if good.all():
                return trial
            size = np.where(good, size, size / 2)
        if not good.any():
            return state
        return self.at(np.where(good[:, None], trial.logs, state.logs))

    def _refuse_runaways(self, state: State, step: Numbers) -> None:
        """Where terms vanish like ``exp(-2 u)``, all looks balanced but each step is one half."""
        residual = float(state.residual.max())
        if residual == 0 or (residual <= 1e-8 and 0 < np.abs(step).max() < 1e-3):
            return
        gradient = 2 * (state.incoming - state.outgoing)
        step = iterated_direction(self.problem, state.values, gradient, accuracy=1e-5)
        if residual > 1e-8 or np.abs(step).max() > 0.1:
            starts = list(self.problem.offsets.items())
            member, place = divmod(int(np.abs(step).argmax()), step.shape[1])
            name = next(n for n, start in reversed(starts) if start <= place)
            raise CosetError(
                f"got weights (member {member}) whose scales in {name!r} run away",
                "needed every unit on a path of weights from an input to an output",
                "remove units that only feed each other",
            )


def without_dead_units(
    problem: Monomials, sums: Sequence[Numbers], members: int
) -> tuple[Balance, State, NDArray[np.bool_]]:
    """The problem of units with weights on both sides, its start, and who is in it."""
    alive = np.ones((members, problem.count + 1), dtype=np.bool_)
    while True:
        balance = Balance(problem, sums)
        state = balance.at(np.zeros(alive.shape))
        now = alive & ((state.incoming > 0) & (state.outgoing > 0) | ~problem.touched)
        now[:, -1] = True
        if (now == alive).all():
            return balance, state, alive
        alive = now
        sums = [_masked(t, value, alive) for t, value in zip(problem.terms, sums, strict=True)]


def _masked(term: Term, sums: Numbers, alive: NDArray[np.bool_]) -> Numbers:
    for touch in term.touches:
        sums = sums * touch.of(alive.astype(np.float64))
    return sums
