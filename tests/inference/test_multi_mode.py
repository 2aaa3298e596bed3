"""Mixtures of posteriors: what is refused, and what is told on the way."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from training_problems import classification, perceptron

from coset import (
    HMC,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    Checkpoint,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    RebasedGaussian,
    fit,
)
from coset.inference.multi_mode import _with_own_folder
from coset.posterior.families import PointMass

BASE = MaximumAPosteriori(epochs=2, batch_size=8)


class Own:
    """A method that tells nothing."""

    def fit(self, problem, *, start=None, generator):
        return PointMass(problem.network.weights)


INNERS = {
    "maximum a posteriori": BASE,
    "ensemble": DeepEnsemble(2, BASE),
    "mean field": MeanField(epochs=2, base=BASE),
    "SWAG": SWAG(rank=2, base=BASE, epochs=2),
    "dropout": MCDropout(BASE),
    "HMC": HMC(warmup=20, draws=4, chains=1, max_steps=2),
    "rebased": RebasedGaussian(DeepEnsemble(2, BASE)),
    "Laplace": Laplace(),
    "own": Own(),
    "modes": MultiMode(BASE, 2),
}


@pytest.mark.parametrize("name", INNERS)
def test_progress_goes_forward_to_its_end(name, monkeypatch):
    monkeypatch.setattr("coset.inference.training.loop._REPORTS_PER_SECOND", float("inf"))
    told = []
    MultiMode(INNERS[name], 3, base=BASE).fit(
        classification(perceptron(0.2)),
        generator=torch.Generator().manual_seed(0),
        progress=lambda done, line: told.append(done),
    )
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len({round(done, 3) for done in told}) > 3  # more than the beginnings of the modes


def test_the_training_before_laplace_is_told(monkeypatch):
    monkeypatch.setattr("coset.inference.training.loop._REPORTS_PER_SECOND", float("inf"))
    lines = []
    MultiMode(Laplace(), 2, base=BASE).fit(
        classification(perceptron()),
        generator=torch.Generator().manual_seed(0),
        progress=lambda done, line: lines.append((done, line)),
    )
    assert [done for done, line in lines if line.startswith("training: epoch")][-1] == 0.5


@pytest.mark.parametrize(
    "inner",
    [
        Laplace(tuning=None),
        RebasedGaussian(Laplace(tuning=None), samples=4),
        MultiMode(Laplace(tuning=None), 2, base=BASE),
    ],
    ids=["Laplace", "rebased Laplace", "modes of Laplace"],
)
def test_modes_of_what_does_not_train_begin_at_trained_weights_of_their_own(inner):
    sharp = GaussianPrior(1e8)  # draws stay where they are drawn around
    problem = replace(classification(perceptron()), prior=sharp)
    found = MultiMode(inner, 2, base=BASE).fit(problem, generator=torch.Generator().manual_seed(0))
    own = problem.network.weights["0.weight"]
    first, second = (
        part.sample(1, generator=torch.Generator().manual_seed(1))["0.weight"][0]
        for part in found.components
    )
    assert float((first - own).abs().max()) > 0.05
    assert float((first - second).abs().max()) > 0.05


@pytest.mark.parametrize(
    "inner", [BASE, DeepEnsemble(2), MCDropout(), SWAG(), HMC(), NUTS(), SGHMC(), SGLD()]
)
def test_weights_by_an_evidence_that_there_will_not_be_are_refused_at_once(inner):
    with pytest.raises(CosetError, match=f"without an evidence from {type(inner).__name__}"):
        MultiMode(inner, by_evidence=True)


def test_an_evidence_missing_from_a_method_of_ones_own_is_noticed():
    problem = classification(nn.Linear(4, 3))
    with pytest.raises(CosetError, match="without an evidence from Own"):
        MultiMode(Own(), 2, by_evidence=True).fit(problem, generator=torch.Generator())


def test_every_checkpoint_inside_gets_a_folder_of_the_mode():
    inner = MultiMode(RebasedGaussian(HMC(checkpoint=Checkpoint("run", 7))), 2)
    own = _with_own_folder(inner, 3).inner.inner.checkpoint
    assert (str(own.folder), own.every) == ("run/mode-003", 7)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MultiMode(SWAG, 2), r"the class SWAG as the inner.*write inner=SWAG\(\)"),
        (lambda: MultiMode("SWAG", 2), "got inner='SWAG'"),
        (lambda: MultiMode(Laplace(), 2, base=HMC()), "as the base of MultiMode"),
        (lambda: DeepEnsemble(2, HMC()), r"HMC\(.* as the base of DeepEnsemble.*use MultiMode"),
        (lambda: DeepEnsemble(2, MeanField()), "as the base of DeepEnsemble"),
        (lambda: DeepEnsemble(2, MaximumAPosteriori), "the class MaximumAPosteriori as the base"),
        (lambda: DeepEnsemble(2, memory=-1), "memory=-1"),
        (lambda: MCDropout(DeepEnsemble()), "as the base of MCDropout"),
        (lambda: SWAG(base=HMC()), "as the base of SWAG"),
        (lambda: MeanField(base=HMC()), "as the base of MeanField"),
    ],
)
def test_slips_of_the_pen_are_named(build, words):
    with pytest.raises(CosetError, match=words):
        build()


@pytest.mark.parametrize("by_evidence", [False, True])
def test_learnt_noise_is_that_of_the_modes_by_their_weights(by_evidence):
    inputs = torch.linspace(-2, 2, 40).unsqueeze(1)
    targets = (2 * inputs).sin() + 0.1 * torch.randn(40, 1)
    module = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    method = MultiMode(Laplace(), 3, by_evidence=by_evidence, base=MaximumAPosteriori(epochs=40))
    predictor = fit(module, (inputs, targets), method=method, likelihood=GaussianNoise())
    parts = predictor.posterior.components
    variances = torch.tensor([part.report.likelihood.std**2 for part in parts]).double()
    expected = predictor.posterior.log_weights.double().exp() @ variances
    assert predictor.likelihood.std**2 == pytest.approx(float(expected))
