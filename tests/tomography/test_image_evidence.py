import math
from dataclasses import replace

import pytest
import torch
from tests.tomography.tomography_problems import fitted_problem
from torch.distributions import MultivariateNormal

from coset.tomography import ByMarginalLikelihood, TotalVariationInformed
from coset.tomography.evidence import Scales, tune


@pytest.fixture(scope="module")
def setting():
    return fitted_problem()


@pytest.fixture(scope="module")
def scales(setting):
    *_, problem = setting
    random = torch.Generator().manual_seed(0)
    blocks = len(problem.grams)
    lengths = torch.rand(blocks, generator=random).double() + 0.3
    lengths[[len(each) == 1 for each in problem.grams]] = math.nan
    variances = 0.1 * torch.rand(blocks, generator=random).double() + 0.01
    return Scales(variances, lengths, torch.tensor(2e-3).double())


def dense(rows, scales):
    """``R S Rᵀ`` from the prior covariance of every single weight."""
    parts = []
    for each, covariance in zip(rows, scales.covariances(), strict=True):
        whole = torch.kron(torch.eye(each.shape[1]).double(), covariance)
        parts.append(each.flatten(1) @ whole @ each.flatten(1).T)
    return sum(parts)


def test_the_covariance_of_readings_is_that_of_the_weights(setting, scales):
    *_, rows, problem = setting
    expected = dense(rows, scales) + scales.noise * torch.eye(len(problem.residual)).double()
    torch.testing.assert_close(problem.covariance(scales), expected, rtol=1e-8, atol=1e-12)


def test_the_evidence_is_a_gaussian_density(setting, scales):
    *_, problem = setting
    expected = MultivariateNormal(
        torch.zeros_like(problem.residual), problem.covariance(scales)
    ).log_prob(problem.residual)
    torch.testing.assert_close(problem.log_evidence(scales), expected, rtol=1e-9, atol=1e-9)


def test_the_evidence_in_weights_is_the_same_number(setting, scales):
    """``-½ [‖y - A h*‖²/noise + θ*ᵀ S⁻¹ θ* + log |2π K|]`` at the mode θ* of the linear model."""
    _, _, features, _, rows, problem = setting
    covariances = [
        torch.kron(torch.eye(each.shape[1]).double(), c)
        for each, c in zip(rows, scales.covariances(), strict=True)
    ]
    prior = torch.block_diag(*covariances)
    jacobian = torch.cat([each.flatten(1) for each in rows], 1)
    precision = jacobian.T @ jacobian / scales.noise + torch.linalg.inv(prior)
    mode = torch.linalg.solve(precision, jacobian.T @ problem.residual / scales.noise)
    rest = problem.residual - jacobian @ mode
    quadratic = rest @ rest / scales.noise + mode @ torch.linalg.solve(prior, mode)
    logdet = torch.logdet(problem.covariance(scales))
    expected = -(quadratic + logdet + len(rest) * math.log(2 * math.pi)) / 2
    assert float(problem.log_evidence(scales)) == pytest.approx(float(expected), rel=1e-7)
    # and at the network's weights only the first two terms change
    weights = torch.cat([w.flatten() for w in features.weights()]).double()
    rest = problem.network_residual
    torch.testing.assert_close(problem.residual - jacobian @ weights, rest, rtol=1e-8, atol=1e-10)
    quadratic = rest @ rest / scales.noise + weights @ torch.linalg.solve(prior, weights)
    expected = -(quadratic + logdet + len(rest) * math.log(2 * math.pi)) / 2
    found = problem.log_evidence_at_network(scales)
    assert float(found) == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.parametrize("kind", ["tangent", "network", "informed"])
def test_derivatives_by_all_scales(setting, scales, kind):
    *_, problem = setting
    has = ~scales.lengths.isnan()

    def value(vector):
        blocks = len(problem.grams)
        lengths = scales.lengths.clone().masked_scatter(has, vector[blocks:-1].exp())
        trial = Scales(vector[:blocks].exp(), lengths, vector[-1].exp())
        if kind == "informed":
            return problem.log_length_prior(trial)
        return (
            problem.log_evidence(trial)
            if kind == "tangent"
            else problem.log_evidence_at_network(trial)
        )

    start = torch.cat([scales.variances, scales.lengths[has], scales.noise[None]]).log()
    assert torch.autograd.gradcheck(value, (start.requires_grad_(),), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "prior",
    [
        TotalVariationInformed(mean="tangent"),
        TotalVariationInformed(mean="network"),
        ByMarginalLikelihood(mean="tangent"),
    ],
)
def test_tuning_rises(setting, prior):
    _, observed, *_, problem = setting
    tuned = tune(problem, prior, level=observed.level)
    assert list(tuned.trace) == sorted(tuned.trace)
    assert tuned.trace[-1] > tuned.trace[0] + 1
    assert len(tuned.path) == len(tuned.trace)


def test_the_evidence_learns_the_noise_of_its_own_model(setting, scales):
    """85 readings drawn from the model, 20 times: the mean log noise within 0.3 of the truth.

    A single log variance has a standard error of about √(2/40); the mean of 20 one of 0.05.
    """
    *_, problem = setting
    half = torch.linalg.cholesky(problem.covariance(scales))
    random = torch.Generator().manual_seed(1)
    gaps, prior = [], ByMarginalLikelihood(mean="tangent")
    for _ in range(20):
        drawn = half @ torch.randn(len(half), generator=random, dtype=torch.float64)
        tuned = tune(replace(problem, residual=drawn), prior, level=1e-2)
        gaps.append(float(tuned.scales.noise.log() - scales.noise.log()))
    assert abs(sum(gaps) / len(gaps)) < 0.3


def test_the_dispersion_of_counts_is_learnt(setting, scales):
    """Noise of nine times the known variance, 5 draws: the mean log factor within 0.5 of log 9.

    Its standard error is about √(2/40/5) = 0.1; without more noise than known it is one.
    """
    *_, problem = setting
    half = torch.linalg.cholesky(problem.covariance(scales))
    random = torch.Generator().manual_seed(2)
    prior = ByMarginalLikelihood(mean="tangent")
    drawn = [half @ torch.randn(len(half), generator=random).double() for _ in range(5)]

    def learnt(residual, known):
        counted = replace(problem, residual=residual, noise=known, dispersed=True)
        return float(tune(counted, prior, level=1e-2).scales.noise)

    known = torch.full_like(problem.residual, float(scales.noise) / 9)
    factors = torch.tensor([learnt(each, known) for each in drawn])
    assert float(factors.log().mean()) == pytest.approx(math.log(9), abs=0.5)
    assert learnt(drawn[0], 100 * known) == 1.0


def test_the_trace_in_the_derivative_against_random_probes(setting, scales):
    """``tr(K⁻¹ G)`` from exact derivatives within 4 standard errors of 200 random probes.

    A false alarm in 1 of 16,000 seeds for each matrix; the standard error is below 10 %.
    """
    *_, problem = setting
    variances = scales.variances.clone().requires_grad_()
    exact = replace(problem, residual=torch.zeros_like(problem.residual))
    (slopes,) = torch.autograd.grad(exact.log_evidence(replace(scales, variances=variances)),
                                    variances)  # fmt: skip
    factor = torch.linalg.cholesky(problem.covariance(scales))
    random = torch.Generator().manual_seed(3)
    count = len(problem.residual)
    probes = 2.0 * torch.randint(0, 2, (count, 200), generator=random).double() - 1
    solved = torch.linalg.solve_triangular(factor.mT, probes, upper=True)
    for block, slope in enumerate(slopes):
        weights = scales.coefficients()[block] / scales.variances[block]
        change = torch.tensordot(weights, problem.grams[block], dims=1)
        guesses = (solved * (change @ solved)).sum(0)
        error = float(guesses.std()) / math.sqrt(200)
        assert error < 0.1 * float(guesses.mean())
        assert abs(float(guesses.mean()) + 2 * float(slope)) < 4 * error


def test_a_variance_for_each_block_explains_more_than_one_for_all(setting):
    """The single variance is a special case, so its best evidence is no higher."""
    *_, problem = setting
    tuned = tune(problem, ByMarginalLikelihood(mean="tangent"), level=1e-2)
    best = max(
        float(problem.log_evidence(replace(tuned.scales, variances=torch.full_like(
            tuned.scales.variances, 10**power))))
        for power in torch.linspace(-6, 2, 33).tolist()
    )  # fmt: skip
    assert tuned.log_evidence > best + 1
