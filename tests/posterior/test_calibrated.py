"""Predictors corrected on held-out data, by the numbers that the metrics find."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    HeteroscedasticGaussian,
    Laplace,
    LastLayer,
    Linearised,
    MaximumAPosteriori,
    MonteCarlo,
    Tiled,
    evaluate,
    fit,
    load,
)
from coset.metrics import (
    brier,
    fit_temperature,
    fit_variance_factor,
    fit_vector_scaling,
    negative_log_likelihood,
    set_coverage,
)
from coset.models import mlp, unet
from coset.posterior.calibrated import Calibrated, ClassScaling

ENSEMBLE = DeepEnsemble(members=3, base=MaximumAPosteriori(epochs=60))


def points(generator, n=240):
    inputs = torch.randn(n, 2, generator=generator)
    logits = torch.stack([inputs[:, 0], inputs[:, 1], -inputs.sum(1)], 1)
    return inputs, logits.softmax(1).multinomial(1, generator=generator).squeeze(1)


def pictures(generator, n=12, void=255):
    inputs = torch.rand(n, 3, 9, 7, generator=generator)
    labels = (inputs[:, 0] > inputs[:, 1]).long() + (inputs[:, 2] > 0.8)
    noisy = torch.rand(labels.shape, generator=generator) < 0.2
    labels = torch.where(noisy, torch.randint(3, labels.shape, generator=generator), labels)
    labels[:, 0] = void
    return inputs, labels


@pytest.fixture(scope="module")
def classes():
    generator = torch.Generator().manual_seed(0)
    module = mlp(2, [16], 3)
    train, held, test = (points(generator) for _ in range(3))
    predictor = fit(module, train, method=ENSEMBLE, generator=generator)
    return predictor, module, held, test


@pytest.fixture(scope="module")
def segmenter():
    generator = torch.Generator().manual_seed(0)
    module = unet(in_channels=3, classes=3, widths=(6, 8), normalisation="none")
    train, held = pictures(generator), pictures(generator)
    predictor = fit(module, train, method=ENSEMBLE, likelihood=Categorical(ignore=255))
    return predictor, module, held


def test_temperature_and_vector_are_those_of_the_metrics(classes):
    predictor, _, (inputs, labels), test = classes
    logs = predictor(inputs).members.log()
    warmer = predictor.calibrated((inputs, labels))
    found = fit_temperature(logs, labels)
    want = (logs / found).softmax(-1)
    torch.testing.assert_close(warmer(inputs).members, want)
    torch.testing.assert_close(warmer(inputs).variance, want.var(0, unbiased=False))
    factors, offsets = fit_vector_scaling(logs, labels)
    vector = predictor.calibrated((inputs, labels), method="vector")
    want = (factors * logs + offsets).softmax(-1).float()
    torch.testing.assert_close(vector(inputs).members, want)
    before, after = (
        float(negative_log_likelihood(each(inputs).mean, labels)) for each in (predictor, warmer)
    )
    assert after < before
    assert evaluate(warmer, test, metrics=["accuracy"])["accuracy"] > 0.4


def test_a_network_that_is_too_sure_is_calmed(generator):
    """On new data: the mean over 2,000 targets drawn from the true chances."""
    module = nn.Linear(2, 3)
    train, held, test = points(generator, 500), points(generator, 500), points(generator, 2000)
    point = fit(module, train, method=MaximumAPosteriori(epochs=60))
    from_point = {name: 4 * tensor for name, tensor in point.posterior.weights.items()}
    module.load_state_dict(from_point)
    sure = fit(module, train, method=Laplace(subset=LastLayer(), tuning=None))
    for method in ("temperature", "vector"):
        calmed = sure.calibrated(held, method=method)
        scores = [float(brier(each(test[0]).mean, test[1])) for each in (sure, calmed)]
        assert scores[1] < scores[0] - 0.02
    with_closed_form = calmed(test[0])
    assert len(with_closed_form.members) == 1
    assert torch.equal(with_closed_form.covariance, sure(test[0]).covariance)


def test_pixels_by_the_same_numbers_without_the_void(segmenter):
    predictor, _, (inputs, labels) = segmenter
    counted = labels != 255
    logs = predictor(inputs).members.movedim(2, -1)[:, counted].log()
    found = predictor.calibrated((inputs, labels)).rule.step
    want = 1 / fit_temperature(logs, labels[counted])
    assert float(found.factors) == pytest.approx(want, rel=1e-6)
    factors, _ = fit_vector_scaling(logs, labels[counted])
    vector = predictor.calibrated((inputs, labels), method="vector").rule.step
    torch.testing.assert_close(vector.factors, factors, rtol=1e-4, atol=1e-4)


def test_sets_hold_their_share_of_held_out_pixels(segmenter):
    predictor, _, held = segmenter
    inputs, labels = held
    sets = predictor.calibrated(held, method="conformal", level=0.8)(inputs).sets
    assert sets.shape == (12, 3, 9, 7)
    assert bool(sets.any(1).all())
    covered = float(set_coverage(sets, labels, ignore=255))
    assert 13 / 12 * 0.8 - 1e-6 <= covered < 0.95
    larger = predictor.calibrated(held, method="conformal", level=0.9)(inputs).sets
    assert bool((larger >= sets).all())


def test_more_pixels_than_are_kept_are_sampled(segmenter, monkeypatch):
    predictor, _, held = segmenter
    want = float(predictor.calibrated(held).rule.step.factors)
    monkeypatch.setattr("coset.posterior.calibrating._KEPT", 3000)
    monkeypatch.setattr("coset.posterior.calibrating._AT_ONCE", 3000)
    steps = [predictor.calibrated(held).rule.step for _ in range(2)]
    assert steps[0].factors == steps[1].factors
    assert float(steps[0].factors) != want
    assert float(steps[0].factors) == pytest.approx(want, rel=0.3)


def test_variances_of_regressions(generator):
    """One factor, one a target, and intervals: the sizes that the residuals ask for."""
    inputs = torch.randn(300, 2, generator=generator)
    size = torch.tensor([0.1, 2.0])
    targets = inputs.flip(1) + size * torch.randn(300, 2, generator=generator)
    likelihood = GaussianNoise(0.5)
    predictor = fit(nn.Linear(2, 2), (inputs, targets), likelihood=likelihood)
    found = predictor(inputs)
    one = predictor.calibrated((inputs, targets))
    factor = fit_variance_factor(found.mean, found.variance, targets)
    torch.testing.assert_close(one(inputs).variance, factor * found.variance)
    assert torch.equal(one(inputs).mean, found.mean)
    each = predictor.calibrated((inputs, targets), method="vector").rule.step.factors
    by_hand = ((targets - found.mean).double().square() / found.variance.double()).mean(0)
    torch.testing.assert_close(each, by_hand)
    twice = one.calibrated((inputs, targets))
    assert float(twice.rule.step.factors[0]) == pytest.approx(1, abs=1e-6)
    intervals = one.calibrated((inputs, targets), method="conformal")(inputs)
    inside = (intervals.lower <= targets) & (targets <= intervals.upper)
    assert 0.9 <= float(inside.float().mean()) < 0.91
    torch.testing.assert_close(intervals.upper - found.mean, found.mean - intervals.lower)


def test_depth_with_holes(generator):
    """Mean and log-variance of each pixel; pixels without a target have no say."""
    inputs = torch.rand(8, 3, 8, 8, generator=generator)
    targets = inputs.mean(1, keepdim=True) + 0.3 * torch.randn(8, 1, 8, 8, generator=generator)
    module = unet(in_channels=3, classes=2, widths=(4,), normalisation="none")
    likelihood = HeteroscedasticGaussian(missing="nan")
    predictor = fit(module, (inputs, targets), method=ENSEMBLE, likelihood=likelihood)
    holes = targets.clone()
    holes[:, :, :3] = torch.nan
    found = predictor(inputs)
    scaled = predictor.calibrated((inputs, holes))
    there = ~holes.isnan()
    factor = fit_variance_factor(found.mean[there], found.variance[there], targets[there])
    torch.testing.assert_close(scaled(inputs).variance, factor * found.variance)
    # labels without the axis of outputs, as data sets give them
    again = predictor.calibrated((inputs, holes[:, 0]))
    assert torch.equal(again.rule.step.factors, scaled.rule.step.factors)
    lower = scaled.calibrated((inputs, holes), method="conformal", level=0.5)(inputs).lower
    assert 0.2 < float((lower < targets).float().mean()) < 1


def test_yes_or_no(generator):
    """Each answer by itself: a temperature for all, a beta calibration for each output."""
    inputs = torch.randn(400, 2, generator=generator)
    targets = (torch.rand(400, 2, generator=generator) < inputs.sigmoid()).float()
    predictor = fit(mlp(2, [8], 2), (inputs, targets), method=ENSEMBLE, likelihood=Bernoulli())
    chances = predictor(inputs).members.double()
    logs = torch.stack([1 - chances, chances], -1).log()
    found = predictor.calibrated((inputs, targets))
    want = fit_temperature(logs.flatten(1, 2), targets.long().flatten())
    assert float(found.rule.step.factors) == pytest.approx(1 / want, rel=1e-4)
    vector = predictor.calibrated((inputs, targets), method="vector")
    factors, offsets = fit_vector_scaling(logs[:, :, 1], targets[:, 1].long())
    scaled = (factors * logs[:, :, 1] + offsets).softmax(-1)[..., 1]
    torch.testing.assert_close(
        vector(inputs).members[:, :, 1].double(), scaled, rtol=1e-4, atol=1e-4
    )
    with pytest.raises(CosetError, match=r"conformal.*yes-or-no.*two outputs"):
        predictor.calibrated((inputs, targets), method="conformal")


@pytest.mark.parametrize("method", ["temperature", "vector", "conformal"])
def test_files_keep_the_correction(classes, segmenter, method, tmp_path):
    for predictor, module, held, *_ in (classes, segmenter):
        calibrated = predictor.calibrated(held, method=method)
        calibrated.save(tmp_path / "calibrated")
        again = load(tmp_path / "calibrated", module)
        before, after = calibrated(held[0]), again(held[0])
        assert torch.equal(before.members, after.members)
        if method == "conformal":
            assert torch.equal(before.sets, after.sets)


def test_tiles_and_maps_know_the_rule_inside(segmenter):
    predictor, _, held = segmenter
    picture = torch.rand(1, 3, 70, 40)
    calibrated = predictor.calibrated(held, method="conformal", level=0.8)
    whole, tiles = calibrated(picture), calibrated(picture, rule=Tiled(calibrated.rule, side=32))
    torch.testing.assert_close(whole.mean, tiles.mean, atol=1e-5, rtol=1e-5)
    assert float((whole.sets == tiles.sets).float().mean()) > 0.999
    laplace = fit(
        predictor.network.module,
        held,
        method=Laplace(subset=LastLayer()),
        likelihood=predictor.likelihood,
    )
    assert isinstance(laplace.rule, Linearised)
    same = [each.maps(held[0][:2], 3).outputs for each in (laplace, laplace.calibrated(held))]
    assert torch.equal(*same)


def test_a_correction_by_hand():
    """p = (0.8, 0.2) at T = 2: odds of 2 : 1."""
    step = ClassScaling(torch.tensor(0.5), torch.tensor(0.0))
    module = nn.Linear(1, 2, bias=False)
    module.weight.data = torch.tensor([[4.0], [1.0]]).log()
    point = fit(
        module, (torch.ones(4, 1), torch.tensor([0, 0, 1, 1])), method=MaximumAPosteriori(epochs=1)
    )
    rule = Calibrated(MonteCarlo(), step)
    posterior = type(point.posterior)({"weight": module.weight.detach()})
    found = rule(
        posterior, point.network, Categorical(), torch.ones(1, 1), generator=torch.Generator()
    )
    torch.testing.assert_close(found.mean, torch.tensor([[2 / 3, 1 / 3]]))


def test_bad_calls_are_refused(classes, segmenter):
    predictor, _, (inputs, labels), _ = classes
    for settings, words in [
        ({"method": "platt"}, "got method='platt'; needed one of temperature, vector, conformal"),
        ({"level": 2.0}, "got level=2.0"),
        ({"method": "conformal", "level": 0.999}, "got 240 held-out.*needed at least 999"),
    ]:
        with pytest.raises(CosetError, match=words):
            predictor.calibrated((inputs, labels), **settings)
    with pytest.raises(CosetError, match="labels from 0 to 9"):
        predictor.calibrated((inputs, labels.clone().fill_(0).index_fill_(0, torch.tensor([3]), 9)))
    seen, _, held = segmenter
    with pytest.raises(CosetError, match="of which no target counts"):
        seen.calibrated((held[0], torch.full_like(held[1], 255)))
    unknown = fit(
        nn.Linear(2, 1),
        (inputs, inputs[:, :1]),
        method=MaximumAPosteriori(epochs=1),
        likelihood=GaussianNoise(),
    )
    with pytest.raises(CosetError, match="without a variance"):
        replace(unknown, likelihood=GaussianNoise()).calibrated((inputs, inputs[:, :1]))
