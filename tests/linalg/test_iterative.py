"""Conjugate gradients that can stop and go on, against a direct solution."""

import pytest
import torch

from coset import CosetError
from coset.linalg import Dense, Diagonal, conjugate_gradients
from coset.linalg.operators import advance, begin

pytestmark = pytest.mark.usefixtures("double")


def system(size=12):
    factor = torch.randn(size, size)
    return factor @ factor.mT + torch.diag(torch.logspace(-2, 2, size)), torch.randn(size, 3)


def run(state, operator, near, iterations):
    for _ in range(iterations):
        state = advance(state, operator, near)
    return state


@pytest.mark.parametrize("guess", [None, "random"])
def test_the_solution_is_the_direct_one(guess):
    matrix, target = system()
    operator, near = Dense(matrix), Diagonal(1 / matrix.diagonal())
    start = None if guess is None else torch.randn_like(target)
    state = run(begin(operator, target, near, start), operator, near, 30)
    torch.testing.assert_close(state.value, torch.linalg.solve(matrix, target), rtol=1e-8, atol=0)
    assert state.relative < 1e-9
    torch.testing.assert_close(state.residual, target - matrix @ state.value, rtol=0, atol=1e-8)


def test_with_its_own_inverse_one_iteration_is_enough():
    matrix, target = system()
    operator, near = Dense(matrix), Dense(torch.linalg.inv(matrix))
    assert run(begin(operator, target, near), operator, near, 1).relative < 1e-10


def test_the_residual_does_not_depend_on_the_scale_of_the_unknowns():
    matrix, target = system()
    scales = torch.logspace(-3, 3, len(matrix)).unsqueeze(1)
    plain = Dense(matrix), Diagonal(1 / matrix.diagonal())
    scaled_matrix = scales * matrix * scales.mT
    scaled = Dense(scaled_matrix), Diagonal(1 / scaled_matrix.diagonal())
    one = run(begin(plain[0], target, plain[1]), *plain, 4)
    other = run(begin(scaled[0], scales * target, scaled[1]), *scaled, 4)
    assert one.relative == pytest.approx(other.relative, rel=1e-6)
    torch.testing.assert_close(scales * other.value, one.value, rtol=1e-6, atol=1e-12)


def test_bad_operators_are_refused():
    near = Diagonal(torch.ones(2))
    negative = Dense(torch.diag(torch.tensor([1.0, -1.0])))
    with pytest.raises(CosetError, match="negative curvature"):
        run(begin(negative, torch.tensor([[0.1], [1.0]]), near), negative, near, 1)
    broken = Dense(torch.full((2, 2), torch.nan))
    with pytest.raises(CosetError, match="not finite"):
        run(begin(broken, torch.ones(2, 1), near), broken, near, 1)


def test_columns_that_are_solved_wait_for_the_others():
    matrix, target = system()
    target = torch.cat([target, torch.zeros(len(matrix), 1), matrix[:, :1]], dim=1)
    found = conjugate_gradients(Dense(matrix), target, tolerance=1e-12, iterations=100)
    assert found.converged
    expected = torch.linalg.solve(matrix, target)
    torch.testing.assert_close(found.value, expected, rtol=1e-8, atol=1e-10)


def test_directions_that_nothing_depends_on_stay_where_they_are():
    factor = torch.randn(12, 5)
    matrix = factor @ factor.mT
    target = matrix @ torch.randn(12, 3)
    state = run(begin(Dense(matrix), target), Dense(matrix), None, 40)
    torch.testing.assert_close(matrix @ state.value, target)
    torch.testing.assert_close(state.value, torch.linalg.pinv(matrix) @ target)
