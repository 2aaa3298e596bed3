import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from coset.errors import CosetError
from coset.metrics import gaussian, inverse_multiquadric, laplace, matern
from coset.metrics.discrepancy import pooled_distances
from coset.metrics.kernels import bandwidths


@pytest.fixture
def points(generator):
    return torch.randn(12, 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (laplace(2.5), lambda x: laplacian_kernel(x, gamma=1 / 2.5)),
        (gaussian(2.5), lambda x: rbf_kernel(x, gamma=1 / 2.5**2)),
        (inverse_multiquadric(2.5), lambda x: 1 / np.sqrt(1 - np.log(rbf_kernel(x, gamma=0.16)))),
        (matern(2.5, 0), Matern(2.5, nu=0.5)),
        (matern(2.5, 1), Matern(2.5, nu=1.5)),
        (matern(2.5, 2), Matern(2.5, nu=2.5)),
        (matern(2.5, 3), Matern(2.5, nu=3.5)),
        (matern(2.5, 4), Matern(2.5, nu=4.5)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_gram_matrices_are_those_of_scikit_learn(points, kernel, expected):
    np.testing.assert_allclose(
        kernel.gram(pooled_distances([points])).numpy(), expected(points.numpy()), atol=1e-10
    )


def test_bandwidths_run_from_half_the_smallest_to_twice_the_largest():
    grid = bandwidths(torch.tensor([0.5, 2.0, 5.0], dtype=torch.float64))
    np.testing.assert_allclose(grid, np.geomspace(0.25, 10, 10), rtol=1e-12)


def test_small_distances_fall_back_to_the_quantile():
    """0, 0.01, …, 0.99: smallest below 0.1, the 5 % quantile too; largest above 0.3."""
    distances = torch.arange(100, dtype=torch.float64) / 100
    grid = bandwidths(distances)
    assert (grid[0], grid[-1]) == pytest.approx((0.05, 1.98))
    assert bandwidths(10 * distances)[0] == pytest.approx(0.25)
    assert bandwidths(distances / 100)[-1] == pytest.approx(0.6)


def test_bad_kernels_are_refused():
    for bandwidth in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(CosetError, match="bandwidth"):
            laplace(bandwidth)
    with pytest.raises(CosetError, match="order"):
        matern(1.0, 5)
