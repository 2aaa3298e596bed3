"""Precisions learnt during training: the fixed point, the schedule, refusals."""

import pytest
import torch
from torch import nn

from coset import (
    Adam,
    Checkpoint,
    Constant,
    CosetError,
    DeepEnsemble,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    Learnt,
    MaximumAPosteriori,
    fit,
    linearise,
)

pytestmark = pytest.mark.usefixtures("double")


def line(rows=40):
    inputs = torch.randn(rows, 3)
    return inputs, inputs @ torch.tensor([[1.0], [0.5], [0.0]]) + 0.5 * torch.randn(rows, 1)


def trained(module, data, learnt, likelihood, epochs=200, **options):
    method = MaximumAPosteriori(
        optimiser=Adam(0.02), schedule=Constant(), epochs=epochs, batch_size=40, precision=learnt,
        **options,
    )  # fmt: skip
    return fit(module, data, method=method, likelihood=likelihood)


@pytest.mark.parametrize("curvature", [Full(), None], ids=["full", "kfac"])
def test_a_linear_model_ends_at_the_maximum_of_its_evidence(curvature):
    """There training and evidence together are type-II maximum likelihood, known in closed form."""
    data = line()
    settings = Learnt(every=10, after=100, groups="single")
    if curvature is not None:
        settings = Learnt(every=10, after=100, groups="single", curvature=curvature)
    predictor = trained(nn.Linear(3, 1), data, settings, GaussianNoise(0.5), epochs=600)
    precision = float(torch.as_tensor(predictor.prior.of("weight", torch.zeros(1, 3))))
    tangent = linearise(nn.Linear(3, 1), data, GaussianNoise(0.5))
    logs = torch.linspace(-2, 2, 161)
    values = torch.stack([tangent.log_evidence(float(log.exp())) for log in logs])
    best = float(logs[values.argmax()].exp())
    assert precision == pytest.approx(best, rel=0.04)
    assert predictor.log_evidence == pytest.approx(float(values.max()), abs=2e-3)


def test_networks_learn_a_precision_for_each_layer():
    data = line(120)
    module = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
    told = []
    method = MaximumAPosteriori(epochs=40, precision=Learnt(every=5, after=10))
    predictor = fit(
        module, data, method=method, likelihood=GaussianNoise(),
        progress=lambda share, text: told.append(text),
    )  # fmt: skip
    report = predictor.posterior.report
    assert report.diagnostics["precision updates"] == 7  # epochs 10, 15, …, 40
    assert {"precision of 0", "precision of 2"} <= set(report.diagnostics)
    assert sum("log evidence" in line for line in told) == 7
    assert predictor.prior == report.prior
    assert predictor.likelihood.std > 0
    again = fit(module, data, method=method, likelihood=GaussianNoise())
    assert torch.equal(again.posterior.weights["0.weight"], predictor.posterior.weights["0.weight"])
    plain = fit(module, data, method=MaximumAPosteriori(epochs=40), likelihood=GaussianNoise())
    evidence = [
        fit(module, data, method=Laplace(tuning=None), start=found.posterior.weights,
            likelihood=found.likelihood, prior=found.prior).log_evidence
        for found in (predictor, plain)
    ]  # fmt: skip
    assert evidence[0] > evidence[1]


@pytest.mark.parametrize("groups", ["single", "layer", "normalised"])
def test_classes_with_batch_norm(groups):
    module = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    data = torch.randn(60, 2), torch.randint(0, 3, (60,))
    settings = Learnt(every=2, after=2, groups=groups, curvature=DiagonalOnly())
    method = MaximumAPosteriori(epochs=6, precision=settings, validation=data)
    predictor = fit(module, data, method=method)
    assert predictor.log_evidence is not None
    flat = predictor.prior.flat(predictor.network.layout, torch.zeros(1))
    assert (flat > 0).all()
    assert flat.unique().numel() > 1 or groups == "single"


def test_an_update_keeps_the_optimiser_and_changes_only_the_decay():
    """With a prior that is already the maximum, learning changes nothing."""
    data = line()
    first = trained(nn.Linear(3, 1), data, Learnt(every=10, after=100, groups="single"),
                    GaussianNoise(0.5), epochs=600)  # fmt: skip
    best = float(torch.as_tensor(first.prior.of("weight", torch.zeros(1, 3))))
    options = dict(optimiser=Adam(0.02), schedule=Constant(), epochs=300, batch_size=40)
    start = first.posterior.weights
    kept, learnt = (
        fit(nn.Linear(3, 1), data, method=MaximumAPosteriori(**options, precision=precision),
            likelihood=GaussianNoise(0.5), prior=GaussianPrior(best), start=start)
        for precision in (None, Learnt(every=1, after=1, groups="single"))
    )  # fmt: skip
    torch.testing.assert_close(
        kept.posterior.weights["weight"], learnt.posterior.weights["weight"], rtol=1e-3, atol=1e-3
    )


def test_refusals(tmp_path):
    data = line()
    with pytest.raises(CosetError, match="every=0"):
        Learnt(every=0)
    base = MaximumAPosteriori(epochs=2, precision=Learnt())
    with pytest.raises(CosetError, match="base of another method"):
        fit(nn.Linear(3, 1), data, method=DeepEnsemble(2, base), likelihood=GaussianNoise(0.5))
    with pytest.raises(CosetError, match="checkpoint"):
        MaximumAPosteriori(precision=Learnt(), checkpoint=Checkpoint(tmp_path))
    early = fit(nn.Linear(3, 1), data, method=base, likelihood=GaussianNoise(0.5))
    assert any("no precision was learnt" in line for line in early.posterior.report.warnings)
