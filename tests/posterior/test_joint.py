"""Joint predictions: factor space against the Jacobian, densities, draws."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coset import (
    KFAC,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    MaximumAPosteriori,
    Subnetwork,
    fit,
    linearise,
)
from coset.posterior import joint as module_under_test
from coset.posterior.joint import JointPredictions, joint_moments
from coset.posterior.output_moments import output_moments

sys.path.insert(0, str(Path(__file__).parents[1] / "curvature"))
from curvature_networks import brute_jacobian, build, problem_of
from test_linearised import posterior_of

pytestmark = pytest.mark.usefixtures("double")
RECIPES = [KFAC(), DiagonalOnly(), Full()]


@pytest.mark.parametrize("name", ["mlp", "convolutions", "tokens", "attention", "twice"])
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_covariance_between_inputs(name, recipe):
    module, inputs = build(name, 6)
    problem = problem_of(module, inputs)
    posterior = posterior_of(problem, recipe)
    mean, covariance = joint_moments(posterior, problem.network, inputs)
    jacobian = brute_jacobian(problem.network, problem.network.layout, inputs).flatten(0, 1)
    matrix = posterior.covariance.matmat(torch.eye(problem.network.layout.size))
    expected = jacobian @ matrix @ jacobian.mT
    torch.testing.assert_close(covariance.reshape(expected.shape), expected)
    own, spread = output_moments(posterior, problem.network, inputs)
    torch.testing.assert_close(mean, own)
    torch.testing.assert_close(covariance.diagonal(dim1=0, dim2=2).permute(2, 0, 1), spread)


@pytest.mark.parametrize("name", ["mlp", "convolutions"])
@pytest.mark.parametrize("entries", [1, 1 << 25])
def test_rows_with_precisions_of_their_own_and_small_chunks(name, entries, monkeypatch):
    monkeypatch.setattr(module_under_test, "_ENTRIES", entries)
    module, inputs = build(name, 6)
    problem = problem_of(module, inputs)
    jacobian = brute_jacobian(problem.network, problem.network.layout, inputs).flatten(0, 1)
    for posterior in (posterior_of(problem, KFAC(), rows=True), posterior_of(problem, Full())):
        _, covariance = joint_moments(posterior, problem.network, inputs)
        matrix = posterior.covariance.matmat(torch.eye(problem.network.layout.size))
        expected = jacobian @ matrix @ jacobian.mT
        torch.testing.assert_close(covariance.reshape(expected.shape), expected)


def line(method=None):
    inputs = torch.linspace(-1, 1, 8).unsqueeze(1)
    targets = 2 * inputs + 0.1 * torch.randn(8, 1)
    method = method or Laplace(Full(), tuning=None)
    module = nn.Linear(1, 1)
    prior = GaussianPrior(0.7)
    noise = GaussianNoise(0.3)
    return fit(module, (inputs, targets), method=method, likelihood=noise, prior=prior)


def test_density_is_that_of_the_gaussian_process():
    """Of a linear model: weights integrated out by hand."""
    predictor = line()
    inputs, targets = torch.randn(5, 1), torch.randn(5, 1)
    joint = predictor.joint(inputs)
    features = torch.cat([inputs, torch.ones(5, 1)], 1)
    covariance = predictor.posterior.covariance.matmat(torch.eye(2))
    total = features @ covariance @ features.mT + 0.09 * torch.eye(5)
    exact = torch.distributions.MultivariateNormal(joint.mean.flatten(), total)
    torch.testing.assert_close(joint.log_prob(targets), exact.log_prob(targets.flatten()))


def test_draws_have_the_covariance_between_inputs(generator):
    """2,000 draws; each entry within 6 standard errors (false alarms below one in a million)."""
    joint = line().joint(torch.tensor([[-1.0], [0.5], [0.6]]))
    draws = joint.sample(2000, generator=generator)[..., 0]
    covariance = joint.matrix
    errors = (draws.mT.cov() - covariance).abs()
    variance = covariance.diagonal()
    scale = ((covariance.square() + variance.outer(variance)) / 2000).sqrt()
    assert (errors < 6 * scale).all()


def test_classes_by_draws_of_all_inputs_together(generator):
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    data = torch.randn(20, 2), torch.randint(0, 3, (20,))
    predictor = fit(module, data)
    assert predictor.likelihood == Categorical()
    joint = predictor.joint(data[0][:4])
    draws = joint.sample(3000, generator=generator)
    torch.testing.assert_close(draws.sum(2), torch.ones(3000, 4))
    rows = torch.arange(4)
    by_hand = draws[:, rows, data[1][:4]].prod(1).mean().log()
    assert abs(joint.log_prob(data[1][:4], draws=3000) - by_hand) < 0.05


def test_a_subnetwork_and_refusals():
    predictor = line(Laplace(subset=Subnetwork(1), tuning=None))
    inputs = torch.randn(4, 1)
    covariance = predictor.joint(inputs).matrix
    chosen = predictor.posterior.covariance.index
    tangent = linearise(nn.Linear(1, 1), (inputs, inputs), GaussianNoise(0.3))
    column = tangent.jacobian.matrix[:, chosen]
    variance = predictor.posterior.covariance.inner.matmat(torch.eye(1))
    torch.testing.assert_close(covariance, column @ variance @ column.mT)
    with pytest.raises(CosetError, match="needed a Gaussian"):
        line(MaximumAPosteriori(epochs=1)).joint(inputs)
    with pytest.raises(CosetError, match="fewer inputs"):
        predictor.joint(torch.randn(30_000, 1))


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (GaussianNoise(0.3), torch.zeros(2, 3)),  # as many numbers, but not in this order
        (GaussianNoise(0.3), torch.full((3, 2), torch.nan)),
        (Categorical(), torch.tensor([0, 1, 2])),
    ],
)
def test_targets_that_do_not_belong_to_the_outputs_are_refused(likelihood, targets):
    joint = JointPredictions(torch.zeros(3, 2), torch.eye(6).reshape(3, 2, 3, 2), likelihood)
    with pytest.raises(CosetError):
        joint.log_prob(targets)
