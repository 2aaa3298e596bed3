import os
from dataclasses import replace

import pytest
import torch
from tests.tomography.tomography_problems import QUICK, readings_of, seeded
from torch.nn import functional

from coset import data
from coset.errors import CosetError
from coset.metrics import peak_signal_to_noise
from coset.tomography import (
    DeepImagePrior,
    ParallelBeam,
    baselines,
    deep_image_prior,
    image_network,
    phantoms,
    simulate,
)
from coset.tomography.deep_image_prior import fit_images
from coset.tomography.observed import observe
from coset.tomography.total_variation import total_variation

SCAN = ParallelBeam(10, 8)


@pytest.fixture(scope="module")
def pair():
    return [observe(readings_of(SCAN, seed=seed).readings, SCAN, "gaussian") for seed in (0, 1)]


def fit(observed, settings=QUICK, **more):
    return fit_images(
        image_network(10, width=3).double(), observed, settings, generator=seeded(), **more
    )


def test_a_stack_fits_each_image_as_by_itself(pair):
    settings = replace(QUICK, steps=20, stop="never")
    together, alone = fit(pair, settings), fit(pair[:1], settings)
    assert len(together) == 2
    assert together[0].steps == alone[0].steps
    torch.testing.assert_close(together[0].image, alone[0].image, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(together[1].image, together[0].image, atol=0.05)


def test_the_discrepancy_stops_at_the_noise(pair):
    settings = replace(QUICK, steps=60, total_variation=0.0)
    (longer,) = fit(pair[:1], replace(settings, stop="never"))
    start = replace(pair[0].start, noise=torch.full_like(pair[0].start.noise, 2 * longer.misfit))
    (found,) = fit([replace(pair[0], start=start)], settings)
    assert found.misfit <= 2 * longer.misfit
    assert longer.misfit < found.misfit
    assert 0 < found.steps < longer.steps


def test_a_moving_variance_stops_where_the_image_is_calmest():
    """Images jump less and less until look 60, then more: it keeps look 60, and waits 20 more."""
    watch = deep_image_prior._Watch(DeepImagePrior(stop="variance"), [0.0])
    calmest, stopped = 60, 0
    for look in range(200):
        jump = (1 + abs(look - calmest)) * (-1) ** look
        image = torch.full((1, 2, 2), float(jump))
        watch.look(10 * look, {"w": image}, image, torch.ones(1), torch.ones(1))
        if watch.done:
            stopped = look
            break
    (kept,) = watch.kept
    # the window of 20 looks is calmest when its middle is
    assert kept.step == pytest.approx(10 * (calmest + 10), abs=10)
    assert 10 * stopped == kept.step + 210


def test_total_variation_makes_images_smooth(pair):
    settings = replace(QUICK, stop="never")
    smooth, rough = (
        fit(pair[:1], replace(settings, total_variation=weight))[0] for weight in (1.0, 0.0)
    )
    assert float(total_variation(smooth.image)) < 0.5 * float(total_variation(rough.image))
    assert smooth.misfit > rough.misfit


def test_a_descent_that_diverges_is_refused(pair):
    with pytest.raises(CosetError, match="rate"):
        fit(pair[:1], replace(QUICK, rate=1e300))


@pytest.mark.parametrize("settings", [{"steps": 0}, {"rate": 0.0}, {"total_variation": -1.0}])
def test_settings_that_cannot_be_meant_are_refused(settings):
    with pytest.raises(CosetError):
        DeepImagePrior(**settings)


@pytest.mark.slow
def test_stopping_by_itself_is_near_the_best_stop(monkeypatch):
    """Within 0.5 dB of the best image along the way, and better than filtered back-projection."""
    scan = ParallelBeam(28, 20)
    made = simulate(phantoms.ellipses(56, generator=seeded()), scan, generator=seeded())
    observed = observe(made.readings, scan, "gaussian")
    ratios = []
    look = deep_image_prior._Watch.look

    def record(watch, step, weights, images, misfit, loss):
        image = observed.unit * images[0].double()
        ratios.append(float(peak_signal_to_noise(image, made.truth)))
        look(watch, step, weights, images, misfit, loss)

    monkeypatch.setattr(deep_image_prior._Watch, "look", record)
    network = image_network(28, width=8)
    settings = DeepImagePrior(steps=1500)
    fit_images(network, [observed], replace(settings, stop="never"), generator=seeded())
    best = max(ratios)
    for stop in ("discrepancy", "variance"):
        (found,) = fit_images(network, [observed], replace(settings, stop=stop), generator=seeded())
        image = observed.unit * found.image.double()
        assert float(peak_signal_to_noise(image, made.truth)) > best - 0.5
    filtered = scan.filtered_back_projection(made.readings)
    assert best - 0.5 > float(peak_signal_to_noise(filtered, made.truth))


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("COSET_DATA"), reason="COSET_DATA is not set")
def test_a_real_character_beats_variation_alone_and_back_projection():
    """A test image of KMNIST from 20 angles, as in the published study: 29, 26 and 24 dB."""
    scan = ParallelBeam(28, 20)
    picture = data.kmnist().test_inputs[:1].double()
    picture = functional.interpolate(picture / picture.max(), size=(56, 56), mode="bilinear")
    made = simulate(picture[0, 0], scan, generator=seeded())
    observed = observe(made.readings, scan, "gaussian")
    (fitted,) = fit_images(
        image_network(28, width=8), [observed], DeepImagePrior(steps=1200), generator=seeded()
    )
    variation = baselines.total_variation_image(observed).mean.reshape(28, 28)
    images = (
        observed.unit * fitted.image.double(),
        observed.unit * variation,
        scan.filtered_back_projection(made.readings),
    )
    found = [float(peak_signal_to_noise(each, made.truth)) for each in images]
    assert found[0] > found[1] + 1
    assert found[1] > found[2]
