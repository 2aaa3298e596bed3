"""Newton directions of sums of exponentials: by Cholesky where that is small, else iteratively."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from coset.symmetry.removing.monomials import Monomials, Numbers

LARGEST, MOST = 192, 4_000_000
"""Scales of a problem, and entries of all its Hessians, up to which they are formed."""

RIDGE = 1e-11
"""Relative to the diagonal: directions that nothing depends on stay where they are."""


def newton_direction(problem: Monomials, values: Sequence[Numbers], gradient: Numbers) -> Numbers:
    """``H⁻¹ g`` of ``Σ v exp(2 a · u)`` at ``u = 0``, for every member.

    Args:
        problem: The powers ``a``.
        values: For every term ``v``.
        gradient: ``g``, ``(m, count + 1)``.
    """
    if problem.count <= LARGEST and gradient.size * problem.count <= MOST:
        step = _by_cholesky(problem, values, gradient)
        if step is not None:
            return step
    # five digits are enough: the next step has a new gradient
    return iterated_direction(problem, values, gradient, accuracy=1e-5)


def iterated_direction(
    problem: Monomials, values: Sequence[Numbers], gradient: Numbers, *, accuracy: float
) -> Numbers:
    """The same by conjugate gradients, which leave alone what nothing depends on."""

    def curvature(direction: Numbers) -> Numbers:
        changes = [
            value * term.exponents(direction)
            for value, term in zip(values, problem.terms, strict=True)
        ]
        return problem.collected(changes, lambda power: 4.0 * power)

    return _conjugate_gradients(curvature, gradient, _diagonal(problem, values), accuracy)


def _diagonal(problem: Monomials, values: Sequence[Numbers]) -> Numbers:
    """What each power adds to the second derivatives by itself; one where nothing does."""
    diagonal = problem.collected(values, lambda power: 4.0 * power * power)
    return np.where(diagonal > 0, diagonal, 1.0)


def _by_cholesky(
    problem: Monomials, values: Sequence[Numbers], gradient: Numbers
) -> Numbers | None:
    """The direction by factorisation; nothing if a matrix is not positive."""
    from scipy.linalg.lapack import dposv

    diagonal = _diagonal(problem, values) * (1 + RIDGE)
    step = np.empty_like(gradient)
    for member, matrix in enumerate(_hessians(problem, values, diagonal)):
        # symmetric, so the transpose is the same matrix in the order that LAPACK wants
        _, step[member], failed = dposv(matrix.T, gradient[member], overwrite_a=True)
        if failed:
            return None
    return step


def _hessians(problem: Monomials, values: Sequence[Numbers], diagonal: Numbers) -> Numbers:
    """Second derivatives ``(m, count + 1, count + 1)``, given what each power adds by itself."""
    members, size = diagonal.shape
    mixed = np.zeros((members, size, size))
    for term, value in zip(problem.terms, values, strict=True):
        for first, second in combinations(term.touches, 2):
            same = tuple(sorted({*first.others} & {*second.others}))
            change = 4.0 * first.power * second.power * value.sum(same, keepdims=True)
            if term.site is None:
                for matrix, addend in zip(mixed, change, strict=True):
                    np.add.at(matrix, (first.places, second.places), addend)  # places may repeat
            else:
                mixed[:, first.places, second.places] += change
    mixed[:, -1, :] = mixed[:, :, -1] = 0.0
    hessians: Numbers = mixed + mixed.transpose(0, 2, 1)
    hessians.reshape(members, -1)[:, :: size + 1] += diagonal
    return hessians


def _conjugate_gradients(
    curvature: Callable[[Numbers], Numbers], gradient: Numbers, diagonal: Numbers, accuracy: float
) -> Numbers:
    """Solves ``H x = g`` for every member, preconditioned by the diagonal."""
    solution, residual = np.zeros_like(gradient), gradient
    direction = residual / diagonal
    energy = (residual * direction).sum(1)
    goal = accuracy**2 * energy
    for _ in range(2 * gradient.shape[1] + 10):
        if (energy <= goal).all():
            break
        image = curvature(direction)
        bend = (direction * image).sum(1)
        moving = (energy > goal) & (bend > 0)
        if not moving.any():
            break
        length = np.where(moving, energy / np.where(bend > 0, bend, 1.0), 0.0)[:, None]
        solution, residual = solution + length * direction, residual - length * image
        scaled = residual / diagonal
        fresh = (residual * scaled).sum(1)
        turn = np.where(moving, fresh / np.where(energy > 0, energy, 1.0), 0.0)[:, None]
        direction = scaled + turn * direction
        energy = np.where(moving, fresh, np.minimum(energy, 0.0))
    return solution
