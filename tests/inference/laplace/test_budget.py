"""The budget of a fit: what is counted, what is chosen, and what some rows tell of all."""

import math

import pytest
import torch
from laplace_problems import classifier, regressor, train
from torch import nn

from coset import (
    KFAC,
    ByEvidence,
    CosetError,
    DiagonalOnly,
    GaussianNoise,
    Laplace,
    LastLayer,
    MatrixFree,
    Problem,
    fit,
)
from coset.inference.laplace.budget import Plan, multiplications, plan_of

pytestmark = pytest.mark.usefixtures("double")


def blobs(rows):
    torch.manual_seed(0)
    targets = torch.arange(rows) % 3
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return centres[targets] + torch.randn(rows, 2), targets


@pytest.fixture(scope="module")
def many():
    torch.set_default_dtype(torch.float64)
    data = blobs(1500)
    module = train(classifier(), *data, steps=100)
    torch.set_default_dtype(torch.float32)
    return module, data


def fitted(case, **options):
    module, data = case
    seed = options.pop("seed", 0)
    generator = torch.Generator().manual_seed(seed)
    return fit(module, data, method=Laplace(**options), generator=generator)


def covariance(predictor, inputs):
    return predictor(inputs).covariance


def test_enough_effort_is_the_whole_fit_bit_by_bit(many):
    inputs = many[1][0][:50]
    whole, rich = (fitted(many, effort=e, seed=i) for i, e in enumerate((math.inf, 60.0)))
    assert rich.log_evidence == whole.log_evidence
    assert torch.equal(covariance(rich, inputs), covariance(whole, inputs))
    assert whole.posterior.report.diagnostics["tuning_rows"] == 1500


def test_small_problems_are_fitted_in_full_by_default(many):
    found = fitted(many).posterior.report
    assert found.diagnostics["tuning_rows"] == 1500
    assert found.warnings == ()


def test_some_rows_give_the_evidence_of_all(many):
    whole = fitted(many, effort=math.inf)
    found = [fitted(many, effort=10.0, seed=seed) for seed in range(3)]
    gaps = [each.log_evidence - whole.log_evidence for each in found]
    # around another point than the mode of all rows it is lower, by what a mode would gain
    assert all(abs(gap) < 0.02 * abs(whole.log_evidence) for gap in gaps)
    report = found[0].posterior.report
    assert 100 < report.diagnostics["tuning_rows"] < 1200
    assert "log_evidence is an estimate" in report.warnings[-1]
    inputs = many[1][0][:50]
    exact = covariance(whole, inputs)
    for each in found:
        ratio = covariance(each, inputs).diagonal(dim1=1, dim2=2) / exact.diagonal(dim1=1, dim2=2)
        assert 0.7 < float(ratio.median()) < 1.4


def test_equal_seeds_draw_equal_rows(many):
    inputs = many[1][0][:50]
    one, again, other = (fitted(many, effort=10.0, seed=seed) for seed in (0, 0, 1))
    assert one.log_evidence == again.log_evidence
    assert torch.equal(covariance(one, inputs), covariance(again, inputs))
    assert one.log_evidence != other.log_evidence


def test_a_class_that_the_drawn_rows_miss_is_told(many):
    module, (inputs, targets) = many
    rare = targets.clone()
    rare[rare == 2] = 0
    rare[7] = 2  # one of 1,500; some 40 rows are drawn
    (told,) = (w for w in fitted((module, (inputs, rare)), effort=4.0).posterior.report.warnings
               if "without" in w)  # fmt: skip
    assert "rows without 1 class of the data: 2; Laplace(effort=…) draws more" in told
    assert not any("without" in w for w in fitted(many, effort=4.0).posterior.report.warnings)


def test_noise_of_some_rows_covers_the_residuals_of_all(monkeypatch):
    torch.manual_seed(0)
    inputs = torch.linspace(-2, 2, 800).unsqueeze(1)
    targets = torch.sin(2 * inputs) + 0.1 * torch.randn_like(inputs)
    module = train(regressor(), inputs, targets, steps=200)
    monkeypatch.setattr("coset.inference.laplace.budget.FLOOR", 0.0)
    options = {"likelihood": GaussianNoise()}
    found, whole = (
        fit(module, (inputs, targets), method=Laplace(effort=effort), **options)
        for effort in (8.0, math.inf)
    )
    assert found.posterior.report.diagnostics["tuning_rows"] < 800
    residual = float((module(inputs).detach() - targets).square().mean().sqrt())
    assert found.likelihood.std >= residual * (1 - 1e-9)
    assert found.likelihood.std == pytest.approx(whole.likelihood.std, rel=0.1)
    ratio = found(inputs).variance / whole(inputs).variance
    assert 0.8 < float(ratio.median()) < 1.25


def test_work_grows_with_effort_and_never_passes_the_budget():
    data = torch.randn(400, 2), torch.arange(400) % 3
    problem = Problem.of(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)), data)
    settings = ByEvidence().settled("softmax")
    plans = [plan_of(problem, KFAC(), settings, e, free=True) for e in (4.0, 8.0, 16.0, 1e3)]
    rows = [plan.rows for plan in plans]
    assert rows == sorted(rows)
    assert rows[-1] == 400
    for plan, effort in zip(plans, (4.0, 8.0, 16.0), strict=False):
        assert plan.passes <= 3 * effort
    assert Plan(400, 400).notes == ()


def test_multiplications_of_a_recurrent_layer():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, inputs):
            return self.head(self.recurrent(inputs)[0][:, -1])

    data = torch.randn(5, 7, 3), torch.arange(5) % 2
    by_hand = 7 * 4 * 4 * (3 + 4) + 4 * 2  # steps · gates · units · what they read
    assert multiplications(Problem.of(Reader(), data)) == by_hand


@pytest.mark.parametrize("effort", [0, -1.0, math.nan])
def test_an_effort_of_nothing_is_refused(effort):
    with pytest.raises(CosetError, match="positive number of epochs"):
        Laplace(effort=effort)


def test_an_effort_of_samples_is_refused():
    with pytest.raises(CosetError, match="effort with MatrixFree"):
        Laplace(MatrixFree(4), effort=1.0)


@pytest.mark.parametrize("options", [{"curvature": DiagonalOnly()}, {"subset": LastLayer()}])
def test_a_curvature_that_was_asked_for_is_measured_as_it_is(many, options):
    found = fitted(many, effort=10.0, **options).posterior.report
    assert not any("random column" in warning for warning in found.warnings)


def test_too_little_effort_is_the_last_layer_alone_and_says_so(many):
    found, last = fitted(many, effort=1.0), fitted(many, subset=LastLayer())
    assert found.posterior.layout.names == ("2.weight", "2.bias")
    assert found.log_evidence == last.log_evidence
    (note,) = found.posterior.report.warnings
    assert note.startswith("the last layer alone: one pass")
    assert "effort=3 has it" in note
    assert fitted(many, effort=3.0).posterior.layout.names != last.posterior.layout.names


def test_too_little_memory_is_the_last_layer_alone_and_names_the_setting(many):
    few = many[0], blobs(30)
    found = fitted(few, memory=1000)
    assert found.posterior.layout.names == ("2.weight", "2.bias")
    (note,) = found.posterior.report.warnings
    assert "Laplace(memory=1 << 30) has them" in note
    asked = fitted(few, memory=1000, curvature=KFAC(columns=None))  # does as it is told
    assert asked.posterior.layout.names != ("2.weight", "2.bias")


def test_activations_within_the_memory_change_nothing_but_rounding(many, monkeypatch):
    whole = fitted(many, effort=math.inf)
    monkeypatch.setattr("coset.curvature.measure._RUN", 20_000)
    few = fitted(many, effort=math.inf, memory=100_000)
    assert few.log_evidence == pytest.approx(whole.log_evidence, rel=2e-3)  # another search
    inputs = many[1][0][:50]
    torch.testing.assert_close(
        covariance(few, inputs), covariance(whole, inputs), rtol=0.05, atol=1e-4
    )
