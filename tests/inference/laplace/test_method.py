"""Laplace: the default, what is kept, files, bad input."""

import math

import pytest
import torch
from laplace_problems import CURVATURES, classifier, label
from torch import nn

from coset import (
    Bernoulli,
    ByEvidence,
    Categorical,
    CosetError,
    Full,
    Gaussian,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    Linearised,
    LowRank,
    TopDifference,
    fit,
    linearise,
    load,
)

pytestmark = pytest.mark.usefixtures("double")


def test_the_default_needs_two_arguments(classification):
    module, data = classification
    predictor = fit(module, data)
    assert isinstance(predictor.posterior, Gaussian)
    assert predictor.rule == Linearised(link=TopDifference())
    predictions = predictor(data[0])
    assert predictions.covariance.shape == (60, 3, 3)
    assert (predictions.mean.argmax(1) == data[1]).double().mean() > 0.8
    assert math.isfinite(predictor.log_evidence)
    assert predictor.posterior.layout.names == tuple(dict(module.named_parameters()))


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_nothing_is_tuned_without_tuning(regression, recipe):
    module, data = regression
    prior = GaussianPrior(3.0)
    predictor = fit(
        module, data, method=Laplace(recipe, tuning=None), likelihood=GaussianNoise(0.2),
        prior=prior,
    )  # fmt: skip
    assert predictor.prior == prior
    assert predictor.likelihood == GaussianNoise(0.2)
    if isinstance(recipe, Full):
        tangent = linearise(module, data, GaussianNoise(0.2))
        expected = float(tangent.log_evidence(3.0, mean="network"))
        assert predictor.log_evidence == pytest.approx(expected, rel=1e-9)
        covariance = predictor(data[0]).covariance[:, 0, 0]
        jacobian = tangent.jacobian.matrix
        inner = jacobian.mT @ jacobian / 0.04 + 3 * torch.eye(jacobian.shape[1])
        exact = (jacobian @ torch.linalg.solve(inner, jacobian.mT)).diagonal()
        torch.testing.assert_close(covariance, exact)


def test_a_precision_for_each_tensor(regression):
    module, data = regression
    tables = {name: 0.5 + i for i, (name, _) in enumerate(module.named_parameters())}
    for recipe in CURVATURES:
        predictor = fit(
            module, data, method=Laplace(recipe, tuning=None), likelihood=GaussianNoise(0.2),
            prior=GaussianPrior(tables),
        )  # fmt: skip
        assert math.isfinite(predictor.log_evidence)


def test_other_likelihoods(regression):
    module, data = regression
    targets = (data[1] > 0).double()
    predictor = fit(module, (data[0], targets), likelihood=Bernoulli())
    assert ((predictor(data[0]).mean > 0) & (predictor(data[0]).mean < 1)).all()
    fixed = fit(module, data, likelihood=GaussianNoise(0.3))
    assert fixed.likelihood == GaussianNoise(0.3)
    kept = fit(
        module, data, likelihood=GaussianNoise(), method=Laplace(tuning=ByEvidence(noise=False))
    )
    residual = (module(data[0]) - data[1]).detach().square().mean().sqrt()
    assert kept.likelihood.std == pytest.approx(float(residual), rel=1e-6)


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_saved_and_loaded(classification, recipe, tmp_path):
    module, data = classification
    predictor = fit(module, data, method=Laplace(recipe))
    predictor.save(tmp_path / "laplace.safetensors")
    again = load(tmp_path / "laplace.safetensors", classifier())
    assert torch.equal(again(data[0]).mean, predictor(data[0]).mean)
    assert again.log_evidence == predictor.log_evidence
    assert again.rule == predictor.rule


def test_equal_calls_give_equal_results(classification):
    module, data = classification
    first, second = (fit(module, data)(data[0]).mean for _ in range(2))
    assert torch.equal(first, second)


def test_single_precision_agrees_with_double(classification):
    module, data = classification
    narrow = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3)).float()
    narrow.load_state_dict({k: v.float() for k, v in module.state_dict().items()})
    wide = fit(module, data)
    small = fit(narrow, (data[0].float(), data[1]))
    assert small(data[0].float()).mean.dtype == torch.float32
    assert small.log_evidence == pytest.approx(wide.log_evidence, abs=0.05)
    torch.testing.assert_close(
        small(data[0].float()).mean.double(), wide(data[0]).mean, atol=5e-3, rtol=0
    )


@pytest.mark.parametrize("recipe", [Full(), LowRank(80)], ids=label)
@pytest.mark.parametrize("rows", [300, 40])  # more outputs than weights, and fewer
def test_single_precision_where_the_data_leave_little_of_the_prior(recipe, rows):
    """Inputs that nearly depend on each other, little noise: a billion times the prior."""
    inputs = torch.randn(rows, 2) @ torch.randn(2, 12) + 1e-2 * torch.randn(rows, 12)
    module = nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 1))
    new = torch.cat([inputs[:5], inputs[:5] + 3, 10 * inputs[:5], torch.zeros(1, 12)])
    method = Laplace(recipe, tuning=None)

    def fitted(dtype):
        data = inputs.to(dtype), module.to(dtype)(inputs.to(dtype)).detach()
        return fit(module, data, method=method, likelihood=GaussianNoise(1e-3))

    single = fitted(torch.float32)
    found, joint = single(new.float()).variance, single.joint(new.float()).matrix
    draws = single.posterior.sample(2, generator=torch.Generator().manual_seed(0))
    assert {t.dtype for t in (found, joint, *draws.values())} == {torch.float32}
    wide = fitted(torch.float64)
    exact = wide(new.double()).variance
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=0)
    whole = wide.joint(new.double()).matrix
    assert (joint - whole).abs().max() < 1e-5 * whole.abs().max()


def test_bad_input(classification, regression):
    module, data = classification
    with pytest.raises(CosetError, match="groups='filters'"):
        ByEvidence(groups="filters")
    for subset in ("typo", ("2.*", "typo")):
        with pytest.raises(CosetError, match=r"'typo', which fits no parameter.*2\.weight"):
            fit(module, data, method=Laplace(subset=subset))
    with pytest.raises(CosetError, match="no patterns"):
        fit(module, data, method=Laplace(subset=()))
    with pytest.raises(CosetError, match="unknown size and tuning=None"):
        fit(regression[0], regression[1], likelihood=GaussianNoise(), method=Laplace(tuning=None))
    with pytest.raises(CosetError, match="precision of zero"):
        fit(module, data, method=Laplace(tuning=None), prior=GaussianPrior(0.0))
    broken = classifier()
    with torch.no_grad():
        broken[0].weight[0] = torch.nan
    with pytest.raises(CosetError, match="not finite"):
        fit(broken, data)


class Steep(nn.Module):
    """Finite outputs with a derivative that is not: a root at zero."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, inputs):
        return self.layer(inputs).abs().sqrt()


@pytest.mark.parametrize("recipe", [*CURVATURES, LowRank(3)], ids=label)
@pytest.mark.parametrize("rows", [1, 60])
def test_gradients_that_are_not_finite_are_named(classification, recipe, rows):
    inputs, targets = classification[1]
    with pytest.raises(CosetError, match="gradients of the network that are not finite"):
        fit(Steep(), (inputs[:rows], targets[:rows]), method=Laplace(recipe))


@pytest.mark.parametrize("recipe", [*CURVATURES, LowRank(3)], ids=label)
def test_batch_norm_without_running_statistics_is_named(classification, recipe):
    module = nn.Sequential(
        nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
    )
    with pytest.raises(CosetError, match="batch norm '1' without running statistics"):
        fit(module, classification[1], method=Laplace(recipe))


def test_the_module_is_left_alone(classification):
    module, data = classification
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fit(module.train(), data)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert Categorical() == fit(module, data).likelihood
