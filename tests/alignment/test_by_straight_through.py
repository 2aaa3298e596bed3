import pytest
import torch
from tests.alignment.reference import group_of, network
from torch import nn

from coset import CosetError, weights_of
from coset.alignment.barrier import barrier
from coset.alignment.by_straight_through import ByStraightThrough
from coset.alignment.match import match


def pair(generator):
    """Two narrow networks, trained on one task from different weights."""
    net = network(3, 6, 2)
    inputs = torch.randn(200, 3, generator=generator).double()
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    trained = []
    for seed in range(2):
        own = network(3, 6, 2, seed=seed)
        optimiser = torch.optim.Adam(own.parameters(), 0.02)
        for _ in range(150):
            optimiser.zero_grad()
            nn.functional.cross_entropy(own(inputs), targets).backward()
            optimiser.step()
        trained.append(weights_of(own))
    return net, trained, (inputs, targets)


def test_the_middle_is_no_worse_than_after_matching_by_weights(generator):
    net, (a, b), data = pair(generator)
    group = group_of(net, 3)
    by = ByStraightThrough(net, data, steps=25, batch_size=100, judged=2, learning_rate=0.05)
    plain = match(group, b, to=a).weights
    found = match(group, b, to=a, by=by, generator=generator)
    heights = [float(barrier(net, a, w, data, points=3).loss[1]) for w in (plain, found.weights)]
    assert heights[1] <= heights[0] + 1e-9
    torch.testing.assert_close(group.act(found.element, b), found.weights)


def test_it_is_deterministic(generator):
    net, (a, b), data = pair(generator)
    group = group_of(net, 3)
    by = ByStraightThrough(net, data, steps=5, batch_size=50, judged=1)
    one, other = (
        match(group, b, to=a, by=by, generator=torch.Generator().manual_seed(2)) for _ in range(2)
    )
    assert all(torch.equal(one.weights[n], other.weights[n]) for n in a)


def test_impossible_options_are_refused():
    net = network(3, 6, 2)
    with pytest.raises(CosetError, match="steps=0"):
        ByStraightThrough(net, (torch.zeros(1, 3), torch.zeros(1)), steps=0)
