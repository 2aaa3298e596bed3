"""Posteriors given by samples of the tangent model."""

import pytest
import torch
from torch import nn

from coset import (
    Categorical,
    GaussianNoise,
    Linearised,
    MonteCarlo,
    Predictor,
    SampledSoftmax,
    TangentSamples,
    functionalise,
    load,
)

pytestmark = pytest.mark.usefixtures("double")


def posterior_of(network, samples=6):
    mean = network.layout.restrict(network.weights)
    deviations = {name: torch.randn(samples, *tensor.shape) for name, tensor in mean.items()}
    return TangentSamples(mean, deviations)


def case(outputs=3):
    network = functionalise(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)))
    return network, posterior_of(network), torch.randn(5, 2)


def test_moments_are_those_of_the_samples():
    network, posterior, inputs = case()
    layout = network.layout
    jacobian = torch.func.jacrev(lambda given: network.apply(given, inputs))(network.weights)
    flat = torch.cat([jacobian[name].reshape(5, 3, -1) for name in layout.names], -1)
    changes = torch.einsum("ncp,mp->mnc", flat, layout.flatten(posterior.deviations))
    outputs, found = posterior.output_deviations(network, inputs)
    torch.testing.assert_close(found, changes)
    mean, covariance = posterior.output_moments(network, inputs)
    torch.testing.assert_close(mean, outputs)
    torch.testing.assert_close(covariance, torch.einsum("mnc,mnd->ncd", changes, changes) / 6)


def test_the_linearised_rule_takes_them(generator):
    network, posterior, inputs = case()
    _, covariance = posterior.output_moments(network, inputs)
    for link in (None, SampledSoftmax(50)):
        rule = Linearised() if link is None else Linearised(link)
        found = rule(posterior, network, Categorical(), inputs, generator=generator)
        torch.testing.assert_close(found.covariance, covariance)
        torch.testing.assert_close(found.mean.sum(1), torch.ones(5))
    regression = Linearised()(posterior, network, GaussianNoise(0.5), inputs, generator=generator)
    expected = covariance.diagonal(dim1=1, dim2=2) + 0.25
    torch.testing.assert_close(regression.variance, expected)


def test_draws_are_samples_on_either_side(generator):
    network, posterior, _ = case()
    draws = posterior.sample(6, generator=generator)
    flat = network.layout.flatten(draws) - network.layout.flatten(posterior.mean)
    own = network.layout.flatten(posterior.deviations)
    overlap = (flat @ own.mT) / own.square().sum(1)
    matched = (overlap.abs() - 1).abs() < 1e-9
    assert bool((matched.sum(0) == 1).all())
    assert bool((matched.sum(1) == 1).all())
    assert posterior.sample(20, generator=generator)["0.weight"].shape == (20, 4, 2)


def test_members_are_integrated_exactly(generator):
    network, posterior, inputs = case()
    found = MonteCarlo()(posterior, network, Categorical(), inputs, generator=generator)
    assert len(found.members) == 6
    one = {name: tensor[2] for name, tensor in posterior.members.items()}
    torch.testing.assert_close(found.members[2], network.apply(one, inputs).softmax(1))


def test_a_factor_scales_the_covariance():
    network, posterior, inputs = case()
    whole = posterior.output_moments(network, inputs)[1]
    torch.testing.assert_close(
        posterior.widened(0.25).output_moments(network, inputs)[1], whole / 4
    )


def test_what_is_saved_is_read_back(tmp_path):
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    network = functionalise(module)
    predictor = Predictor(network, posterior_of(network), Categorical(), rule=Linearised())
    predictor.save(tmp_path / "file.safetensors")
    again = load(tmp_path / "file.safetensors", module)
    inputs = torch.randn(4, 2)
    assert torch.equal(predictor(inputs).mean, again(inputs).mean)
    assert torch.equal(predictor(inputs).covariance, again(inputs).covariance)
