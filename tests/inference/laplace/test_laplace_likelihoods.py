"""Every likelihood under Laplace, for outputs with and without pixels."""

import math

import pytest
import torch
from laplace_problems import label
from torch import nn

from coset import (
    KFAC,
    Bernoulli,
    ByEvidence,
    Categorical,
    DiagonalOnly,
    Full,
    GaussianNoise,
    HeteroscedasticGaussian,
    Laplace,
    LowRank,
    MonteCarloFisher,
    MultivariateNoise,
    fit,
    linearise,
)
from coset.metrics import gaussian_negative_log_likelihood

pytestmark = pytest.mark.usefixtures("double")


def labels(rows, pixels):
    return torch.randint(0, 4, (rows, *pixels))


def many(rows, pixels):
    return torch.randint(0, 2, (rows, 4, *pixels)).double()


def values(rows, pixels):
    return torch.randn(rows, 4, *pixels)


def halves(rows, pixels):
    return torch.randn(rows, 2, *pixels)


CASES = {
    "classes": (Categorical(), labels, 4),
    "several labels": (Bernoulli(), many, 4),
    "known noise": (
        GaussianNoise(torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)),
        values,
        4,
    ),
    "learnt noise": (GaussianNoise(), values, 4),
    "noise of each output": (MultivariateNoise(diagonal=True), values, 4),
    "noise from the network": (HeteroscedasticGaussian(), halves, 2),
}


def setting(name, pixels):
    likelihood, targets, _ = CASES[name]
    if pixels:
        module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Conv2d(3, 4, 1))
        return module, (torch.randn(15, 1, 3, 4), targets(15, (2, 3))), likelihood
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    return module, (torch.randn(15, 3), targets(15, ())), likelihood


RECIPES = {
    "kfac": KFAC(),
    "full": Full(),
    "diagonal": DiagonalOnly(),
    "sampled": MonteCarloFisher(draws=2),
}
PAIRS = [  # a learnt covariance fits many times, and has tests of its own
    (name, recipe)
    for name, (likelihood, *_) in CASES.items()
    for recipe in RECIPES
    if recipe == "kfac" or not isinstance(likelihood, MultivariateNoise)
]


@pytest.mark.parametrize("pixels", [False, True], ids=["rows", "pixels"])
@pytest.mark.parametrize(("name", "recipe"), PAIRS)
def test_tuned_and_predicted(name, pixels, recipe):
    module, data, likelihood = setting(name, pixels)
    predictor = fit(module, data, method=Laplace(RECIPES[recipe]), likelihood=likelihood)
    predictions = predictor(data[0])
    extra = (2, 3) if pixels else ()
    assert predictions.mean.shape == (15, CASES[name][2], *extra)
    assert predictions.covariance.shape == (15, 4, 4, *extra)
    assert (predictions.variance > 0).all()
    assert math.isfinite(predictor.log_evidence)


@pytest.mark.parametrize("pixels", [False, True], ids=["rows", "pixels"])
@pytest.mark.parametrize("name", ["several labels", "known noise", "noise from the network"])
def test_the_exact_evidence(name, pixels):
    """Of the tangent model at the precision found, whatever the likelihood."""
    module, data, likelihood = setting(name, pixels)
    tuning = ByEvidence(form="full", hessian="network", groups="single", steps=50)
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning), likelihood=likelihood)
    tangent = linearise(module, data, likelihood)
    mean = "newton" if isinstance(likelihood, HeteroscedasticGaussian) else "tangent"
    exact = float(tangent.log_evidence(predictor.prior, mean=mean, hessian="network"))
    assert predictor.log_evidence == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("recipe", [*list(RECIPES.values())[:3], LowRank(12)], ids=label)
def test_noise_from_a_network_that_knows_its_targets_by_heart(recipe):
    """Its tangent model would shrink the noise of single targets further and further."""
    torch.manual_seed(0)
    inputs = torch.randn(40, 3)
    targets = inputs[:, :1].sin() + (0.1 + 0.2 * inputs[:, :1].abs()) * torch.randn(40, 1)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    likelihood = HeteroscedasticGaussian()
    optimiser = torch.optim.Adam(module.parameters(), 2e-2)
    for _ in range(500):
        optimiser.zero_grad()
        (-likelihood.log_prob(module(inputs), targets).mean()).backward()
        optimiser.step()
    predictor = fit(module, (inputs, targets), method=Laplace(recipe), likelihood=likelihood)
    assert any("one Newton step" in line for line in predictor.posterior.report.warnings)
    new = torch.randn(500, 3)
    truth = new[:, :1].sin() + (0.1 + 0.2 * new[:, :1].abs()) * torch.randn(500, 1)
    predictions, plain = predictor(new), module(new).detach()
    ours = gaussian_negative_log_likelihood(predictions.mean, predictions.variance, truth)
    own = gaussian_negative_log_likelihood(plain[:, :1], plain[:, 1:].exp(), truth)
    assert ours < own / 3


def test_labels_that_do_not_exclude_each_other_are_independent():
    """One network for each label gives the same as one for all, where they share nothing."""
    data = torch.randn(30, 3), torch.randint(0, 2, (30, 2)).double()
    module = nn.Linear(3, 2)
    both = fit(module, data, method=Laplace(Full(), tuning=None), likelihood=Bernoulli())
    for output in range(2):
        one = nn.Linear(3, 1)
        with torch.no_grad():
            one.weight.copy_(module.weight[output : output + 1])
            one.bias.copy_(module.bias[output : output + 1])
        alone = fit(one, (data[0], data[1][:, output : output + 1]), likelihood=Bernoulli(),
                    method=Laplace(Full(), tuning=None))  # fmt: skip
        torch.testing.assert_close(both(data[0]).mean[:, output], alone(data[0]).mean[:, 0])
        torch.testing.assert_close(both(data[0]).variance[:, output], alone(data[0]).variance[:, 0])
