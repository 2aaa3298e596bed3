"""One eigendecomposition for many shifts, against direct solves."""

import pytest
import torch

from coset.linalg import Dense, Diagonal, LowRankPlusDiagonal, dense, shifts_of

pytestmark = pytest.mark.usefixtures("double")


def matrix(name):
    torch.manual_seed(0)
    factor = torch.randn(12, 5)
    if name == "dense":
        return Dense(factor @ factor.mT + 0.1 * torch.eye(12))
    twice = torch.cat([factor, factor[:, :2]], 1)  # two eigenvalues are zero
    return LowRankPlusDiagonal(torch.zeros(12), factor if name == "low rank" else twice)


@pytest.mark.parametrize("name", ["dense", "low rank", "columns twice"])
@pytest.mark.parametrize(("factor", "shift"), [(1.0, 1.0), (30.0, 0.2), (1e-3, 1e3)])
def test_solves_of_every_shift(name, factor, shift):
    operator, x = matrix(name), torch.randn(12)
    system = factor * dense(operator, like=x) + shift * torch.eye(12)
    expected = torch.linalg.solve(system, x)
    torch.testing.assert_close(shifts_of(operator).solve(factor, shift, x), expected)


def test_other_structures_have_none():
    assert shifts_of(Diagonal(torch.ones(3))) is None
    assert shifts_of(LowRankPlusDiagonal(torch.ones(3), torch.ones(3, 1))) is None
