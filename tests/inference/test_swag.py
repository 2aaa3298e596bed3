"""SWAG's moments and draws against the iterates themselves."""

import pytest
import torch
from torch import nn

from coset import SWAG, CosetError, MaximumAPosteriori
from coset.bayes import Categorical, GaussianNoise, GaussianPrior, Problem, as_batches
from coset.inference import swag
from coset.inference.batch_norm import refresh_statistics
from coset.weights import functionalise
from problems import linear_gaussian


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def iterates(monkeypatch):
    """All weights that SWAG saw, as flat stacks."""
    seen = []
    collect = swag._Iterates.collect

    def noting(self, state):
        seen.append(self.layout.flatten(state.weights).clone())
        collect(self, state)

    monkeypatch.setattr(swag._Iterates, "collect", noting)
    return seen


def test_moments_and_columns_are_those_of_the_iterates(iterates):
    problem, _, _ = linear_gaussian()
    method = SWAG(rank=4, base=MaximumAPosteriori(epochs=5), epochs=9)
    posterior = method.fit(problem, generator=seeded())
    flat = torch.stack(iterates)[:, 0]
    assert len(flat) == 9
    layout = problem.network.layout
    torch.testing.assert_close(layout.flatten(posterior.mean), flat.mean(0))
    std = flat.var(0, correction=0).mul(0.5).sqrt()
    torch.testing.assert_close(layout.flatten(posterior.std), std)
    running = flat.cumsum(0) / torch.arange(1, 10, dtype=flat.dtype)[:, None]
    columns = (flat - running)[-4:] / (2 * (4 - 1)) ** 0.5
    torch.testing.assert_close(layout.flatten(posterior.factors), columns)


def test_modes_are_what_they_would_be_alone(iterates):
    problem, _, _ = linear_gaussian()
    method = SWAG(rank=2, base=MaximumAPosteriori(epochs=2), epochs=4, learning_rate=1e-3)
    start = problem.network.weights
    pair = method.fit_many(problem, 2, start=start, generator=seeded())
    alone = method.fit(problem, start=start, generator=seeded())
    for name, tensor in alone.mean.items():
        torch.testing.assert_close(pair[0].mean[name], tensor)
    assert not torch.equal(pair[0].mean["weight"], pair[1].mean["weight"])


def test_the_mean_is_that_of_the_posterior():
    problem, mean, covariance = linear_gaussian()
    posterior = SWAG(rank=5, epochs=200).fit(problem, generator=seeded())
    error = problem.network.layout.flatten(posterior.mean) - mean
    # SGD's noise is about as large as the posterior: 200 iterates give its mean to a few tenths
    assert float((error / covariance.diagonal().sqrt()).abs().max()) < 0.4


def test_stationary_law_of_sgd(iterates):
    """One weight, inputs of one, targets ±1, batches of one: the law of the iterates is known.

    An epoch of ``n`` steps at rate ``η`` takes ``w`` to ``aⁿ w + η Σ_k b_k y_σ(k)`` with
    ``a = 1 - η``, ``b_k = a^(n-1-k)`` and a random order ``σ``.  The targets sum to zero, so the
    noise has variance ``η² n / (n - 1) (Σ b² - (Σ b)² / n)``, and the stationary law that over
    ``1 - a^2n``.
    """
    rate, rows = 0.2, 8
    targets = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(rows // 2).view(-1, 1)
    problem = Problem(
        functionalise(nn.Linear(1, 1, bias=False).double()),
        GaussianNoise(1.0),
        GaussianPrior(0.0),
        as_batches((torch.ones_like(targets), targets)),
    )
    method = SWAG(
        rank=0,
        base=MaximumAPosteriori(epochs=20, batch_size=1),
        epochs=60,
        learning_rate=rate,
        momentum=0.0,
    )
    method.fit_many(problem, 60, generator=seeded())
    found = torch.stack(iterates[5:])
    kept = (1 - rate) ** torch.arange(rows - 1, -1, -1, dtype=torch.float64)
    noise = rows / (rows - 1) * (kept.square().sum() - kept.sum() ** 2 / rows)
    wanted = float(rate**2 * noise / (1 - (1 - rate) ** (2 * rows)))
    # 3,300 nearly independent values: standard error of a variance 2.5 %, five of them allowed
    assert float(found.square().mean()) == pytest.approx(wanted, rel=0.125)
    assert abs(float(found.mean())) < 5 * (wanted * 1.5 / 3300) ** 0.5


def test_statistics_of_draws_come_from_the_data(double):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Linear(4, 2))
    inputs = torch.randn(40, 3, generator=seeded())
    data = as_batches((inputs, (inputs[:, 0] > 0).long()), batch_size=10)
    problem = Problem(functionalise(module), Categorical(), GaussianPrior(1.0), data)
    drawn = {
        name: tensor.expand(2, *tensor.shape) + 0.1
        for name, tensor in problem.network.weights.items()
    }
    fresh = refresh_statistics(problem, drawn)
    hidden = inputs @ fresh["0.weight"][1].T + fresh["0.bias"][1]
    torch.testing.assert_close(fresh["1.running_mean"][1], hidden.mean(0))
    by_batch = torch.stack([part.var(0) for part in hidden.split(10)]).mean(0)
    torch.testing.assert_close(fresh["1.running_var"][1], by_batch)
    assert torch.equal(fresh["0.weight"], drawn["0.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {"rank": -1},
        {"rank": 9, "epochs": 8},
        {"scale": 0.0},
        {"scale": float("inf")},
        {"learning_rate": 0.0},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(CosetError):
        SWAG(**settings)


def test_the_setting_that_is_missing_is_named():
    """A flat energy gives no rate: outputs that do not depend on the weights, no prior."""

    class Flat(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) * 0

    data = as_batches((torch.randn(8, 2), torch.arange(8) % 2))
    problem = Problem(functionalise(Flat(2, 2)), Categorical(), GaussianPrior(0.0), data)
    with pytest.raises(CosetError, match=r"curvature of .* give learning_rate"):
        SWAG(rank=0, base=MaximumAPosteriori(epochs=1)).fit(problem, generator=seeded())


def test_the_vectors_of_a_spectral_norm_are_no_statistics(generator):
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 4))
    module = nn.Sequential(normed, nn.BatchNorm1d(4), nn.Linear(4, 3))
    problem = Problem.of(module, (torch.randn(12, 2), torch.arange(12) % 3))
    members = {name: torch.stack([w, w]) for name, w in problem.network.weights.items()}
    fresh = refresh_statistics(problem, members)
    for name, tensor in members.items():
        assert torch.equal(fresh[name], tensor) == (".running_" not in name)
