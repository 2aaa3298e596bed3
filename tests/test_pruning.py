"""Pruning by a posterior, with rankings that one can see."""

import pytest
import torch
from torch import nn

import coset
from coset import (
    Categorical,
    CosetError,
    LowRankGaussian,
    MaximumAPosteriori,
    PointMass,
    Predictor,
    Samples,
    discover,
    functionalise,
    prune,
)


def predictor_of(mean, std):
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False))
    layout = functionalise(net).layout
    posterior = LowRankGaussian(
        layout.unflatten(torch.tensor(mean)), layout.unflatten(torch.tensor(std))
    )
    return net, Predictor(functionalise(net), posterior, Categorical())


MEAN, STD = [4.0, 3.0, 2.0, 1.0, 0.5, 6.0], [4.0, 0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize(
    ("score", "keep", "kept"),
    [
        ("sigma", 0.5, [0, 1, 1, 1, 0, 0]),  # by std alone
        ("signal", 0.5, [0, 1, 1, 0, 0, 1]),  # ratios 1, 30, 10, 3.3, 1.25, 12
        ("sigma", 1.0, [1] * 6),
        ("signal", 0.01, [0, 1, 0, 0, 0, 0]),  # one weight stays
    ],
)
def test_the_best_ranked_stay(score, keep, kept):
    _, predictor = predictor_of(MEAN, STD)
    found = prune(predictor, keep, score=score).posterior
    flat = predictor.network.layout.flatten(found.weights)
    assert flat.tolist() == (torch.tensor(MEAN) * torch.tensor(kept)).tolist()


def test_another_network_is_moved_before_it_is_pruned(generator):
    net, predictor = predictor_of([4.0, 3.0, 0.2, 0.1, 5.0, 1.0], [0.1, 0.1, 2.0, 2.0, 0.1, 2.0])
    group = discover(net, torch.zeros(1, 2))
    mean = predictor.posterior.mean
    scrambled = group.act(group.sample(generator=generator), mean)
    straight = prune(predictor, 0.5).posterior.weights
    found = prune(predictor, 0.5, weights=scrambled, group=group).posterior.weights
    for name, tensor in straight.items():
        assert torch.allclose(found[name], tensor)
    with pytest.raises(CosetError, match="without the group"):
        prune(predictor, 0.5, weights=scrambled)


def test_samples_have_a_spread_and_points_have_none():
    net = nn.Linear(1, 2, bias=False)
    network = functionalise(net)
    stack = {"weight": torch.tensor([[[1.0], [0.0]], [[1.2], [4.0]]])}
    found = prune(Predictor(network, Samples(stack), Categorical()), 0.5).posterior.weights
    assert found["weight"].flatten().tolist() == pytest.approx([1.1, 0.0])
    with pytest.raises(CosetError, match="one network"):
        prune(Predictor(network, PointMass(network.weights), Categorical()), 0.5)


@pytest.mark.parametrize("keep", [0, -0.1, 1.5, True, "half", float("nan")])
def test_a_fraction_is_a_fraction(keep):
    _, predictor = predictor_of(MEAN, STD)
    with pytest.raises(CosetError, match="keep="):
        prune(predictor, keep)
    with pytest.raises(CosetError, match="score"):
        prune(predictor, 0.5, score="size")


def test_a_fitted_posterior_can_be_pruned():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    inputs = torch.randn(60, 2)
    data = inputs, (inputs[:, 0] > 0).long()
    mode = coset.fit(net, data, method=MaximumAPosteriori(epochs=300)).posterior.weights
    trained = coset.assign(net, mode)
    pruned = prune(coset.fit(trained, data), 0.5, score="signal")
    zero = sum(int((w == 0).sum()) for w in pruned.posterior.weights.values())
    assert zero == 11  # of 22
    assert float((pruned(inputs).mean.argmax(1) == data[1]).float().mean()) > 0.7
