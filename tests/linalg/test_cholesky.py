"""A factor is refused wherever the matrix has a number that spoils it."""

import pytest
import torch

from coset import CosetError
from coset.linalg.cholesky import cholesky

SIZE = 5


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e200])
@pytest.mark.parametrize("place", [(0, 0), (2, 1), (4, 0), (4, 3), (3, 3), (4, 4)], ids=str)
@pytest.mark.parametrize("stacked", [False, True])
def test_what_is_not_positive_definite_is_refused(value, place, stacked):
    matrix = torch.eye(SIZE, dtype=torch.float64)
    matrix[place] = matrix[place[::-1]] = value
    if place[0] == place[1] and value == 1e200:
        assert cholesky(matrix)[place] == pytest.approx(1e100)
        return
    if stacked:
        matrix = torch.stack([torch.eye(SIZE, dtype=torch.float64), matrix])
    with pytest.raises(CosetError, match="not positive definite"):
        cholesky(matrix)


def test_factors_give_their_matrix_back():
    half = torch.randn(3, SIZE, 2 * SIZE, dtype=torch.float64)
    matrix = half @ half.mT
    factor = cholesky(matrix)
    torch.testing.assert_close(factor @ factor.mT, matrix)
    assert not factor.triu(1).any()
