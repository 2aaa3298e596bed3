"""Distributions: brute force over permutations of the Wasserstein distance, stacks, signs."""

import itertools

import pytest
import torch
from tests.alignment.reference import group_of, network, permutations_only, random_weights
from torch import nn

from coset import CosetError, PointMass, Samples, stack, weights_of
from coset.alignment.by_activations import ByActivations
from coset.alignment.gaussians import Marginals
from coset.alignment.match import match
from coset.linalg import Dense
from coset.posterior.families import Mixture
from coset.posterior.gaussian import Gaussian
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.unit_blocks import UnitBlocks
from coset.symmetry.elements import Element
from coset.weights.layout import Layout


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
    names = list(one.mean)
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


def posteriors(like, generator):
    """One of every family that has marginals, with the closed form of its deviations."""

    def numbers(*lead):
        return {
            n: torch.randn(*lead, *w.shape, generator=generator).double() for n, w in like.items()
        }

    def diagonal():
        std = {n: w.abs() + 0.1 for n, w in numbers().items()}
        return LowRankGaussian(numbers(), std)

    mean, factors, plain = numbers(), numbers(2), diagonal()
    layout = Layout.of(mean)
    root = torch.randn(layout.size, layout.size, generator=generator).double()
    covariance = root @ root.T
    wide = {n: (plain.std[n].square() + factors[n].square().sum(0)).sqrt() for n in mean}
    units = numbers(4)
    return {
        "dense": (
            Gaussian(mean, Dense(covariance)),
            layout.unflatten(covariance.diagonal().sqrt()),
        ),
        "diagonal": (plain, plain.std),
        "low rank": (LowRankGaussian(mean, plain.std, factors), wide),
        "unit blocks": (
            UnitBlocks(mean, units),
            {n: d.square().sum(0).sqrt() for n, d in units.items()},
        ),
    }


@pytest.mark.parametrize("family", ["dense", "diagonal", "low rank", "unit blocks"])
def test_posteriors_are_compared_by_the_deviations_of_each_entry(family, generator):
    net = network(3, 5, 2)
    group, own = group_of(net, 3), weights_of(net)
    (one, std), (other, _) = (posteriors(own, generator)[family] for _ in range(2))
    torch.testing.assert_close(one.marginals(), (one.mean, std))
    result = match(group, other, to=one)
    marginal = match(group, Marginals(*other.marginals()), to=Marginals(one.mean, std))
    torch.testing.assert_close(result.weights, marginal.weights)
    assert result.squared_distance == pytest.approx(marginal.squared_distance)
    torch.testing.assert_close(match(group, one, to=one).squared_distance, 0.0)


def test_deviations_are_those_of_many_draws(generator):
    """400,000 draws: a deviation is known to 0.11 percent, and five times that is allowed."""
    own = weights_of(network(1, 2, 1))
    for posterior, std in posteriors(own, generator).values():
        drawn = posterior.sample(400_000, generator=generator)
        for name, values in std.items():
            torch.testing.assert_close(drawn[name].std(0), values, rtol=5.6e-3, atol=0)


def test_samples_are_a_stack_and_a_point_is_weights(generator):
    net = network(3, 6, 2)
    group = group_of(net, 3)
    own = random_weights(weights_of(net), generator)
    members = stack([random_weights(own, generator) for _ in range(4)])
    element = permutations_only(group, group.sample(generator=generator))
    moved = group.act(element, members)
    result = match(group, Samples(moved), to=Samples(members))
    torch.testing.assert_close(result.weights, members)
    each = match(group, Samples(moved), to=own)
    torch.testing.assert_close(each.weights, match(group, moved, to=own).weights)
    point = match(group, PointMass(group.act(element, own)), to=own)
    torch.testing.assert_close(point.weights, own)


def test_samples_that_weigh_differently(generator):
    """Two of three weigh nothing: mean and deviations are those of the third twice over."""
    net = network(3, 6, 2)
    group = group_of(net, 3)
    members = stack([random_weights(weights_of(net), generator) for _ in range(3)])
    share = torch.tensor([-torch.inf, 0.0, 0.0])
    found = match(group, Samples(members, share), to=Samples(members, share))
    two = {n: w[1:] for n, w in members.items()}
    torch.testing.assert_close(found.weights, {n: w.mean(0) for n, w in two.items()})
    torch.testing.assert_close(found.std, {n: w.std(0, correction=0) for n, w in two.items()})


def test_fixed_tensors_have_no_deviation(generator):
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 2)).double()
    group, own = group_of(net, 3), weights_of(net)
    mean = {n: own[n] for n, _ in net.named_parameters()}
    fixed = {n: w for n, w in own.items() if n not in mean}
    std = {n: w.abs() for n, w in mean.items()}
    whole = Marginals(own, {n: std.get(n, torch.zeros_like(w)) for n, w in own.items()})
    assert match(group, LowRankGaussian(mean, std, fixed=fixed), to=whole).squared_distance == 0.0


def test_other_distributions_are_refused(generator):
    net = network(3, 6, 2)
    group, own = group_of(net, 3), weights_of(net)
    one = gaussian(own, generator)
    last = {n: w for n, w in own.items() if n.startswith("2")}
    strange = {
        "of type Mixture; needed weights, a stack": Mixture((PointMass(own),)),
        "distribution without '0.weight' and 1 more": LowRankGaussian(last, last),
        "6 negative standard deviations in '0.bias'": Marginals(
            own, {**one.std, "0.bias": -1 - one.std["0.bias"]}
        ),
        "a stack as the mean": Marginals(stack([own, own]), stack([one.std, one.std])),
        "of type Tensor": own["0.bias"],
    }
    for words, given in strange.items():
        for pair in ((given, one), (one, given)):
            with pytest.raises(CosetError, match=words):
                match(group, pair[0], to=pair[1])


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
        match(group, Marginals(own, {**one.std, "0.bias": own["0.bias"] * torch.nan}), to=one)
