"""Parts of a network: layers, subnetworks, and other weights than the module has."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from laplace_problems import regressor, wave
from torch import nn

from coset import (
    ByEvidence,
    CosetError,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    LastLayer,
    MaximumAPosteriori,
    MonteCarlo,
    MultiMode,
    MultivariateNoise,
    Problem,
    Subnetwork,
    assign,
    fit,
    linearise,
    load,
    weights_of,
)
from coset.inference.laplace.features import problem_of_layer
from coset.inference.run_record import Steps
from coset.linalg import diagonal

pytestmark = pytest.mark.usefixtures("double")


def test_parts_of_a_network(classification):
    module, data = classification
    predictor = fit(module, data, method=Laplace(Full(), subset="2.*"))
    assert predictor.posterior.layout.names == ("2.weight", "2.bias")
    drawn = predictor.posterior.sample(4, generator=torch.Generator().manual_seed(0))
    assert drawn["2.weight"].shape == (4, 3, 12)
    assert torch.equal(drawn["0.weight"], module[0].weight.expand(4, -1, -1))
    assert predictor(data[0], rule=MonteCarlo(8)).members.shape == (8, 60, 3)


def test_the_last_layer(classification):
    module, data = classification
    predictor = fit(module, data, method=Laplace(subset=LastLayer()))
    assert predictor.posterior.layout.names == ("2.weight", "2.bias")
    again = fit(module, data, method=Laplace(subset=("2.*",)))
    assert torch.equal(again(data[0]).mean, predictor(data[0]).mean)


@pytest.mark.parametrize("tuning", [None, ByEvidence(groups="layer")], ids=["kept", "tuned"])
def test_a_subnetwork_of_everything_is_the_network(regression, tuning):
    module, data = regression
    likelihood, prior = GaussianNoise(0.1), GaussianPrior(2.0)
    size = sum(p.numel() for p in module.parameters())
    whole, part = (
        fit(module, data, method=method, likelihood=likelihood, prior=prior)
        for method in (
            Laplace(Full(), tuning=tuning),
            Laplace(subset=Subnetwork(size), tuning=tuning),
        )
    )
    assert part.log_evidence == pytest.approx(whole.log_evidence, rel=1e-7)
    torch.testing.assert_close(part(data[0]).variance, whole(data[0]).variance, rtol=1e-5, atol=0)


def test_a_subnetwork_is_the_full_matrix_of_its_weights(regression):
    module, data = regression
    method = Laplace(subset=Subnetwork(7), tuning=None)
    predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.1))
    covariance = predictor.posterior.covariance
    tangent = linearise(module, data, GaussianNoise(0.1))
    columns = tangent.jacobian.matrix[:, covariance.index]
    inner = torch.linalg.inv(columns.mT @ columns / 0.01 + torch.eye(7))
    exact = (columns @ inner @ columns.mT).diagonal()
    torch.testing.assert_close(predictor(data[0]).covariance[:, 0, 0], exact)
    curvature = tangent.jacobian.matrix.square().sum(0)  # the smallest have the most variance
    expected = curvature.topk(7, largest=False).indices
    assert set(covariance.index.tolist()) == set(expected.tolist())
    layout = predictor.posterior.layout
    drawn = layout.flatten(predictor.posterior.sample(5, generator=torch.Generator()))
    still = torch.ones(layout.size, dtype=torch.bool)
    still[covariance.index] = False
    centre = layout.flatten(predictor.posterior.mean)
    assert torch.equal(drawn[:, still], centre[still].expand(5, -1))
    assert (drawn[:, covariance.index] != centre[covariance.index]).all()


def test_the_largest_variances_capture_more_than_chance(regression, tmp_path):
    module, data = regression

    def captured(score):
        method = Laplace(subset=Subnetwork(10, score), tuning=None)
        predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.1))
        predictor.save(tmp_path / "sub.safetensors")
        again = load(tmp_path / "sub.safetensors", regressor())
        assert torch.equal(again(data[0]).variance, predictor(data[0]).variance)
        return float(diagonal(predictor.posterior.covariance).sum())

    assert captured("wasserstein") > captured("random")


def test_a_subnetwork_is_chosen_under_the_noise_that_is_given():
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    data, std = (torch.randn(40, 3), torch.randn(40, 2)), torch.tensor([0.3, 3.0])
    plain, rich = (
        fit(module, data, method=Laplace(Full(), subset=Subnetwork(6)), likelihood=likelihood)
        for likelihood in (GaussianNoise(std), MultivariateNoise(torch.diag(std.square())))
    )
    assert torch.equal(plain.posterior.covariance.index, rich.posterior.covariance.index)
    torch.testing.assert_close(plain(data[0]).variance, rich(data[0]).variance)


def test_bad_subsets(regression):
    module, data = regression
    with pytest.raises(CosetError, match="needed at most"):
        fit(module, data, method=Laplace(subset=Subnetwork(10_000)), likelihood=GaussianNoise())
    with pytest.raises(CosetError, match="size=0"):
        Subnetwork(0)
    with pytest.raises(CosetError, match="score"):
        Subnetwork(3, score="largest")
    with pytest.raises(CosetError, match=r"prior precision of -1\.0"):
        Subnetwork(3, prior_precision=-1.0)


@pytest.mark.parametrize("subset", [None, "2.*", LastLayer(), Subnetwork(5)], ids=repr)
def test_other_weights_than_the_module_has(regression, subset, tmp_path):
    """A start is as good as a module with those weights, whatever part of it is uncertain."""
    module, data = regression
    moved = {name: tensor + 0.1 for name, tensor in weights_of(module).items()}
    method = Laplace(subset=subset)
    predictor = fit(module, data, method=method, likelihood=GaussianNoise(), start=moved)
    other = assign(copy.deepcopy(module), moved)
    expected = fit(other, data, method=method, likelihood=GaussianNoise())
    assert torch.equal(predictor(data[0]).mean, expected(data[0]).mean)
    torch.testing.assert_close(predictor(data[0]).variance, expected(data[0]).variance)
    drawn, again = (p(data[0], rule=MonteCarlo(3)).members for p in (predictor, expected))
    torch.testing.assert_close(drawn, again)
    predictor.save(tmp_path / "moved.safetensors")
    loaded = load(tmp_path / "moved.safetensors", regressor())
    torch.testing.assert_close(loaded(data[0]).variance, predictor(data[0]).variance)


@pytest.mark.parametrize("subset", [None, LastLayer()], ids=repr)
def test_several_modes_with_batch_norm(subset, tmp_path):
    """Each mode keeps its own statistics, and its own weights of what is not uncertain."""
    module = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    data = wave()
    method = MultiMode(Laplace(subset=subset), 2, base=MaximumAPosteriori(epochs=5))
    predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.2))
    first, second = predictor.posterior.components
    assert not torch.equal(first.fixed["1.running_mean"], second.fixed["1.running_mean"])
    parts = [
        fit(assign(copy.deepcopy(module), part.centre(predictor.network)), data,
            method=Laplace(subset=subset), likelihood=GaussianNoise(0.2))(data[0])
        for part in (first, second)
    ]  # fmt: skip
    torch.testing.assert_close(
        predictor(data[0]).mean, (parts[0].mean + parts[1].mean) / 2, rtol=1e-12, atol=1e-12
    )
    assert predictor(data[0], rule=MonteCarlo(4)).members.shape == (4, 30, 1)
    predictor.save(tmp_path / "modes.safetensors")
    loaded = load(tmp_path / "modes.safetensors", module)
    assert torch.equal(loaded(data[0]).mean, predictor(data[0]).mean)


def test_the_rest_of_a_network_runs_once_for_its_last_layer(classification, monkeypatch):
    module, data = classification
    rows, problem = [], Problem.of(module, data)
    apply = problem.network.apply

    def counted(weights, inputs):
        rows.append(len(inputs))
        return apply(weights, inputs)

    seen = replace(problem, network=replace(problem.network, apply=counted))
    generator = torch.Generator().manual_seed(0)
    fast = Laplace(subset=LastLayer()).fit(seen, generator=generator)
    assert sum(rows) < 2 * len(data[1])
    monkeypatch.setattr("coset.inference.laplace.method.problem_of_layer", lambda *_: None)
    slow = Laplace(subset=LastLayer()).fit(problem, generator=generator)
    assert fast.report.log_evidence == pytest.approx(slow.report.log_evidence, rel=1e-12)
    weights = problem.network.weights
    assert torch.equal(fast.centre(problem.network)["0.weight"], weights["0.weight"])
    assert fast.report.prior.precision.keys() == slow.report.prior.precision.keys()
    deviation = fast.sample(5, generator=torch.Generator().manual_seed(1))["2.weight"]
    again = slow.sample(5, generator=torch.Generator().manual_seed(1))["2.weight"]
    torch.testing.assert_close(deviation, again, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "head",
    [
        lambda: nn.Sequential(nn.Linear(8, 3), nn.Sigmoid()),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
    ],
    ids=["not the outputs", "made of others"],
)
def test_a_layer_whose_outputs_are_not_the_networks_has_no_features(head):
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), head())
    data = torch.randn(20, 2), torch.randn(20, 3)
    problem = Problem.of(module, data, likelihood=GaussianNoise(1.0))
    network = problem.network
    layout = network.layout.select("2.*")
    assert problem_of_layer(problem, network.weights, layout, math.inf, Steps()) is None


def test_a_last_layer_under_every_noise():
    module = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2, bias=False))
    data = torch.randn(30, 2), torch.randn(30, 2)
    for likelihood in (GaussianNoise(), MultivariateNoise(), GaussianNoise(0.3)):
        predictor = fit(module, data, method=Laplace(subset=LastLayer()), likelihood=likelihood)
        whole = linearise(module, data, predictor.likelihood, subset="2.weight")
        precision = predictor.prior.precision["2.weight"]
        exact = float(whole.log_evidence(precision))
        assert predictor.log_evidence == pytest.approx(exact, rel=1e-3)
