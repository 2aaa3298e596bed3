import math

import pytest
import torch

from coset.errors import CosetError
from coset.tomography import FanBeam, ParallelBeam, Poisson, phantoms, simulate


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_shepp_logan_has_its_contrasts():
    image = phantoms.shepp_logan(128)
    assert image.shape == (128, 128)
    assert float(image[64, 64]) == pytest.approx(0.2, abs=1e-9)  # brain
    assert float(image[64, 81]) == pytest.approx(0.0, abs=1e-9)  # ventricle
    area = math.pi * 64**2 * (0.69 * 0.92 - 0.8 * 0.6624 * 0.874)  # the two largest ellipses
    assert abs(float(image.sum()) - area) < 0.1 * area


@pytest.mark.parametrize("draw", [phantoms.ellipses, phantoms.rectangles, phantoms.walnut])
def test_random_phantoms_differ_by_seed_and_stay_in_the_unit_range(draw):
    first, again, other = (draw(28, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (28, 28)
    assert float(first.min()) >= 0
    assert 0.5 < float(first.max()) <= 1 + 1e-9


@pytest.mark.parametrize("scan", [ParallelBeam(16, 9), FanBeam(16, 9)])
def test_the_other_projector_agrees_on_a_smooth_image(scan):
    places = torch.arange(64, dtype=torch.float64) / 4 - 7.875
    image = torch.exp(-((places[:, None] - 2) ** 2 + places**2) / 8)
    found = simulate(image, scan, level=0.0, generator=seeded())
    expected = scan.forward(found.truth)
    assert float((found.readings - expected).abs().max()) < 0.04 * float(expected.max())
    assert not torch.equal(found.readings, expected)


def test_the_noise_has_the_size_it_says():
    """4,060 draws: their standard deviation is within 5 % but for one seed in a million."""
    scan = ParallelBeam(20, 140)
    clean = simulate(phantoms.shepp_logan(40), scan, level=0.0, generator=seeded())
    noisy = simulate(phantoms.shepp_logan(40), scan, level=0.1, generator=seeded())
    assert noisy.noise == pytest.approx(0.1 * float(clean.readings.abs().mean()))
    assert float((noisy.readings - clean.readings).std()) == pytest.approx(noisy.noise, rel=0.05)


def test_counts_follow_beer_and_lambert():
    """The mean of 4,060 standardised counts is within 5 standard errors of 0, their size of 1."""
    scan = ParallelBeam(20, 140)
    image = phantoms.shepp_logan(40) / 10
    clean = simulate(image, scan, level=0.0, generator=seeded()).readings
    counts = simulate(image, scan, photons=1000.0, generator=seeded()).readings
    mean = 1000 * (-clean).exp()
    scores = (counts - mean) / mean.sqrt()
    assert abs(float(scores.mean())) < 5 / math.sqrt(4060)
    assert abs(float(scores.std()) - 1) < 5 / math.sqrt(2 * 4060)


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(CosetError, match="multiple of 16"):
        simulate(torch.ones(20, 20), ParallelBeam(16, 3), generator=seeded())
    with pytest.raises(CosetError, match="photons"):
        Poisson(0.0)
