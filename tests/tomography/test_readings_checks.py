import math

import pytest
import torch
from tests.tomography.tomography_problems import readings_of, seeded
from torch import nn

from coset.errors import CosetError
from coset.tomography import FanBeam, ParallelBeam, Poisson
from coset.tomography.checks import (
    axis_offset,
    check_network,
    check_scan,
    checked_noise,
    checked_readings,
    fit_warnings,
)

SCAN = ParallelBeam(12, 10)


@pytest.fixture(scope="module")
def made():
    return readings_of(SCAN)


def with_nan(readings):
    broken = readings.clone()
    broken[:, 3] = math.nan
    return broken


def with_dead(readings):
    broken = readings.clone()
    broken[:, 7] = 0.0
    return broken


BAD = {
    "another shape": (lambda r: r[:, :-1], r"angles by detectors.*detectors of the scan"),
    "transposed": (lambda r: r.mT, "transposed: give readings.mT"),
    "several images": (lambda r: torch.stack([r, r]), "those of one image"),
    "not a tensor": (lambda r: r.numpy(), "torch.from_numpy"),
    "whole numbers": (lambda r: (9 * r).long(), "floating numbers"),
    "a dead column": (with_nan, r"1 whole detector columns.*missing='nan'"),
    "a dead column of zeros": (with_dead, r"detector bin 7 of .* at zero.*missing='nan'"),
    "infinite": (lambda r: r / 0, "infinite"),
    "nothing": (torch.zeros_like, "all zero"),
    "counts": (lambda r: (1e4 * (-r / 10).exp()).round(), r"photon counts.*-log\(counts"),
    "the wrong sign": (lambda r: -r, "check the sign"),
}


@pytest.mark.parametrize("case", BAD)
def test_readings_that_cannot_be_meant_are_refused(case, made):
    spoil, words = BAD[case]
    with pytest.raises(CosetError, match=words):
        checked_readings(spoil(made.readings), SCAN, "gaussian", "refuse")


def test_readings_that_can_be_meant_pass(made):
    for readings in (made.readings, made.readings.flatten(), made.readings.float()):
        assert checked_readings(readings, SCAN, "gaussian", "refuse").shape == (10, SCAN.bins)
    kept = checked_readings(with_nan(made.readings), SCAN, "gaussian", "nan")
    assert int(kept.isnan().sum()) == 10
    strong = 60 * made.readings / made.readings.max()  # pixels may weaken rays that much
    assert torch.equal(checked_readings(strong, SCAN, "gaussian", "refuse"), strong)
    noisy = made.readings - 0.05 * made.readings.max()
    assert float(noisy.min()) < 0
    assert torch.equal(checked_readings(noisy, SCAN, "gaussian", "refuse"), noisy)


def test_counts_are_checked_as_counts():
    counts = readings_of(SCAN, photons=1e4).readings
    assert torch.equal(checked_readings(counts, SCAN, Poisson(1e4), "refuse"), counts)
    whole = checked_readings(counts.long(), SCAN, Poisson(1e4), "refuse")
    torch.testing.assert_close(whole.double(), counts)
    for spoilt, photons, words in (
        (-counts, 1e4, "not negative"),
        (counts, 1e2, "nothing in the way"),
        (counts / 1e4, 1e4, "line integrals"),
    ):
        with pytest.raises(CosetError, match=words):
            checked_readings(spoilt, SCAN, Poisson(photons), "refuse")


@pytest.mark.parametrize("noise", ["loud", 0.0, -1.0, math.inf])
def test_noise_that_there_is_not(noise):
    with pytest.raises(CosetError):
        checked_noise(noise)


@pytest.mark.parametrize(
    ("angles", "words"),
    [([0.0, 90.0, 180.0], "multiply degrees"), ([0.0, 6.9], "between 0 and 2π"), ([0, 0], "twice")],
)
@pytest.mark.parametrize("scan", [ParallelBeam, FanBeam])
def test_angles_in_degrees_or_over_a_turn_are_refused(scan, angles, words):
    with pytest.raises(CosetError, match=words):
        scan(12, angles)


def test_a_centre_of_rotation_that_is_off_is_warned_of():
    scan = ParallelBeam(24, 30)
    readings = readings_of(scan, level=0.02, seed=2).readings
    assert fit_warnings(readings, scan, 0.1) == ()
    moved = readings.roll(2, 1)
    offset, error = axis_offset(moved, scan)
    assert offset == pytest.approx(2, abs=5 * error + 0.05)
    (warning,) = fit_warnings(moved, scan, 0.1)
    assert "centre of rotation" in warning
    assert "2.0 bins" in warning
    assert any("noise of" in each for each in fit_warnings(readings, scan, 9.0))


def test_the_error_of_the_centre_is_its_spread():
    """60 draws of noise: the mean square of offset over error within 5 standard errors of one."""
    scan = ParallelBeam(12, 12)
    clean = readings_of(scan, level=1e-6).readings
    random, ratios = seeded(5), []
    for _ in range(60):
        noise = 0.05 * torch.randn(clean.shape, generator=random, dtype=clean.dtype)
        offset, error = axis_offset(clean + noise, scan)
        ratios.append((offset / error) ** 2)
    # squared t of 9 degrees of freedom: mean 9/7, variance below 10
    assert sum(ratios) / 60 == pytest.approx(9 / 7, abs=5 * math.sqrt(10 / 60))


def test_readings_over_a_whole_turn_are_warned_of():
    whole = ParallelBeam(16, torch.arange(20) * math.pi / 10)
    readings = readings_of(whole, seed=3).readings
    half = ParallelBeam(16, 20)
    (warning,) = [each for each in fit_warnings(readings, half, 0.1) if "360 degrees" in each]
    assert "first half" in warning
    assert fit_warnings(readings, whole, 0.1) == ()
    for seed in range(3):
        assert fit_warnings(readings_of(half, seed=seed).readings, half, 0.1) == ()


def test_residuals_above_the_noise_are_warned_of(made):
    (warning,) = fit_warnings(made.readings, SCAN, 0.1, residual=3.0)
    assert "3.0 times the noise" in warning


def test_a_matrix_that_does_not_fit_is_refused_before_it_is_made():
    with pytest.raises(CosetError, match=r"400 angles of an image of 2048 × 2048.*smaller size"):
        check_scan(ParallelBeam(2048, 400), 4 << 30)
    check_scan(ParallelBeam(128, 20), 4 << 30)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Linear(3, 3), "fails on an image"),
        (nn.Conv2d(1, 2, 3, padding=1), r"shape \(1, 2, 12, 12\)"),
        (lambda image: image, "Module"),
    ],
)
def test_networks_that_do_not_map_images_to_images_are_refused(network, words):
    with pytest.raises(CosetError, match=words):
        check_network(network, 12)


def test_networks_that_do_are_left_as_they_were():
    network = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    check_network(network, 12)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
