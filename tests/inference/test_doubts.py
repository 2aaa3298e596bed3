"""What a fit warns of."""

import pytest
import torch
from laplace_problems import blobs, classifier, train, wave
from torch import nn

from coset import (
    KFAC,
    Bernoulli,
    ByEvidence,
    Categorical,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    LastLayer,
    MatrixFree,
    fit,
    metrics,
)

pytestmark = pytest.mark.usefixtures("double")


def warnings_of(module, data, **options):
    return " ".join(fit(module, data, **options).posterior.report.warnings)


def calibrated():
    """A network about as sure as it is right, with far more weights than its data need."""
    torch.manual_seed(0)
    centres = 1.2 * torch.randn(4, 10)
    targets = torch.arange(240) % 4
    inputs = centres[targets] + torch.randn(240, 10)
    module = nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 4))
    train(module, inputs[:120], targets[:120], steps=60, rate=5e-3)
    return module, (inputs[:120], targets[:120]), (inputs[120:], targets[120:])


def test_a_kept_default_prior_that_destroys_a_calibrated_network_is_named():
    module, data, (inputs, targets) = calibrated()
    kept = fit(module, data, method=Laplace(tuning=None))
    tuned = fit(module, data)

    def loss(probabilities):
        return float(metrics.negative_log_likelihood(probabilities, targets))

    plain = loss(module(inputs).softmax(1).detach())
    assert loss(kept(inputs).mean) > plain + 0.2  # so the warning is right
    assert loss(tuned(inputs).mean) < plain + 0.05
    told = " ".join(kept.posterior.report.warnings)
    assert "the default prior, which tuning=None kept" in told
    assert "use tuning=ByEvidence()" in told
    assert "tuning=None" not in " ".join(tuned.posterior.report.warnings)


@pytest.mark.parametrize("subset", [None, "2.*"], ids=["all", "head"])
@pytest.mark.parametrize("curvature", [KFAC(), MatrixFree(16)], ids=["kfac", "samples"])
def test_a_prior_given_is_named_where_it_is_weak_and_not_where_it_is_strong(curvature, subset):
    module, data, _ = calibrated()
    method = Laplace(curvature, subset, tuning=None)
    weak = warnings_of(module, data, method=method, prior=GaussianPrior(0.01))
    strong = warnings_of(module, data, method=method, prior=GaussianPrior(1000.0))
    assert "the prior given, which tuning=None kept" in weak
    assert "tuning=None" not in strong


def test_yes_and_no_are_looked_at_too():
    module, (inputs, targets), _ = calibrated()
    module[2] = nn.Linear(60, 1)
    targets = (targets % 2).double().unsqueeze(1)
    optimiser = torch.optim.Adam(module.parameters(), 5e-3)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(module(inputs), targets).backward()
        optimiser.step()
    options = {"method": Laplace(tuning=None), "likelihood": Bernoulli()}
    for precision, expected in ((0.01, True), (1000.0, False)):
        prior = GaussianPrior(precision)
        told = warnings_of(module, (inputs, targets), prior=prior, **options)
        assert ("tuning=None" in told) is expected


def test_a_regression_whose_weights_add_far_more_than_the_noise_is_named():
    torch.manual_seed(0)
    data = wave(20)
    module = train(nn.Sequential(nn.Linear(1, 60), nn.Tanh(), nn.Linear(60, 1)), *data)
    options = {"likelihood": GaussianNoise(0.1)}
    # at the data fitted the exact curvature adds no more than the noise whatever the prior, and a
    # diagonal up to as many times as there are weights for each of them, here nine
    for curvature, expected in ((DiagonalOnly(), True), (Full(), False)):
        method = Laplace(curvature, tuning=None)
        told = warnings_of(module, data, method=method, prior=GaussianPrior(1e-6), **options)
        assert ("times the variance of the noise" in told) is expected


def test_targets_that_do_not_count_have_no_say():
    module, (inputs, targets), _ = calibrated()
    masked = torch.cat([targets, torch.full_like(targets, 255)])
    noise = torch.cat([inputs, 100 * torch.randn_like(inputs)])
    told = warnings_of(
        module, (noise, masked), method=Laplace(tuning=None), likelihood=Categorical(ignore=255)
    )
    assert "right in 100%" in told


def test_groups_switched_off_come_with_what_to_do():
    torch.manual_seed(0)
    data = blobs(90)
    module = nn.Sequential(nn.Linear(2, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    train(module, *data)
    with torch.no_grad():
        module[3].weight[:, 0] = 0  # nothing reads the first unit
    told = warnings_of(module, data)
    assert "groups switched off (the data say nothing of them): 0.weight" in told
    together = Laplace(tuning=ByEvidence(groups="layer"))
    assert "ByEvidence(groups='layer')" in told
    assert "switched off" not in warnings_of(module, data, method=together)


UNFINISHED = "far above that of its own tangent model"


@pytest.mark.parametrize(
    "method",
    [Laplace(), Laplace(Full()), Laplace(subset=LastLayer()), Laplace(MatrixFree(8))],
    ids=["kfac", "full", "last layer", "samples"],
)
def test_a_classifier_that_is_not_trained_to_its_end_is_named(method):
    torch.manual_seed(0)
    data = blobs(150)
    module = classifier()
    assert UNFINISHED in warnings_of(train(module, *data, steps=3), data, method=method)
    assert UNFINISHED not in warnings_of(train(module, *data, steps=300), data, method=method)


def test_batch_norm_statistics_that_are_not_those_of_the_data_are_named():
    torch.manual_seed(0)
    data = blobs(150)
    module = nn.Sequential(nn.Linear(2, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    train(module, *data, steps=100)
    assert UNFINISHED not in warnings_of(module, data)
    with torch.no_grad():
        module[1].running_mean += 2 * module[1].running_var.sqrt()
    told = warnings_of(module, data)
    assert UNFINISHED in told
    assert "batch-norm statistics" in told


def test_what_effective_weights_gain_from_noise_is_no_doubt():
    """A linear regression at its least squares in a small prior: known noise, many weights."""
    torch.manual_seed(0)
    inputs, noise = torch.randn(60, 30), torch.randn(60, 1)
    module = nn.Linear(30, 1)  # the truth itself, which no fit has moved
    targets = module(inputs).detach() + noise
    told = warnings_of(module, (inputs, targets), likelihood=GaussianNoise(1.0))
    assert UNFINISHED not in told
