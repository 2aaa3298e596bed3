"""Every sampler recovers a conjugate posterior, and is what its seed makes it.

False alarms: with ``E`` effective draws a whitened mean has standard error ``1 / √E``, a variance
``√(2 / E)``.  Both are allowed 5 standard errors: one of nine numbers is beyond that once in
190,000 seeds, and the seed is fixed.  Discretisation adds what a sampler's docstring says (5 % of
a variance for SGLD).
"""

import math

import pytest
import torch

from coset.inference.hmc import HMC
from coset.inference.nuts import NUTS
from coset.inference.sampling.stochastic import Cyclical
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from problems import deviations, linear_gaussian, logistic

SAMPLERS = {
    "HMC": (HMC(warmup=150, draws=500), 0.0),
    "HMC without adaptation": (
        HMC(warmup=50, draws=400, step_size=0.06, trajectory=0.15, adapt_mass=False),
        0.0,
    ),
    "HMC, one chain": (HMC(warmup=150, draws=600, chains=1), 0.0),
    "NUTS": (NUTS(warmup=150, draws=400), 0.0),
    "SGHMC": (SGHMC(burn_in=200, draws=300, thinning=10), 0.0),
    "SGHMC, one chain": (SGHMC(burn_in=200, draws=300, thinning=10, chains=1), 0.0),
    "SGHMC in batches": (SGHMC(burn_in=300, draws=300, thinning=15, batch_size=20), 0.15),
    "SGLD": (SGLD(burn_in=200, draws=300, thinning=15), 0.08),
}
SHORT = {
    "HMC": HMC(warmup=30, draws=6, chains=2),
    "NUTS": NUTS(warmup=30, draws=6, chains=2),
    "SGHMC": SGHMC(burn_in=20, draws=6, thinning=2, chains=2, batch_size=16),
    "SGLD": SGLD(burn_in=20, draws=6, thinning=2, chains=2, batch_size=16),
    "cyclical": SGHMC(schedule=Cyclical(2, 10, 0.5, 3), chains=2),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_recovers_the_conjugate_posterior(name):
    sampler, bias = SAMPLERS[name]
    problem, mean, covariance = linear_gaussian()
    posterior = sampler.fit(problem, generator=torch.Generator().manual_seed(1))
    samples = problem.network.layout.flatten(posterior.stack)
    effective = posterior.report.diagnostics["effective_draws_weights"]
    assert effective > 100
    off_mean, off_covariance = deviations(samples, mean, covariance)
    assert off_mean < 5 / math.sqrt(effective)
    assert off_covariance < bias + 5 * math.sqrt(2 / effective)


@pytest.mark.parametrize("name", SHORT)
def test_seeds_shapes_and_counts(name):
    problem = logistic()
    sampler = SHORT[name]
    first, again, other = (
        sampler.fit(problem, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    for key, tensor in first.stack.items():
        assert torch.equal(tensor, again.stack[key])  # bitwise
        assert not torch.equal(tensor, other.stack[key])
        assert tensor.shape == (12, *problem.network.weights[key].shape)
        assert tensor.dtype == torch.float64
        assert not tensor.requires_grad
    drawn = first.sample(7, generator=torch.Generator().manual_seed(0))
    assert all(len(tensor) == 7 for tensor in drawn.values())
    assert first.report.diagnostics["chains"] == 2
    assert first.report.warnings  # twelve draws are not enough, and the report says so


@pytest.mark.parametrize("name", SHORT)
def test_starts_where_it_is_told(name):
    problem = logistic()
    start = {key: torch.full_like(tensor, 0.1) for key, tensor in problem.network.weights.items()}
    kept = {key: tensor.clone() for key, tensor in start.items()}
    SHORT[name].fit(problem, start=start, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(start[key], kept[key]) for key in start)
