"""Metrics of pixels, with labels to ignore and numbers that are missing, against scikit-learn."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

import coset
from coset import Categorical, GaussianNoise, MaximumAPosteriori, MonteCarlo
from coset.errors import CosetError
from coset.metrics import (
    Running,
    accuracy,
    adaptive_calibration_error,
    area_under_risk_coverage,
    brier,
    classwise_calibration_error,
    continuous_ranked_probability_score,
    evaluate,
    expected_calibration_error,
    gaussian_negative_log_likelihood,
    interval_coverage,
    mean_intersection_over_union,
    negative_log_likelihood,
    quantile_calibration_error,
    root_mean_squared_error,
)

OF_LABELS = [
    accuracy,
    negative_log_likelihood,
    brier,
    expected_calibration_error,
    adaptive_calibration_error,
    classwise_calibration_error,
    area_under_risk_coverage,
]
OF_GAUSSIANS = [
    gaussian_negative_log_likelihood,
    continuous_ranked_probability_score,
    interval_coverage,
    quantile_calibration_error,
]
N, C, H, W = 6, 4, 5, 3


@pytest.fixture
def pictures(generator):
    p = torch.randn(N, C, H, W, generator=generator, dtype=torch.float64).mul(2).softmax(1)
    labels = torch.randint(C, (N, H, W), generator=generator)
    void = torch.rand(N, H, W, generator=generator) < 0.3
    void[2] = True
    return p, labels.masked_fill(void, 255)


@pytest.fixture
def numbers(generator):
    mean = torch.randn(N, 1, H, W, generator=generator, dtype=torch.float64)
    variance = torch.rand(N, 1, H, W, generator=generator, dtype=torch.float64) + 0.2
    targets = mean + torch.randn(N, 1, H, W, generator=generator, dtype=torch.float64)
    hole = torch.rand(N, 1, H, W, generator=generator) < 0.3
    hole[4] = True
    return mean, variance, targets.masked_fill(hole, math.nan)


def left(p, labels):
    seen = labels != 255
    return p.movedim(1, -1)[seen], labels[seen]


@pytest.mark.parametrize("metric", OF_LABELS)
def test_pixels_that_count_are_inputs(metric, pictures):
    p, labels = pictures
    assert float(metric(p, labels, ignore=255)) == float(metric(*left(p, labels)))
    rows = p[:, :, 0, 0], labels[:, 0, 0]
    known = rows[1] != 255
    assert metric(*rows, ignore=255) == metric(rows[0][known], rows[1][known])
    with pytest.raises(CosetError):
        metric(p, labels)
    with pytest.raises(CosetError, match="every target is 255"):
        metric(p, torch.full_like(labels, 255), ignore=255)


def test_scores_are_those_of_scikit_learn(pictures):
    p, labels = pictures
    rows, known = (values.numpy() for values in left(p, labels))
    assert float(accuracy(p, labels, ignore=255)) == pytest.approx(
        accuracy_score(known, rows.argmax(1)), abs=1e-12
    )
    assert float(negative_log_likelihood(p, labels, ignore=255)) == pytest.approx(
        log_loss(known, rows, labels=range(C)), abs=1e-12
    )
    overlap = mean_intersection_over_union(p, labels, ignore=255)
    want = mean_intersection_over_union(torch.from_numpy(rows), torch.from_numpy(known))
    assert float(overlap) == float(want)


def test_calibration_and_brier_are_those_of_scikit_learn(pictures):
    p, labels = pictures
    rows, known = (values.numpy() for values in left(p, labels))
    answers = np.eye(C)[known]
    wanted = sum(brier_score_loss(answers[:, k], rows[:, k]) for k in range(C))
    assert float(brier(p, labels, ignore=255)) == pytest.approx(wanted, abs=1e-12)
    confidence, right = rows.max(1), rows.argmax(1) == known
    share, mean = calibration_curve(right, confidence, n_bins=15)
    counts = np.histogram(confidence, bins=15, range=(0, 1))[0]
    counts = counts[counts > 0]
    wanted = float((counts * abs(share - mean)).sum() / counts.sum())
    found = expected_calibration_error(p, labels, ignore=255)
    assert float(found) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("metric", OF_GAUSSIANS)
def test_numbers_that_are_there_count(metric, numbers):
    mean, variance, targets = numbers
    there = ~targets.isnan()
    found = metric(mean, variance, targets, missing="nan")
    assert found == metric(mean[there], variance[there], targets[there])
    with pytest.raises(CosetError, match="NaN"):
        metric(mean, variance, targets)


def test_root_mean_squared_error_of_what_is_there(numbers):
    mean, _, targets = numbers
    there = ~targets.isnan()
    want = ((mean - targets)[there] ** 2).mean().sqrt()
    assert float(root_mean_squared_error(mean, targets, missing="nan")) == pytest.approx(want)


def predictor_of(mean, likelihood, variance=None):
    """Inputs are numbers of pictures."""

    def predict(index, rule=None):
        del rule
        own = mean[index]
        each = None if variance is None else variance[index]
        return SimpleNamespace(mean=own, members=own.unsqueeze(0), variance=each)

    predict.likelihood = likelihood
    return predict


def test_evaluate_reads_the_mask_from_the_likelihood(pictures):
    p, labels = pictures
    found = evaluate(predictor_of(p, Categorical(ignore=255)), (torch.arange(N), labels))
    rows, known = left(p, labels)
    for metric in (accuracy, negative_log_likelihood, brier, expected_calibration_error):
        assert found[metric.__name__] == pytest.approx(float(metric(rows, known)), abs=1e-12)
    overlap = float(mean_intersection_over_union(rows.argmax(1), known))
    assert found["mean_intersection_over_union"] == pytest.approx(overlap, rel=1e-6)


def test_standard_errors_are_over_pictures_not_pixels(generator):
    """Pictures that are right or wrong as a whole; 400 resamples are off by 20 % once in 10⁷."""
    count, side = 100, 5
    right = torch.rand(count, generator=generator) < 0.7
    p = torch.tensor([0.8, 0.2]).view(1, 2, 1, 1).expand(count, 2, side, side)
    labels = (~right).long().view(-1, 1, 1).expand(count, side, side).clone()
    labels[:, 0] = 255
    found = evaluate(
        predictor_of(p, Categorical(ignore=255)),
        (torch.arange(count), labels),
        metrics=["accuracy"],
        standard_error=400,
    )
    share = float(right.double().mean())
    assert found["accuracy"] == pytest.approx(share)
    over_pictures = (share * (1 - share) / count) ** 0.5
    assert found["accuracy_standard_error"] == pytest.approx(over_pictures, rel=0.2)


def test_evaluate_of_numbers_leaves_out_what_is_missing(numbers):
    mean, variance, targets = numbers
    likelihood = GaussianNoise(1.0, missing="nan")
    found = evaluate(predictor_of(mean, likelihood, variance), (torch.arange(N), targets))
    for metric in OF_GAUSSIANS:
        want = float(metric(mean, variance, targets, missing="nan"))
        assert found[metric.__name__] == pytest.approx(want, abs=1e-12)
    rmse = float(root_mean_squared_error(mean, targets, missing="nan"))
    assert found["root_mean_squared_error"] == pytest.approx(rmse, abs=1e-12)


def test_tables_with_missing_numbers(numbers):
    mean, variance, targets = (values[..., 0].squeeze(1) for values in numbers)
    likelihood = GaussianNoise(1.0, missing="nan")
    found = evaluate(predictor_of(mean, likelihood, variance), (torch.arange(N), targets))
    for metric in OF_GAUSSIANS:
        want = float(metric(mean, variance, targets, missing="nan"))
        assert found[metric.__name__] == pytest.approx(want, abs=1e-12)


def test_foreign_pixels_are_told_from_the_others_of_their_pictures(pictures, generator):
    p, labels = pictures
    mask = torch.rand(N, H, W, generator=generator) < 0.4
    found = evaluate(
        predictor_of(p, Categorical(ignore=255)),
        (torch.arange(N), labels),
        outliers=(torch.arange(N), mask),
        metrics=["auroc", "aupr", "fpr_at_95"],
    )
    scores, truth = -p.amax(1).numpy().ravel(), mask.numpy().ravel()
    bounds = {}
    for name in found:
        running = Running(name)
        running.update(1 - p.amax(1)[~mask], 1 - p.amax(1)[mask])
        bounds[name] = float(running.bound())
        assert float(running.compute()) == pytest.approx(found[name], abs=1e-12)
    assert abs(found["auroc"] - roc_auc_score(truth, scores)) <= bounds["auroc"] < 0.01
    assert abs(found["aupr"] - average_precision_score(truth, scores)) <= bounds["aupr"] < 0.05
    with pytest.raises(CosetError, match="mask of shape"):
        evaluate(
            predictor_of(p, Categorical(ignore=255)),
            (torch.arange(N), labels),
            outliers=(torch.arange(N), mask[..., :2]),
        )


def test_all_void_is_refused(pictures):
    p, labels = pictures
    void = torch.full_like(labels, 255)
    with pytest.raises(CosetError, match="no target that counts"):
        evaluate(predictor_of(p, Categorical(ignore=255)), (torch.arange(N), void))


def test_another_rule_than_the_predictors_own(generator):
    x = torch.randn(40, 2, generator=generator)
    data = x, (x[:, 0] > 0).long()
    torch.manual_seed(0)
    fitted = coset.fit(
        torch.nn.Linear(2, 2), data, method=coset.Laplace(), generator=generator, progress=False
    )
    own = evaluate(fitted, data, metrics=["negative_log_likelihood"])
    drawn = evaluate(fitted, data, metrics=["negative_log_likelihood"], rule=MonteCarlo(draws=8))
    assert own != drawn
    point = coset.fit(
        *(torch.nn.Linear(2, 2), data), method=MaximumAPosteriori(epochs=1), progress=False
    )
    assert np.isfinite(evaluate(point, data, rule=MonteCarlo(draws=2))["accuracy"])
