"""Mean field: the known optimum of a conjugate problem, and noise drawn layer by layer."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from coset import Adam, CosetError, GaussianPrior, MaximumAPosteriori, MeanField
from coset.inference.local_noise import LocalNoise, local_layers
from coset.weights import functionalise
from problems import linear_gaussian


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_finds_the_optimum_of_a_conjugate_problem():
    """The best factored Gaussian has the mean, and the inverse diagonal of the precision."""
    problem, mean, covariance = linear_gaussian()
    posterior = MeanField(optimiser=Adam(2e-2), epochs=1500).fit(problem, generator=seeded())
    layout = problem.network.layout
    wanted = torch.linalg.inv(covariance).diagonal().rsqrt()
    off = (layout.flatten(posterior.mean) - mean) / wanted
    assert float(off.abs().max()) < 0.1
    torch.testing.assert_close(layout.flatten(posterior.std), wanted, rtol=0.05, atol=0)
    # the bound lies below the evidence of the conjugate model, by the divergence of the two
    inputs, targets = problem.train.inputs, problem.train.targets
    design = torch.cat([inputs, torch.ones_like(targets)], 1)
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(len(targets), dtype=torch.float64),
        design @ design.T + 0.25 * torch.eye(len(targets), dtype=torch.float64),
    )
    evidence = float(marginal.log_prob(targets.flatten()))
    bound = posterior.report.diagnostics["evidence_bound"]
    assert bound < evidence + 0.5
    assert bound == pytest.approx(evidence, abs=2.0)


def test_a_cold_posterior_is_narrower():
    problem, _, _ = linear_gaussian()
    warm, cold = (
        MeanField(temperature=temperature, epochs=800).fit(problem, generator=seeded())
        for temperature in (1.0, 0.1)
    )
    assert float(cold.std["weight"].mean()) < 0.5 * float(warm.std["weight"].mean())


def test_local_noise_has_the_moments_of_drawn_weights(double):
    # 40,000 draws: standard errors of mean and variance 0.005 σ and 0.007 σ², five of them
    weight, bias = torch.randn(2, 3), torch.randn(2)
    variances = (torch.rand(2, 3), torch.rand(2))
    inputs = torch.randn(1, 3).expand(40_000, 3)
    with LocalNoise({id(weight): variances[0].sqrt(), id(bias): variances[1].sqrt()}, seeded()):
        outputs = functional.linear(inputs, weight, bias)
    mean = weight @ inputs[0] + bias
    variance = variances[0] @ inputs[0].square() + variances[1]
    assert float(((outputs.mean(0) - mean) / variance.sqrt()).abs().max()) < 0.025
    assert float((outputs.var(0) / variance - 1).abs().max()) < 0.036


def test_only_linear_layers_on_vectors_are_local():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.twice = nn.Linear(3, 3), nn.Linear(3, 3)
            self.scale = nn.Parameter(torch.ones(3))
            self.last = nn.Linear(3, 2)

        def forward(self, inputs):
            hidden = self.twice(self.twice(self.first(inputs))) * self.scale
            return self.last(hidden)

    found = local_layers(functionalise(Shared()), torch.randn(2, 3))
    assert found == {"first.weight", "first.bias", "last.weight", "last.bias"}
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2))
    assert local_layers(functionalise(convolution), torch.randn(2, 1, 5, 5)) == {
        "2.weight",
        "2.bias",
    }


def test_means_can_be_trained_before():
    problem, mean, _ = linear_gaussian()
    method = MeanField(
        base=MaximumAPosteriori(optimiser=Adam(0.05)), epochs=1, optimiser=Adam(1e-6)
    )
    posterior = method.fit(problem, generator=seeded())
    torch.testing.assert_close(
        problem.network.layout.flatten(posterior.mean), mean, atol=0.02, rtol=0
    )


def test_bad_input_is_refused():
    problem, _, _ = linear_gaussian()
    flat = type(problem)(problem.network, problem.likelihood, GaussianPrior(0.0), problem.train)
    with pytest.raises(CosetError, match="precision of zero"):
        MeanField().fit(flat, generator=seeded())
    with pytest.raises(CosetError, match="temperature"):
        MeanField(temperature=-1.0)
    with pytest.raises(CosetError, match="got a loss of"):
        MeanField(initial_std=1e200, epochs=2).fit(problem, generator=seeded())
