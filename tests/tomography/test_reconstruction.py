from dataclasses import replace

import pytest
import torch
from tests.tomography.tomography_problems import QUICK, readings_of

from coset.errors import CosetError
from coset.metrics import peak_signal_to_noise
from coset.tomography import (
    ByMarginalLikelihood,
    FanBeam,
    NormalisedFeatures,
    ParallelBeam,
    Poisson,
    image_network,
    reconstruct,
)
from coset.tomography.evidence import Scales
from coset.tomography.features import Features, whole_of
from coset.tomography.linear_model import evidence_problem
from coset.tomography.observed import observe

SCAN = ParallelBeam(14, 12)


def quickly(readings, scan=SCAN, **options):
    options.setdefault("network", image_network(14, width=4))
    return reconstruct(readings, scan, fitting=QUICK, **options)


@pytest.fixture(scope="module")
def made():
    return readings_of(SCAN)


@pytest.fixture(scope="module")
def result(made):
    return quickly(made.readings, samples=200)


def test_an_image_with_error_bars(made, result):
    assert result.image.shape == result.standard_deviation.shape == (14, 14)
    assert result.image.dtype == made.readings.dtype
    assert result.samples.shape == (200, 14, 14)
    assert float(result.standard_deviation.min()) >= 0
    back = peak_signal_to_noise(SCAN.filtered_back_projection(made.readings), made.truth)
    assert peak_signal_to_noise(result.image, made.truth) > back
    assert made.noise / 2 < result.noise < 5 * made.noise  # what 150 steps leave counts as noise
    assert "Exact" in result.path


def test_the_share_of_the_prior_is_a_share(result):
    assert result.from_prior.shape == result.image.shape
    assert 0 <= float(result.from_prior.min()) < float(result.from_prior.max()) <= 1


def test_equal_seeds_give_equal_numbers(made, result):
    again = quickly(made.readings, samples=200)
    assert torch.equal(again.image, result.image)
    assert torch.equal(again.samples, result.samples)
    assert again.log_evidence == result.log_evidence


def test_single_precision_stays_single(made):
    found = quickly(made.readings.float())
    assert found.image.dtype == found.standard_deviation.dtype == torch.float32


def test_the_unit_of_readings_does_not_matter(made, result):
    """``k`` times the readings: ``k`` times image and noise, and ``- n log k`` evidence."""
    found = quickly(4.0 * made.readings)
    torch.testing.assert_close(found.image, 4 * result.image, rtol=1e-3, atol=1e-3)
    assert found.noise == pytest.approx(4 * result.noise, rel=1e-2)
    shift = made.readings.numel() * torch.tensor(4.0).log()
    assert found.log_evidence == pytest.approx(result.log_evidence - float(shift), abs=1.0)


def test_a_region_has_the_standard_deviation_of_its_mean(result):
    inside = torch.zeros(14, 14, dtype=torch.bool)
    inside[4:9, 5:11] = True
    mean, deviation = result.region(inside)
    assert mean == pytest.approx(float(result.image[inside].mean()))
    weights = inside.flatten().double() / inside.sum()
    assert deviation == pytest.approx(float(weights @ result.covariance @ weights) ** 0.5)
    drawn = result.samples[:, inside].mean(1).std()
    assert deviation == pytest.approx(float(drawn), rel=0.3)  # 200 draws: 5 % standard error
    with pytest.raises(CosetError, match="region"):
        result.region(torch.zeros(14, 14, dtype=torch.bool))


def test_known_noise_stays(made):
    found = quickly(made.readings, noise=made.noise)
    assert found.noise == pytest.approx(made.noise)


def test_counts_end_to_end():
    found = readings_of(SCAN, photons=1e4)
    result = quickly(found.readings, noise=Poisson(1e4))
    assert peak_signal_to_noise(result.image, found.truth) > 15
    known = quickly(found.readings, noise=Poisson(1e4, dispersion=1.0))
    assert float(known.tuned.scales.noise) == 1.0
    assert known.noise == pytest.approx(1e-2, rel=1.0)  # 1/√(photons left)
    dispersion = float(result.tuned.scales.noise)
    assert dispersion >= 1.0
    assert result.noise == pytest.approx(dispersion**0.5 * known.noise, rel=1e-6)


def test_a_fan_and_evidence_alone():
    scan = FanBeam(14, 16)
    found = readings_of(scan)
    result = quickly(found.readings, scan, prior=ByMarginalLikelihood())
    assert peak_signal_to_noise(result.image, found.truth) > 15


def test_a_dead_column_is_left_out_on_request(made, result):
    broken = made.readings.clone()
    broken[:, 9] = torch.nan
    with pytest.raises(CosetError, match=r"1 whole detector columns.*missing='nan'"):
        quickly(broken)
    found = quickly(broken, missing="nan")
    assert peak_signal_to_noise(found.image, made.truth) > 15


def test_what_does_not_fit_into_memory_is_refused_or_left_out(made, result):
    """252 readings, 33 matrices of 0.5 MB and 1,300 weights: 24 MB; pixels take 4 MB more."""
    found = quickly(made.readings, memory=24 << 20)
    assert found.covariance is None
    assert "left out" in found.path
    torch.testing.assert_close(
        found.standard_deviation, result.standard_deviation, rtol=0.1, atol=1e-3
    )
    with pytest.raises(CosetError, match="GiB"):
        quickly(made.readings, memory=1 << 20)


def test_too_many_readings_are_solved_for_by_conjugate_gradients(made, result):
    """10 MB hold 160 of the 252 readings; standard deviations are from 64 samples (9 % error)."""
    found = quickly(made.readings, memory=10 << 20, samples=3)
    assert "conjugate gradients" in found.path
    assert found.covariance is None
    assert found.samples.shape == (3, 14, 14)
    assert peak_signal_to_noise(found.image, made.truth) > 15
    ratio = found.standard_deviation.mean() / result.standard_deviation.mean()
    assert 0.5 < float(ratio) < 2.0


def test_the_g_prior_feels_every_weight_alike(made):
    """Another network with the same function: one layer's filters times 8, the next divided."""
    found = quickly(made.readings, prior=NormalisedFeatures())
    assert found.tuned.blocks == ("all weights",)
    assert len(found.tuned.scales.variances) == 1
    assert peak_signal_to_noise(found.image, made.truth) > 15
    observed = observe(made.readings, SCAN, "gaussian")
    fitted = found.network
    moved = dict(fitted.weights)
    first, second = (f"inner.decoders.1.{name}.weight" for name in ("conv1", "conv2"))
    moved[first] = 8 * moved[first]
    moved["inner.decoders.1.conv1.bias"] = 8 * moved["inner.decoders.1.conv1.bias"]
    moved[second] = moved[second] / 8
    evidences = []
    for weights in (fitted.weights, moved):
        network = replace(fitted, weights=weights)
        features = Features(network, whole_of(fitted.network))
        rows = features.rows(observed.operator.adjoint(torch.eye(len(observed.values))))
        features = features.measured(rows)
        rows = features.in_units(rows)
        mean_squares = torch.cat([each.double().square().mean(0).flatten() for each in rows])
        torch.testing.assert_close(mean_squares.max(), torch.ones(()).double())
        problem = evidence_problem(features, observed, None, rows, NormalisedFeatures())
        scales = Scales(torch.tensor([1e-3]).double(), torch.tensor([torch.nan]), torch.ones(()))
        evidences.append(float(problem.log_evidence(scales)))
    assert evidences[0] == pytest.approx(evidences[1], rel=1e-3)
