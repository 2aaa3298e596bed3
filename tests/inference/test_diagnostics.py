"""R-hat and effective sample size on chains whose truth is known."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from coset.inference.diagnostics import effective_sample_size, energy_fraction, r_hat, warnings_of


def autoregressive(correlation, draws, chains, quantities, generator):
    """Stationary chains with ``corr(x_t, x_{t+k}) = correlation^k`` and unit variance."""
    noise = torch.randn(draws, chains, quantities, generator=generator, dtype=torch.float64)
    rows = [noise[0]]
    for step in noise[1:]:
        rows.append(correlation * rows[-1] + math.sqrt(1 - correlation**2) * step)
    return torch.stack(rows)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_autoregressive_chains(correlation, generator):
    # the truth is d m (1 - ρ) / (1 + ρ); the mean of 40 estimates is within 10 %
    values = autoregressive(correlation, 2000, 4, 40, generator)
    wanted = 8000 * (1 - correlation) / (1 + correlation)
    found = float(effective_sample_size(values).mean())
    assert found == pytest.approx(wanted, rel=0.1)


def by_the_paper(values):
    """Bulk effective sample size of one quantity, as Vehtari et al. (2021) write it, by loops."""
    half = len(values) // 2
    chains = np.concatenate([values[:half], values[len(values) - half :]], axis=1)
    ranks = rankdata(chains).reshape(chains.shape)
    z = norm.ppf((ranks - 3 / 8) / (chains.size + 1 / 4))
    n, m = z.shape
    within = z.var(0, ddof=1).mean()
    pooled = (n - 1) / n * within + z.mean(0).var(ddof=1)
    away = z - z.mean(0)
    rho = [1.0]
    for lag in range(1, n):
        products = (away[: n - lag] * away[lag:]).sum(0) / n  # the divisor is n at every lag
        rho.append(1 - (within - products.mean()) / pooled)
    total, last, lag = 0.0, math.inf, 0
    most = max((n - 1) // 2 - 1, 1)  # pairs that their program sums at most
    while lag < 2 * most and rho[lag] + rho[lag + 1] > 0:
        last = min(last, rho[lag] + rho[lag + 1])
        total, lag = total + last, lag + 2
    odd = -1 + 2 * total
    even = odd + 2 * max(rho[lag], 0) if lag < n else odd
    return m * n / max((odd + even) / 2, 1 / math.log10(m * n))


@pytest.mark.parametrize("draws", [4, 9, 100, 101])
@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.5, 0.95])
def test_effective_sample_size_is_that_of_the_paper(draws, correlation, generator):
    values = autoregressive(correlation, draws, 3, 20, generator)
    wanted = [by_the_paper(values[:, :, number].numpy()) for number in range(20)]
    torch.testing.assert_close(effective_sample_size(values), torch.tensor(wanted).double())


def test_alternating_chains_are_worth_more_than_their_length(generator):
    values = autoregressive(-0.5, 2000, 4, 10, generator)
    assert float(effective_sample_size(values).mean()) > 12_000


def test_r_hat_is_near_one_for_equal_chains_and_large_for_shifted_ones(generator):
    values = autoregressive(0.3, 1000, 4, 20, generator)
    assert float(r_hat(values).max()) < 1.02
    shifted = values.clone()
    shifted[:, 0] += 2
    assert float(r_hat(shifted).min()) > 1.2
    spread = values.clone()
    spread[:, 0] *= 5  # equal means, unequal scales: only the folded statistic sees it
    assert float(r_hat(spread).min()) > 1.1
    drifting = values + torch.linspace(0, 3, 1000, dtype=torch.float64).view(-1, 1, 1)
    assert float(r_hat(drifting).min()) > 1.2


def test_r_hat_is_the_same_for_mirrored_chains(generator):
    # ranks of x and -x mirror each other, and so does the median, if it is that in the middle
    values = torch.randn(7, 2, 50, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(r_hat(values), r_hat(-values))


def test_r_hat_does_not_change_under_monotone_maps(generator):
    values = autoregressive(0.3, 200, 4, 5, generator)
    torch.testing.assert_close(effective_sample_size(values), effective_sample_size(values.exp()))


def test_constants_have_converged():
    values = torch.ones(20, 2, 3)
    assert torch.equal(r_hat(values), torch.ones(3, dtype=torch.float64))
    assert torch.equal(effective_sample_size(values), torch.full((3,), 40.0, dtype=torch.float64))


def test_energy_of_independent_states(generator):
    # E (x_t - x_{t-1})² = 2 Var for independent states
    energy = torch.randn(20_000, 3, generator=generator)
    assert energy_fraction(energy).mean() == pytest.approx(2.0, rel=0.05)


def test_good_numbers_give_no_warning_and_bad_ones_one_each():
    good = {
        "r_hat_functions": 1.01,
        "r_hat_weights": 1.02,
        "r_hat_aligned_weights": 1.02,
        "effective_draws_functions": 500.0,
        "divergences": 0.0,
        "energy_fraction": 0.8,
    }
    assert warnings_of(good) == []
    bad = {
        "r_hat_functions": 1.3,
        "r_hat_weights": math.nan,
        "r_hat_aligned_weights": 1.1,
        "effective_draws_functions": 20.0,
        "divergences": 3.0,
        "energy_fraction": 0.1,
        "cut_off": 0.9,
    }
    assert len(warnings_of(bad)) == 7
