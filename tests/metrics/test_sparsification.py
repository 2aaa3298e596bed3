"""Sparsification curves against removal one by one, in numpy."""

import itertools

import numpy as np
import pytest
import torch

from coset.errors import CosetError
from coset.metrics import area_under_sparsification, sparsification


def gaussians(n, seed):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, generator=generator, dtype=torch.float64)
    variance = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    targets = mean + variance.sqrt() * torch.randn(n, generator=generator, dtype=torch.float64)
    return mean, variance, targets


def by_hand(error, order, root):
    """The error of what is left when the largest go first, averaged over all orders of ties."""
    ranks = []
    for permuted in itertools.permutations(range(len(error))):
        if all(order[a] >= order[b] for a, b in itertools.pairwise(permuted)):
            left = [np.mean([error[k] for k in permuted[i:]]) for i in range(len(error))]
            ranks.append(left)
    curve = np.mean(ranks, axis=0)
    return np.sqrt(curve) / np.sqrt(curve[0]) if root else curve / curve[0]


@pytest.mark.parametrize("error", ["rmse", "mae"])
@pytest.mark.parametrize("tied", [False, True])
def test_curves_are_those_of_removal_one_by_one(error, tied):
    mean, variance, targets = gaussians(6, 1)
    if tied:
        variance = variance.new_tensor([1.0, 2.0, 1.0, 3.0, 2.0, 1.0])
    found = sparsification(mean, variance, targets, error=error)
    off = (targets - mean).abs().numpy()
    size = off**2 if error == "rmse" else off
    np.testing.assert_allclose(found.by_variance, by_hand(size, variance.numpy(), error == "rmse"))
    np.testing.assert_allclose(found.oracle, by_hand(size, size, error == "rmse"))


def test_variances_that_are_the_squared_errors_are_perfect():
    mean, _, targets = gaussians(500, 2)
    assert float(area_under_sparsification(mean, (targets - mean).square(), targets)) == 0
    reverse = 1 / (targets - mean).square()
    assert float(area_under_sparsification(mean, reverse, targets)) > 0.5


def test_true_variances_beat_shuffled_ones():
    """500 Gaussians with variances over a factor of ten; the chance of the reverse is tiny."""
    mean, variance, targets = gaussians(500, 3)
    shuffled = variance[torch.randperm(500, generator=torch.Generator().manual_seed(0))]
    area = area_under_sparsification(mean, variance, targets)
    assert area < area_under_sparsification(mean, shuffled, targets)


def test_missing_targets_have_no_say():
    mean, variance, targets = gaussians(50, 4)
    holes = targets.clone()
    holes[::7] = torch.nan
    known = ~holes.isnan()
    whole = area_under_sparsification(mean[known], variance[known], targets[known])
    assert area_under_sparsification(mean, variance, holes, missing="nan") == whole
    with pytest.raises(CosetError, match="NaN"):
        area_under_sparsification(mean, variance, holes)


def test_bad_input_is_refused():
    mean, variance, targets = gaussians(5, 5)
    with pytest.raises(CosetError, match="error='max'"):
        area_under_sparsification(mean, variance, targets, error="max")
    with pytest.raises(CosetError, match="every prediction is exact"):
        area_under_sparsification(mean, variance, mean)
    with pytest.raises(CosetError, match="shape"):
        area_under_sparsification(mean, variance, targets[:4])
