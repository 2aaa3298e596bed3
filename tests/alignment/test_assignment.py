"""Assignments against scipy and by hand."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from coset.alignment.assignment import best_permutation, best_permutations


@pytest.mark.parametrize("planted", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_values_are_those_of_scipy(planted, kind):
    random = np.random.default_rng(0)
    for size in (1, 2, 7, 40, 130):
        gains = (
            random.normal(size=(3, size, size)) + planted * np.eye(size)[random.permutation(size)]
        )
        gains = gains.astype(kind)
        chosen, values = best_permutations(gains)
        for k, matrix in enumerate(gains):
            rows, columns = linear_sum_assignment(matrix, maximize=True)
            assert values[k] == pytest.approx(matrix[rows, columns].sum(dtype=np.float64), rel=1e-6)
            assert sorted(chosen[k]) == list(range(size))


def test_of_equally_good_ones_the_preferred_is_taken():
    for preferred in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        assert best_permutation(np.ones((3, 3)), np.array(preferred)).tolist() == preferred


def test_shifting_a_column_changes_nothing():
    random = np.random.default_rng(1)
    gains = random.normal(size=(12, 12))
    shifted = gains + 10 * random.normal(size=12)
    home = np.arange(12)
    assert (best_permutation(gains, home) == best_permutation(shifted, home)).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_large_gains_of_any_size_are_assigned(kind):
    """Also where all are alike, rows or columns are zero, and squares would overflow or vanish."""
    random = np.random.default_rng(3)
    gains = random.normal(size=(140, 140))
    gains[:20], gains[:, 100:] = 0, 0
    for size in (1e-30, 1.0, 1e30):
        matrix = (size * gains).astype(kind)
        rows, columns = linear_sum_assignment(matrix, maximize=True)
        found = best_permutation(matrix)
        assert sorted(found) == list(range(140))
        values = [matrix[rows, chosen].astype(np.float64).sum() for chosen in (found, columns)]
        assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert sorted(best_permutation(np.zeros((140, 140), kind))) == list(range(140))
