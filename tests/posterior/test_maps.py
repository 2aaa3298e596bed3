"""Samples of whole maps, against the exact law of linear networks."""

import math

import pytest
import torch
from torch import nn

from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    Linearised,
    MaximumAPosteriori,
    MonteCarlo,
    Predictor,
    fit,
)
from coset.linalg import Diagonal
from coset.posterior.families import Mixture
from coset.posterior.gaussian import Gaussian
from coset.posterior.maps import Maps, Summary
from coset.weights.network import functionalise


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def pointwise():
    """``w x + b`` at every pixel, with known standard deviations 0.3 and 0.2 of w and b."""
    module = nn.Conv2d(1, 1, 1).double()
    network = functionalise(module)
    mean = {name: tensor.detach() for name, tensor in network.weights.items()}
    assert tuple(network.layout.names) == ("weight", "bias")
    posterior = Gaussian(mean, Diagonal(torch.tensor([0.09, 0.04]).double()))
    return Predictor(network, posterior, GaussianNoise(0.1), rule=Linearised(samples=64))


@pytest.mark.parametrize("rule", [None, MonteCarlo()])
def test_the_mean_of_a_map_has_the_exact_deviation(pointwise, rule):
    """Var(w x̄ + b) = 0.09 x̄² + 0.04; of 4000 samples within 5 sd of a sd (1.1 %): 6e-7."""
    pictures = torch.rand(3, 1, 6, 5, generator=seeded(), dtype=torch.float64)
    found = pointwise.maps(pictures, 4000, rule=rule).summary(lambda y: y[:, 0].mean((1, 2)))
    middle = pictures.mean((1, 2, 3))
    want = (0.09 * middle**2 + 0.04).sqrt()
    assert torch.allclose(found.deviation, want, rtol=0.056)
    apart = (pointwise(pictures).variance - 0.01).mean((1, 2, 3)).sqrt() / math.sqrt(30)
    assert (found.deviation > 3 * apart).all(), "pixels that knew nothing of each other would"
    low, high = found.interval(0.9)
    assert torch.allclose((high - low) / 2, 1.6448536 * found.deviation)


def test_one_sample_is_one_function(pointwise):
    """Two pictures that are alike are alike in every sample."""
    picture = torch.rand(1, 1, 4, 4, generator=seeded(), dtype=torch.float64)
    outputs = pointwise.maps(picture.expand(2, -1, -1, -1), 20).outputs
    assert torch.equal(outputs[:, 0], outputs[:, 1])
    again = pointwise.maps(picture.expand(2, -1, -1, -1), 20).outputs
    assert torch.equal(outputs, again)


def test_all_members_of_an_ensemble_and_the_modes_of_a_mixture(pointwise):
    picture = torch.rand(2, 1, 4, 4, generator=seeded(), dtype=torch.float64)
    method = DeepEnsemble(members=3, base=MaximumAPosteriori(epochs=1))
    module = nn.Conv2d(1, 1, 1).double()
    ensemble = fit(module, (picture, picture), method=method, likelihood=GaussianNoise(0.1))
    maps = ensemble.maps(picture)
    assert torch.equal(maps.means, ensemble(picture).members)
    one = pointwise.posterior
    far = Gaussian({n: t + 100 for n, t in one.mean.items()}, one.covariance)
    both = Mixture((one, far), torch.tensor([0.25, 0.75]).log())
    maps = Predictor(pointwise.network, both, GaussianNoise(0.1), rule=Linearised()).maps(
        picture, 400
    )
    share = float((maps.outputs.mean((1, 2, 3, 4)) > 50).double().mean())
    assert abs(share - 0.75) < 5 * math.sqrt(0.75 * 0.25 / 400)


def test_targets_have_the_frequencies_of_their_means():
    """20,000 draws: frequencies within 5 sd (0.018) of probabilities: 6e-7 each."""
    logits = torch.randn(1, 2, 3, 2, 2, generator=seeded())
    many = logits.expand(20_000, -1, -1, -1, -1)
    labels = Maps(many, Categorical()).targets(generator=seeded(1))
    assert labels.shape == (20_000, 2, 2, 2)
    for label in range(3):
        share = (labels == label).double().mean(0)
        assert (share - logits.softmax(2)[0, :, label]).abs().max() < 0.018
    answers = Maps(many, Bernoulli()).targets(generator=seeded(2))
    assert (answers.double().mean(0) - logits.sigmoid()[0]).abs().max() < 0.018
    numbers = Maps(many, GaussianNoise(0.5)).targets(generator=seeded(3))
    assert (numbers.mean(0) - logits[0]).abs().max() < 0.018
    assert (numbers.std(0) - 0.5).abs().max() < 0.0125


def test_stretched_intervals_hold_their_share_whatever_the_deviations():
    """Overconfident by 5: of 2000 new numbers 90 % ± 2.9 % (4 sd and the held-out noise)."""
    values = torch.randn(50, 2500, generator=seeded(), dtype=torch.float64)
    summary = Summary(values)
    truth = summary.mean + 5 * summary.deviation * torch.randn(
        2500, generator=seeded(1), dtype=torch.float64
    )
    held, new = Summary(values[:, :500]), Summary(values[:, 500:])
    stretch = held.stretch(truth[:500], level=0.9)
    low, high = new.interval(0.9, stretch=stretch)
    inside = ((low <= truth[500:]) & (truth[500:] <= high)).double().mean()
    assert abs(float(inside) - 0.9) < 4 * math.sqrt(0.09 / 2000 + 0.09 / 500)
    low, high = new.interval(0.9)
    assert float(((low <= truth[500:]) & (truth[500:] <= high)).double().mean()) < 0.4


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda p, x: p.maps(x, 0), "draws"),
        (lambda p, x: p.maps(x, 10**9), "GiB"),
        (lambda p, x: p.maps(x, 4).summary(lambda y: y.mean()), "one number for each of 2"),
        (lambda p, x: p.maps(x, 4).summary(lambda y: y.mean((1, 2, 3))).interval(90), "level"),
        (
            lambda p, x: p.maps(x, 4).summary(lambda y: y.mean((1, 2, 3))).stretch(torch.zeros(2)),
            "needed at least 9",
        ),
        (
            lambda p, x: p.maps(x, 4).summary(lambda y: y.mean((1, 2, 3))).stretch(torch.zeros(3)),
            "one for each of 2",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(pointwise, ask, says):
    with pytest.raises(CosetError, match=says):
        ask(pointwise, torch.zeros(2, 1, 4, 4, dtype=torch.float64))
