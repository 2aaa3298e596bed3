"""Gaussian posteriors."""

import pytest
import torch

from coset import CosetError, Gaussian, Posterior
from coset.linalg import BlockDiagonal, Dense, Diagonal
from coset.posterior.records import describe, restore


def gaussian():
    factor = torch.randn(3, 3, dtype=torch.float64)
    covariance = BlockDiagonal(
        (Dense(factor @ factor.mT + torch.eye(3)), Diagonal(torch.tensor([4.0]).double())),
        torch.tensor([0, 2, 3, 1]),
    )
    mean = {"a": torch.tensor([1.0, 2.0]).double(), "b": torch.tensor([[3.0], [4.0]]).double()}
    return Gaussian(mean, covariance, (("a", "b"), ("a",)))


def test_draws_have_the_moments(generator):
    posterior = gaussian()
    assert isinstance(posterior, Posterior)
    drawn = posterior.layout.flatten(posterior.sample(40_000, generator=generator))
    torch.testing.assert_close(
        drawn.mean(0), torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), atol=0.1, rtol=0
    )
    exact = posterior.covariance.matmat(torch.eye(4, dtype=torch.float64))
    assert (drawn.T.cov() - exact).abs().max() < 0.06 * exact.abs().max()


def test_equal_seeds_give_equal_draws():
    posterior = gaussian()
    first, second = (
        posterior.sample(3, generator=torch.Generator().manual_seed(5))["b"] for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.shape == (3, 2, 1)
    with pytest.raises(CosetError, match="draws"):
        posterior.sample(0, generator=torch.Generator())


def test_records_keep_it():
    posterior = gaussian()
    facts, tensors = describe(posterior, "posterior")
    again = restore(facts, tensors)
    assert again.layers == posterior.layers
    assert torch.equal(again.covariance.blocks[0].matrix, posterior.covariance.blocks[0].matrix)
