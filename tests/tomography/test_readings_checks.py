import math

import pytest
import torch
from tests.tomography.tomography_problems import readings_of, seeded

from coset.errors import CosetError
from coset.tomography import FanBeam, ParallelBeam, Poisson
from coset.tomography.checks import axis_offset, checked_noise, checked_readings, fit_warnings

SCAN = ParallelBeam(12, 10)


@pytest.fixture(scope="module")
def made():
    return readings_of(SCAN)


def with_nan(readings):
    broken = readings.clone()
    broken[:, 3] = math.nan
    return broken


BAD = {
    "another shape": (lambda r: r[:, :-1], r"angles by detectors.*detectors of the scan"),
    "transposed": (lambda r: r.mT, "transposed: give readings.mT"),
    "several images": (lambda r: torch.stack([r, r]), "those of one image"),
    "not a tensor": (lambda r: r.numpy(), "torch.from_numpy"),
    "whole numbers": (lambda r: (9 * r).long(), "floating numbers"),
    "a dead column": (with_nan, r"1 whole detector columns.*missing='nan'"),
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
