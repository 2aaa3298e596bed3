"""The convex problem of the smallest mass: what comes into a unit balances what goes out."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.symmetry.elements import ScalingFactor
from coset.symmetry.removing.monomials import Monomials, Term, conjugate_gradients

TOLERANCE = 1e-12
SWEEPS, STEPS = 6, 60


@dataclass(frozen=True)
class Solution:
    """Logarithms of the scales ``(m, count)``, the terms that count, and how it went."""

    logs: Tensor
    terms: list[Term]
    iterations: int
    residual: Tensor


def solve(problem: Monomials, alive: Tensor) -> Solution:
    """Sweeps, then Newton steps, until incoming and outgoing norms agree."""
    terms = kept(problem, alive)
    logs = torch.zeros(*alive.shape, dtype=torch.float64)
    residual = _residual(problem, terms, logs)
    done = 0
    while done < SWEEPS and float(residual.max()) > TOLERANCE:
        for factor in problem.factors if done % 2 == 0 else reversed(problem.factors):
            logs = _swept(problem, terms, logs, factor)
        residual, done = _residual(problem, terms, logs), done + 1
    while float(residual.max()) > TOLERANCE and done < SWEEPS + STEPS:
        logs, moved = _newton(problem, terms, logs)
        residual, done = _residual(problem, terms, logs), done + 1
        if not moved:
            break
    _refuse_runaways(problem, terms, logs, residual)
    return Solution(logs, terms, done, residual)


def _refuse_runaways(problem: Monomials, terms: list[Term], logs: Tensor, residual: Tensor) -> None:
    """Where terms vanish like ``exp(-2 u)``, all looks balanced but each step is one half."""
    if not terms or not problem.count:
        return
    _, step = _direction(problem, terms, logs)
    if float(residual.max()) > 1e-8 or float(step.abs().max()) > 0.1:
        member, place = divmod(int(step.abs().argmax()), problem.count)
        name = next(f.name for f in reversed(problem.factors) if problem.offsets[f.name] <= place)
        raise CosetError(
            f"got weights (member {member}) whose scales in {name!r} run away",
            "needed every unit on a path of weights from an input to an output",
            "remove units that only feed each other",
        )


def mass_of(terms: Collection[Term], logs: Tensor) -> Tensor:
    """``Σ w² exp(2 a · u)`` of every member."""
    total = logs.new_zeros(logs.shape[0])
    padded = torch.nn.functional.pad(logs, (0, 1))
    for term in terms:
        total = total + (term.values * term.multipliers(padded, 2.0)).flatten(1).sum(1)
    return total


def balance(problem: Monomials, terms: list[Term], logs: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms in and out of every unit, weighted by the size of the powers."""
    padded = torch.nn.functional.pad(logs.double(), (0, 1))
    values = [term.values * term.multipliers(padded, 2.0) for term in terms]
    return (
        problem.collected(values, lambda power: max(power, 0), terms),
        problem.collected(values, lambda power: max(-power, 0), terms),
    )


def _residual(problem: Monomials, terms: list[Term], logs: Tensor) -> Tensor:
    if not terms or not problem.count:
        return logs.new_zeros(logs.shape[0])
    incoming, outgoing = balance(problem, terms, logs)
    total = incoming + outgoing
    return ((incoming - outgoing).abs() / torch.where(total > 0, total, 1.0)).amax(1)


def _swept(problem: Monomials, terms: list[Term], logs: Tensor, factor: ScalingFactor) -> Tensor:
    """Newton on ``log in − log out`` for the scales of one factor.

    That is exact, ``s = sqrt(out / in)``, where a scale appears with one power either way.  A
    factor that meets itself in a tensor is left to Newton.
    """
    own = [term for term in terms if factor.name in term.factors]
    if not own or any(term.factors.count(factor.name) > 1 for term in own):
        return logs
    padded = torch.nn.functional.pad(logs, (0, 1))
    values = [term.values * term.multipliers(padded, 2.0) for term in own]
    incoming = problem.collected(values, lambda p: max(p, 0), own)
    outgoing = problem.collected(values, lambda p: max(-p, 0), own)
    usable = (incoming > 0) & (outgoing > 0)
    start = problem.offsets[factor.name]
    stop = min((o for o in problem.offsets.values() if o > start), default=problem.count)
    usable[:, :start] = False
    usable[:, stop:] = False
    safe_in, safe_out = torch.where(usable, incoming, 1.0), torch.where(usable, outgoing, 1.0)
    slope: Tensor | float = 4.0
    if any(abs(power) != 1 for term in own for _, power in term.touches):
        steep_in = problem.collected(values, lambda p: p * max(p, 0), own)
        steep_out = problem.collected(values, lambda p: p * min(p, 0), own)
        slope = torch.where(usable, 2 * (steep_in / safe_in + steep_out / safe_out), 1.0)
    step = (safe_in.log() - safe_out.log()) / slope
    return logs - torch.where(usable, step, 0.0)


def _newton(problem: Monomials, terms: list[Term], logs: Tensor) -> tuple[Tensor, bool]:
    """One Newton step, halved until the mass falls."""
    gradient, step = _direction(problem, terms, logs)
    before, slope = mass_of(terms, logs), (gradient * step).sum(1)
    size = torch.ones_like(before)
    for _ in range(40):
        trial = logs - size.unsqueeze(1) * step
        after = mass_of(terms, trial)
        # the last steps change the mass by less than its rounding
        good = after <= before - 1e-4 * size * slope + 1e-15 * before
        if bool(good.all()):
            return trial, True
        size = torch.where(good, size, size / 2)
    return torch.where(good.unsqueeze(1), trial, logs), bool(good.any())


def _direction(problem: Monomials, terms: list[Term], logs: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient, and the Newton direction by conjugate gradients."""
    padded = torch.nn.functional.pad(logs, (0, 1))
    values = [term.values * term.multipliers(padded, 2.0) for term in terms]
    gradient = problem.collected(values, lambda power: 2.0 * power, terms)
    diagonal = problem.collected(values, lambda power: 4.0 * power * power, terms)

    def curvature(direction: Tensor) -> Tensor:
        extended = torch.nn.functional.pad(direction, (0, 1))
        changes = [
            value * term.exponents(extended) for value, term in zip(values, terms, strict=True)
        ]
        return problem.collected(changes, lambda power: 4.0 * power, terms)

    safe = torch.where(diagonal > 0, diagonal, 1.0)
    # five digits a step are enough: the next one has a new gradient
    return gradient, conjugate_gradients(curvature, gradient, safe, accuracy=1e-5)


def kept(problem: Monomials, alive: Tensor) -> list[Term]:
    """The terms without monomials of dead units."""
    if bool(alive.all()):
        return list(problem.terms)
    mask = torch.nn.functional.pad(alive.double(), (0, 1), value=1.0)
    kept = []
    for term in problem.terms:
        values = term.values
        for index, _ in term.touches:
            values = values * mask[:, index]
        kept.append(Term(term.tensor, values, term.touches, term.factors))
    return kept
