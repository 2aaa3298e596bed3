"""Distributions: brute force over permutations of the Wasserstein distance, stacks, signs."""

import itertools

import pytest
import torch
from tests.alignment.reference import group_of, network, permutations_only, random_weights
from torch import nn

from coset import CosetError, stack, weights_of
from coset.alignment.activations import ByActivations
from coset.alignment.gaussians import Marginals
from coset.alignment.match import match
from coset.symmetry.elements import Element


def gaussian(like, generator):
    std = random_weights(like, generator)
    return Marginals(random_weights(like, generator), {n: s.abs() for n, s in std.items()})


def squared_wasserstein(one, other, names):
    return sum(
        float((a[n] - b[n]).square().sum())
        for a, b in ((one.mean, other.mean), (one.std, other.std))
        for n in names
    )


def test_the_nearest_copy_of_a_gaussian(generator):
    net = network(3, 5, 2)
    group = group_of(net, 3)
    one, other = (gaussian(weights_of(net), generator) for _ in range(2))
    result = match(group, other, to=one)
    names = [n for n in one.mean if n != "2.bias"]
    (factor,) = group.permutations
    distances = []
    for order in itertools.permutations(range(5)):
        element = Element({factor.name: torch.tensor(order)}, {})
        moved = Marginals(group.act(element, other.mean), group.act(element, other.std))
        distances.append(squared_wasserstein(one, moved, names))
    assert result.squared_distance == pytest.approx(min(distances))
    found = Marginals(result.weights, result.std)
    assert squared_wasserstein(one, found, names) == pytest.approx(min(distances))


def test_signs_turn_means_and_not_deviations(generator):
    net = network(3, 5, 2, activation=nn.Tanh)
    group = group_of(net, 3)
    one = gaussian(weights_of(net), generator)
    element = group.sample(generator=generator)
    moved = Marginals(
        group.act(element, one.mean),
        {n: s.abs() for n, s in group.act(element, one.std).items()},
    )
    result = match(group, moved, to=one)
    torch.testing.assert_close(result.weights, one.mean)
    torch.testing.assert_close(result.std, one.std)


def test_two_stacks_are_matched_by_one_element(generator):
    net = network(3, 6, 2)
    group = group_of(net, 3)
    centre = random_weights(weights_of(net), generator)
    samples = stack(
        [
            {
                n: w + 0.1 * torch.randn(w.shape, generator=generator).double()
                for n, w in centre.items()
            }
            for _ in range(5)
        ]
    )
    element = permutations_only(group, group.sample(generator=generator))
    result = match(group, group.act(element, samples), to=samples)
    torch.testing.assert_close(result.weights, samples)
    assert result.squared_distance == pytest.approx(0.0, abs=1e-18)


def test_a_stack_to_one_network_member_by_member(generator):
    net = network(3, 6, 2)
    group = group_of(net, 3)
    own = random_weights(weights_of(net), generator)
    element = group.sample(generator=generator, members=3)
    moved = group.act(element, stack([own] * 3))
    result = match(group, moved, to=own)
    for name, tensor in result.weights.items():
        torch.testing.assert_close(tensor, own[name].expand_as(tensor))
    torch.testing.assert_close(group.act(result.element, moved), result.weights)


def test_what_does_not_go_together_is_refused(generator):
    net = network(3, 6, 2)
    group = group_of(net, 3)
    own = weights_of(net)
    one = gaussian(own, generator)
    with pytest.raises(CosetError, match="two distributions"):
        match(group, own, to=one)
    with pytest.raises(CosetError, match="ByActivations"):
        match(group, one, to=one, by=ByActivations(net, torch.zeros(2, 3).double()))
    with pytest.raises(CosetError, match=r"standard deviations .*'0\.bias'"):
        match(group, Marginals(own, {**own, "0.bias": own["0.bias"] * torch.nan}), to=one)
