"""Tuning by the evidence: stationary, better than the usual way, and suspicious of itself."""

import math

import pytest
import torch
from laplace_problems import (
    CURVATURES,
    blobs,
    classifier,
    label,
    precision_of,
    regressor,
    train,
    wave,
)
from torch import nn

from coset import (
    KFAC,
    Bernoulli,
    ByEvidence,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    Laplace,
    LowRank,
    MatrixFree,
    MultivariateNoise,
    fit,
    linearise,
    metrics,
)
from coset.linalg import dense
from coset.posterior.targets import log_score

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("groups", ["single", "layer"])
def test_tuned_regression_has_the_evidence_of_the_tangent_model(regression, groups):
    module, data = regression
    predictor = fit(
        module, data, method=Laplace(Full(), tuning=ByEvidence(groups=groups)),
        likelihood=GaussianNoise(),
    )  # fmt: skip
    assert 0.05 < predictor.likelihood.std < 0.3
    tangent = linearise(module, data, predictor.likelihood)
    precision = precision_of(predictor)
    exact = float(tangent.log_evidence(precision))
    assert abs(predictor.log_evidence - exact) < 1e-8 * abs(exact) + 1e-8
    for factor in (0.8, 1.25):  # a maximum in all precisions together, and in the noise
        assert float(tangent.log_evidence(factor * precision)) < exact + 1e-6
        other = GaussianNoise(predictor.likelihood.std * factor)
        assert float(linearise(module, data, other).log_evidence(precision)) < exact


def test_each_precision_is_stationary(regression):
    module, data = regression
    method = Laplace(Full(), tuning=ByEvidence(groups="layer"))
    predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.1))
    tangent = linearise(module, data, GaussianNoise(0.1))
    precision, layout = precision_of(predictor), predictor.posterior.layout
    best = float(tangent.log_evidence(precision))
    for layer in ("0.", "2."):
        for factor in (0.9, 1.1):
            moved = precision.clone()
            for name in layout.names:
                if name.startswith(layer):
                    moved[layout.slices[name]] *= factor
            assert float(tangent.log_evidence(moved)) < best + 1e-6


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
@pytest.mark.parametrize("noise", [0.1, None], ids=["known", "learnt"])
def test_the_output_curvature_of_a_regression_is_the_same_everywhere(regression, recipe, noise):
    module, data = regression
    found = [
        fit(
            module, data, method=Laplace(recipe, tuning=ByEvidence(hessian=hessian)),
            likelihood=GaussianNoise(noise),
        )
        for hessian in ("network", "tangent")
    ]  # fmt: skip
    assert found[0].log_evidence == found[1].log_evidence
    assert precision_of(found[0]).equal(precision_of(found[1]))


@pytest.mark.parametrize("groups", ["single", "layer"])
def test_one_newton_step_of_a_regression_ends_at_the_mode(regression, groups):
    module, data = regression
    found = [
        fit(
            module, data, method=Laplace(Full(), tuning=ByEvidence(mean=mean, groups=groups)),
            likelihood=GaussianNoise(),
        )
        for mean in ("tangent", "newton")
    ]  # fmt: skip
    assert found[0].likelihood.std == pytest.approx(found[1].likelihood.std, rel=1e-3)
    assert found[0].log_evidence == pytest.approx(found[1].log_evidence, abs=1e-3)


@pytest.mark.parametrize("mean", ["tangent", "network", "newton"])
@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("hessian", ["tangent", "network"])
def test_every_choice_for_classes(classification, mean, form, hessian):
    module, data = classification
    tuning = ByEvidence(mean=mean, form=form, hessian=hessian, groups="layer")
    for recipe in (KFAC(), Full(), DiagonalOnly(), LowRank(5)):
        predictor = fit(module, data, method=Laplace(recipe, tuning=tuning))
        assert math.isfinite(predictor.log_evidence)
        assert metrics.accuracy(predictor(data[0]).mean, data[1]) > 0.8


def test_classes_with_the_exact_curvature_have_the_evidence_of_the_tangent_model(classification):
    module, data = classification
    tuning = ByEvidence(form="full", hessian="network", groups="single")
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning))
    tangent = linearise(module, data)
    exact = float(tangent.log_evidence(precision_of(predictor), hessian="network"))
    assert predictor.log_evidence == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("mean", ["network", "newton"])
@pytest.mark.parametrize("form", ["full", "simple"])
def test_the_curvature_at_the_mode_stands_beside_any_mean(classification, mean, form):
    module, data = classification
    tuning = ByEvidence(mean=mean, form=form, hessian="tangent", groups="layer")
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning))
    tangent, precision = linearise(module, data), precision_of(predictor)
    exact = float(tangent.log_evidence(precision, mean, form, hessian="tangent"))
    assert predictor.log_evidence == pytest.approx(exact, abs=1e-4)


def test_precisions_at_the_network_are_the_maximum_also_where_layers_share_a_matrix(classification):
    module, data = classification
    tuning = ByEvidence(mean="network", groups="layer")
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning))
    tangent, precision = linearise(module, data), precision_of(predictor).requires_grad_()
    value = tangent.log_evidence(precision, mean="network")
    slope = torch.autograd.grad(value, precision)[0] * precision  # in log λ, weight by weight
    flat = tangent.layout.unflatten(slope.detach())
    for layer in ("0", "2"):
        total = sum(float(part.sum()) for name, part in flat.items() if name.startswith(layer))
        assert total == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("steps", [0, 2, 20])
def test_posterior_and_evidence_have_the_curvature_of_the_last_mode(classification, form, steps):
    module, data = classification
    tuning = ByEvidence(form=form, groups="single", steps=steps)
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning))
    tangent, precision = linearise(module, data), precision_of(predictor)
    exact = float(tangent.log_evidence(precision, form=form))
    assert predictor.log_evidence == pytest.approx(exact, rel=1e-5)
    mode = tangent.find_mode(precision, form)
    system = dense(tangent.exact_curvature(mode.outputs), like=precision) + precision.diag()
    found = dense(predictor.posterior.covariance, like=precision)
    assert torch.allclose(found @ system, torch.eye(len(precision)), atol=1e-4)


def test_evidence_at_the_mode_asks_for_a_larger_precision():
    """The point of recommendation 1, on a network trained to certainty."""
    torch.manual_seed(1)
    data = blobs(90)
    module = train(classifier(), *data, steps=1500)
    found = {
        mean: fit(module, data, method=Laplace(tuning=ByEvidence(mean=mean)))
        for mean in ("tangent", "network")
    }
    ratio = float(precision_of(found["tangent"])[0] / precision_of(found["network"])[0])
    assert ratio > 2
    test = blobs(600)
    scores = {
        mean: float(metrics.negative_log_likelihood(predictor(test[0]).mean, test[1]))
        for mean, predictor in found.items()
    }
    with torch.no_grad():
        plain = float(nn.functional.cross_entropy(module(test[0]), test[1]))
    assert scores["tangent"] < plain  # an over-confident network is improved


def test_validation_scales_the_covariance(classification):
    module, data = classification
    tuning = ByEvidence(mean="network", validation=data)
    predictor = fit(module, data, method=Laplace(tuning=tuning))
    factor = predictor.posterior.report.diagnostics["covariance_factor"]
    plain = fit(module, data, method=Laplace(tuning=ByEvidence(mean="network")))
    torch.testing.assert_close(
        predictor(data[0]).covariance, max(factor, 1e-12) * plain(data[0]).covariance
    )


@pytest.mark.parametrize("recipe", [KFAC(), MatrixFree(4)], ids=["kfac", "samples"])
def test_validation_data_are_refused_before_any_work(classification, recipe):
    module, (inputs, labels) = classification
    told = []
    tuning = ByEvidence(validation=(inputs, labels + 5))
    with pytest.raises(CosetError, match="labels from 5"):
        fit(module, (inputs, labels), method=Laplace(recipe, tuning=tuning),
            progress=lambda share, line: told.append(share))  # fmt: skip
    assert not told


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_validation_data_may_be_short(classification, kind):
    module, (inputs, labels) = classification
    long, short = (
        fit(module, (inputs, y), method=Laplace(tuning=ByEvidence(validation=(inputs, y))))
        for y in (labels, labels.to(kind))
    )
    assert short.posterior.report.diagnostics == long.posterior.report.diagnostics


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()], ids=repr)
@pytest.mark.parametrize("steps", [0, 300])
def test_with_validation_no_network_gets_worse(sharpness, likelihood, steps):
    """A promise for the data given, whatever the network: under-confident, sure, or untrained."""
    data, held_out = blobs(40), blobs(50)
    module = train(classifier(), *data, steps=steps)
    with torch.no_grad():
        module[2].weight.mul_(sharpness)
        module[2].bias.mul_(sharpness)
    if isinstance(likelihood, Bernoulli):
        data, held_out = ((x, nn.functional.one_hot(y, 3).double()) for x, y in (data, held_out))
    method = Laplace(tuning=ByEvidence(mean="network", validation=held_out))
    predictor = fit(module, data, method=method, likelihood=likelihood)
    found = predictor(held_out[0])
    moments = found.covariance.new_zeros(50 * 3, 3), found.covariance  # those of outputs, unused
    own = log_score(likelihood, *moments, found.mean, found.variance, held_out[1]).sum()
    with torch.no_grad():
        plain = likelihood.log_prob(module(held_out[0]), held_out[1]).sum()
    assert own >= plain - 1e-6 * plain.abs()


def test_validation_helps_an_over_confident_network():
    data = blobs(60)
    module = train(classifier(), *data, steps=1500)
    method = Laplace(tuning=ByEvidence(validation=blobs(200)))
    predictor = fit(module, data, method=method)
    assert predictor.posterior.report.diagnostics["covariance_factor"] > 0
    test = blobs(1000)
    own = metrics.negative_log_likelihood(predictor(test[0]).mean, test[1])
    with torch.no_grad():
        assert own < nn.functional.cross_entropy(module(test[0]), test[1])


@pytest.mark.parametrize("recipe", [KFAC(), MatrixFree(64)], ids=["kfac", "samples"])
def test_validation_never_widens_the_covariance(recipe):
    """Data that ask for more variance than the evidence leaves get the evidence's, and no more."""
    data = blobs(60)
    module = train(classifier(), *data, steps=1500)
    with torch.no_grad():
        module[2].weight.mul_(5)  # far too sure
    default, examined = (
        fit(module, data, method=Laplace(recipe, tuning=ByEvidence(validation=held_out)))
        for held_out in (None, blobs(200))
    )
    assert examined.posterior.report.diagnostics["covariance_factor"] == 1
    own, plain = examined(data[0]), default(data[0])
    assert torch.equal(own.covariance, plain.covariance)
    assert torch.equal(own.mean, plain.mean)


def test_an_under_confident_network_is_named():
    data = blobs(90)
    module = train(classifier(), *data, steps=30)  # hardly trained
    with torch.no_grad():
        module[2].weight.mul_(0.3)  # right, and far from sure
        module[2].bias.mul_(0.3)
    report = fit(module, data, method=Laplace(tuning=ByEvidence(mean="network"))).posterior.report
    assert any("under-confident" in line for line in report.warnings)


@pytest.mark.parametrize("curvature", [KFAC(), Full(), MatrixFree(8)], ids=label)
def test_noise_covers_the_residuals_of_a_network_that_is_not_trained_to_its_end(curvature):
    """Its tangent model fits better, but predictions lie around the network."""
    data = wave(60)
    module = train(regressor(), *data, steps=30)
    predictor = fit(module, data, method=Laplace(curvature), likelihood=GaussianNoise())
    residuals = (module(data[0]) - data[1]).detach().square().mean().sqrt()
    assert predictor.likelihood.std == pytest.approx(float(residuals), rel=1e-6)
    assert any("not trained to its end" in line for line in predictor.posterior.report.warnings)


def test_a_network_that_is_trained_raises_no_doubt(regression):
    module, data = regression
    assert fit(module, data, likelihood=GaussianNoise()).posterior.report.warnings == ()


def test_tuning_tells_how_far_it_is():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    data, told = (torch.randn(30, 2), torch.randint(3, (30,))), []
    fit(module, data, progress=lambda share, line: told.append((share, line)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert sum(0.4 < share < 0.9 for share, line in told if line == "mode and precisions") > 1


@pytest.mark.parametrize(
    ("likelihood", "tuning"),
    [
        (MultivariateNoise(), ByEvidence()),
        (GaussianNoise(1.0), None),
        (GaussianNoise(), ByEvidence()),
    ],
)
def test_progress_goes_forward_to_its_end(likelihood, tuning):
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    told = []
    fit(
        module,
        (torch.randn(30, 2), torch.randn(30, 2)),
        method=Laplace(tuning=tuning),
        likelihood=likelihood,
        progress=lambda share, line: told.append(share),
    )
    assert told == sorted(told)
    assert told[-1] == 1
