"""Newton directions of sums of exponentials: by Cholesky where that is small, else iteratively."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.linalg import FromFunctions
from coset.linalg.operators import advance, begin
from coset.symmetry.removing.monomials import Monomials, Numbers, Touch

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
    problem: Monomials,
    values: Sequence[Numbers],
    gradient: Numbers,
    *,
    accuracy: float,
    free: NDArray[np.bool_] | bool = True,
) -> Numbers:
    """The same by conjugate gradients, which leave alone what nothing depends on.

    With ``free``, ``(m, count + 1)``, the other scales stay where they are.
    """

    def curvature(direction: Numbers) -> Numbers:
        changes = [
            value * term.exponents(direction)
            for value, term in zip(values, problem.terms, strict=True)
        ]
        return problem.collected(changes, lambda power: 4.0 * power) * free

    def multiply(columns: Tensor) -> Tensor:
        return torch.from_numpy(curvature(np.ascontiguousarray(columns.numpy().T))).mT

    size = gradient.shape[1]
    operator = FromFunctions((size, size), multiply, multiply)
    near = _Scaled(torch.from_numpy(_diagonal(problem, values)).mT)
    state = begin(operator, torch.from_numpy(gradient * free).mT, near)
    while state.relative > accuracy and int(state.count) < 2 * size + 10:
        state = advance(state, operator, near)
    step: Numbers = np.ascontiguousarray(state.value.numpy().T)
    return step


@dataclass(frozen=True)
class _Scaled:
    """Division of every member, a column, by numbers of its own."""

    by: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.by), len(self.by)

    def matmat(self, x: Tensor) -> Tensor:
        return x / self.by

    def adjoint(self) -> "_Scaled":
        return self


def _diagonal(problem: Monomials, values: Sequence[Numbers]) -> Numbers:
    """What each power adds to the second derivatives by itself; one where nothing does."""
    diagonal = problem.collected(values, lambda power: 4.0 * power * power)
    return np.where(diagonal > 0, diagonal, 1.0)


def _by_cholesky(
    problem: Monomials, values: Sequence[Numbers], gradient: Numbers
) -> Numbers | None:
    """The direction by factorisation; nothing if a matrix is not positive."""
    diagonal = _diagonal(problem, values) * (1 + RIDGE)
    hessians = torch.from_numpy(_hessians(problem, values, diagonal))
    # the one in torch: that of scipy may wait for threads longer than it computes
    factors, failed = torch.linalg.cholesky_ex(hessians, upper=True)
    if bool(failed.any()):
        return None
    slopes = torch.from_numpy(gradient).unsqueeze(2)
    step: Numbers = torch.cholesky_solve(slopes, factors, upper=True).squeeze(2).numpy()
    return step


def _hessians(problem: Monomials, values: Sequence[Numbers], diagonal: Numbers) -> Numbers:
    """Second derivatives ``(m, count + 1, count + 1)``, at least on and above the diagonal.

    Args:
        problem: The powers.
        values: Of the terms.
        diagonal: What each power adds by itself.
    """
    members, size = diagonal.shape
    hessians = np.zeros((members, size, size))
    for term, value in zip(problem.terms, values, strict=True):
        for pair in combinations(term.touches, 2):
            first, second = sorted(pair, key=lambda touch: int(touch.places.flat[0]))
            same = tuple(sorted({*first.others} & {*second.others}))
            change = 4.0 * first.power * second.power * value
            change = change.sum(same, keepdims=True) if same else change
            if _is_outer(first, second):
                hessians[:, first.where, second.where] += _outer(change, first, second)
            else:
                for matrix, addend in zip(hessians, change, strict=True):  # places may repeat
                    np.add.at(matrix, (first.places, second.places), addend)
                    np.add.at(matrix, (second.places, first.places), addend)
    hessians[:, -1, :] = hessians[:, :, -1] = 0.0
    hessians.reshape(members, -1)[:, :: size + 1] += diagonal
    return hessians


def _is_outer(first: Touch, second: Touch) -> bool:
    """Whether two scalings have ranges apart from each other and no axis in common."""
    apart = isinstance(first.where, slice) and isinstance(second.where, slice)
    apart = apart and bool(first.places.flat[-1] < second.places.flat[0])
    before, after = first.varying, second.varying
    return apart and (
        not before or not after or max(before) < min(after) or max(after) < min(before)
    )


def _outer(change: Numbers, first: Touch, second: Touch) -> Numbers:
    """Values with one axis for all places of each."""
    if first.varying and second.varying and max(second.varying) < min(first.varying):
        turned = change.reshape(len(change), second.places.size, first.places.size)
        return turned.transpose(0, 2, 1)
    return change.reshape(len(change), first.places.size, second.places.size)
