"""The low-rank Gaussian against torch's dense one."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from coset.errors import CosetError
from coset.posterior.low_rank import LowRankGaussian


@pytest.fixture
def gaussian(double, generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return LowRankGaussian(
        {"b": normal(2, 2), "a": normal(3)},
        {"b": normal(2, 2).exp(), "a": normal(3).exp()},
        {"b": normal(2, 2, 2), "a": normal(2, 3)},
        {"statistic": torch.tensor([4.0])},
    )


def dense(gaussian):
    def flat(weights):
        return torch.cat(
            [weights[name].flatten(-weights[name].dim() + lead(weights)) for name in ("a", "b")], -1
        )

    def lead(weights):
        return weights["a"].dim() - 1

    factors = flat(gaussian.factors)
    covariance = flat(gaussian.std).square().diag() + factors.T @ factors
    return flat, MultivariateNormal(flat(gaussian.mean), covariance)


def test_density_is_that_of_the_dense_gaussian(gaussian, generator):
    flat, reference = dense(gaussian)
    drawn = gaussian.sample(5, generator=generator)
    torch.testing.assert_close(gaussian.log_prob(drawn), reference.log_prob(flat(drawn)))


def test_draws_have_the_moments(gaussian, generator):
    # whitened draws: 20,000 of them, standard errors 0.007 (means) and 0.01 (variances), five each
    flat, reference = dense(gaussian)
    drawn = gaussian.sample(20_000, generator=generator)
    centred = (flat(drawn) - reference.mean).T
    white = torch.linalg.solve_triangular(reference.scale_tril, centred, upper=False)
    assert float(white.mean(1).abs().max()) < 0.036
    assert float((white.cov() - torch.eye(7)).abs().max()) < 0.05
    assert torch.equal(drawn["statistic"], torch.full((20_000, 1), 4.0))
    assert set(gaussian.layout.names) == {"a", "b", "statistic"}


def test_a_density_needs_positive_deviations():
    flat = LowRankGaussian({"a": torch.zeros(2)}, {"a": torch.zeros(2)})
    with pytest.raises(CosetError, match="standard deviations of zero"):
        flat.log_prob({"a": torch.zeros(1, 2)})
