"""Finite inputs give finite predictions, or are refused."""

import pytest
import torch
from torch import nn

import coset
from coset import (
    CosetError,
    GaussianNoise,
    Laplace,
    Linearised,
    MonteCarlo,
    Probit,
    SampledSoftmax,
)
from coset.posterior.links import LaplaceBridge
from methods import LAPLACES, METHODS


def data(dtype=torch.float32):
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    return inputs, (inputs[:, 0] > 0).long()


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)


LINKS = [None, Probit(), SampledSoftmax(7), LaplaceBridge()]


@pytest.mark.parametrize("link", LINKS, ids=repr)
@pytest.mark.parametrize("size", [1e4, 1e15, 1e19])
def test_probabilities_far_away_are_those_in_double(link, size):
    """In single precision the covariance of the outputs overflows at 1e19."""
    inputs = data()[0][:4] * size
    rule = None if link is None else Linearised(link)
    single = coset.fit(network(), data(), method=Laplace())
    found = single(inputs, rule=rule).mean
    assert found.isfinite().all()
    assert torch.allclose(found.sum(1), torch.ones(4))
    double = coset.fit(network().double(), data(torch.float64), method=Laplace())
    expected = double(inputs.double(), rule=rule).mean
    room = 2e-2 if not isinstance(link, SampledSoftmax) else 1.0  # other draws
    assert (found - expected).abs().max() < room


@pytest.mark.parametrize("name", ["map", "ensemble", "SWAG"])
def test_half_precision_far_away(name):
    half = coset.fit(network(torch.float16), data(torch.float16), method=METHODS[name])
    inputs = data(torch.float16)[0] * 5000  # the hidden units of many overflow
    found = half(inputs)
    assert found.mean.isfinite().all()
    assert found.mean.dtype == torch.float16


@pytest.mark.parametrize("name", ["KFAC", "full", "diagonal", "last layer"])
def test_half_precision_under_laplace(name):
    half = coset.fit(network(torch.float16), data(torch.float16), method=LAPLACES[name])
    for size in (1, 300, 3000):
        found = half(data(torch.float16)[0] * size)
        assert found.mean.isfinite().all()
        assert found.mean.dtype == torch.float16
        assert found.variance.isfinite().all()  # in double, where half has no such numbers


def test_what_no_number_holds_is_refused():
    inputs, _ = data()
    module = nn.Linear(3, 1)
    nn.init.constant_(module.weight, 1.0)
    predictor = coset.fit(module, (inputs, inputs[:, :1]), likelihood=GaussianNoise(1.0))
    far = inputs[:5].clone()
    far[3] *= 1e30
    assert predictor(far).variance.amax() > 1e55  # which single precision cannot hold
    far[3] = 3e38
    with pytest.raises(CosetError, match="members are not finite, first for example 3"):
        predictor(far)
    assert predictor(far[:3]).variance.dtype == torch.float32


def test_a_rule_of_ones_own_is_refused_too():
    def rule(posterior, network, likelihood, inputs, *, generator):
        found = MonteCarlo()(posterior, network, likelihood, inputs, generator=generator)
        return coset.Predictions(found.members / 0.0 * 0.0)

    predictor = coset.fit(network(), data(), method=METHODS["map"])
    with pytest.raises(CosetError, match="members are not finite"):
        predictor(data()[0], rule=rule)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("between", [nn.ReLU(), nn.BatchNorm1d(8)])
def test_spectral_norm_under_swag(norm, between):
    torch.manual_seed(0)
    module = nn.Sequential(norm(nn.Linear(3, 8)), between, nn.Linear(8, 2))
    begin = coset.weights_of(module)
    predictor = coset.fit(module, data(), method=METHODS["SWAG"], start=begin)
    assert predictor(data()[0]).mean.isfinite().all()
    drawn = predictor.posterior.sample(3, generator=torch.Generator().manual_seed(0))
    for name, tensor in drawn.items():
        if name.endswith(("_u", "_v")):  # unit vectors, up to the steps that follow them
            torch.testing.assert_close(tensor.norm(dim=1), torch.ones(3))


def test_joint_predictions_too():
    inputs, _ = data()
    module = nn.Linear(3, 1)
    nn.init.constant_(module.weight, 1.0)
    predictor = coset.fit(module, (inputs, inputs[:, :1]), likelihood=GaussianNoise(1.0))
    far = predictor.joint(inputs[:3] * 1e25)
    assert far.covariance.isfinite().all()
    assert far.mean.dtype == torch.float32
    with pytest.raises(CosetError, match="mean are not finite"):
        predictor.joint(torch.full((1, 3), 3e38))
