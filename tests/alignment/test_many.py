"""Many networks: planted frames, the running-sum identity, cycle consistency."""

import pytest
import torch
from tests.alignment.reference import group_of, inner, network, permutations_only, random_weights

from coset import (
    ByActivations,
    ByCovariance,
    BySinkhorn,
    ByStraightThrough,
    CosetError,
    stack,
    unstack,
    weights_of,
)
from coset.alignment.by_weights import ByWeights
from coset.alignment.many import match_many, match_stream


@pytest.fixture(scope="module")
def zoo():
    """Six noisy copies of one network, each moved by a permutation of its own."""
    generator = torch.Generator().manual_seed(3)
    net = network(5, 7, 6, 3)
    group = group_of(net, 5)
    own = random_weights(weights_of(net), generator)
    members = []
    for _ in range(6):
        element = permutations_only(group, group.sample(generator=generator))
        moved = group.act(element, own)
        noise = {n: 0.2 * torch.randn(w.shape, generator=generator) for n, w in moved.items()}
        members.append({n: w + noise[n].double() for n, w in moved.items()})
    return group, own, members


def test_noisy_copies_come_together(zoo):
    group, _, members = zoo
    result = match_many(group, stack(members))
    spread = result.weights["0.weight"].std(0)
    assert float(spread.max()) < 0.5
    for k, member in enumerate(members):
        single = {n: t[k] for n, t in result.element.permutations.items()}
        assert all(len(set(t.tolist())) == len(t) for t in single.values())
        assert member["0.weight"].sum().isclose(result.weights["0.weight"][k].sum())


def test_the_objective_is_the_sum_over_pairs_and_never_falls(zoo):
    group, _, members = zoo
    result = match_many(group, stack(members))
    aligned = [{n: w for n, w in m.items() if n != "4.bias"} for m in unstack(result.weights)]
    pairs = sum(inner(a, b) for k, a in enumerate(aligned) for b in aligned[:k])
    assert float(result.objective[-1]) == pytest.approx(pairs)
    assert bool((result.objective.diff() >= -1e-9).all())


@pytest.mark.parametrize("size", [1e-20, 2.5e-23, 1.5e-23])
def test_products_that_single_precision_loses_move_nothing_back(zoo, size):
    """In later rounds too, which begin where networks are."""
    group, _, members = zoo
    small = {n: size * w.float() for n, w in stack(members).items()}
    wanted, found = match_many(group, stack(members)), match_many(group, small)
    torch.testing.assert_close(found.objective / size**2, wanted.objective, rtol=1e-5, atol=1e-5)
    assert {w.dtype for w in found.weights.values()} == {torch.float32}


def test_the_mean_is_that_of_the_aligned_networks(zoo):
    group, _, members = zoo
    result = match_many(group, stack(members))
    for name, tensor in result.weights.items():
        torch.testing.assert_close(result.frame.mean[name], tensor.mean(0))


def test_elements_between_pairs_compose_to_the_identity(zoo):
    group, _, members = zoo
    frame = match_many(group, stack(members)).frame
    there = frame.between(group, 0, 1)
    onwards = frame.between(group, 1, 2)
    back = frame.between(group, 2, 0)
    around = group.compose(group.compose(there, onwards), back)
    identity = group.identity()
    assert all(torch.equal(around.permutations[n], t) for n, t in identity.permutations.items())
    assert len(frame.transpositions()) == 6


class FromDisk:
    """Networks that are read again each time; counts how many are asked for."""

    def __init__(self, members):
        self.members, self.reads = members, 0

    def __len__(self):
        return len(self.members)

    def __getitem__(self, k):
        self.reads += 1
        return {n: w.clone() for n, w in self.members[k].items()}


def test_a_stream_gives_what_a_stack_gives(zoo):
    group, _, members = zoo
    source = FromDisk(members)
    frame = match_stream(group, source)
    whole = match_many(group, stack(members))
    torch.testing.assert_close(frame.objective, whole.objective)
    rounds = len(frame.objective) - 1
    assert source.reads <= (rounds + 1) * 2 * len(members) + 1


def test_what_is_given_is_not_written_to(zoo):
    group, _, members = zoo
    given = stack(members)
    result = match_many(group, given)
    torch.testing.assert_close(result.weights, group.act(result.element, given))
    for k, member in enumerate(members):
        assert all(torch.equal(given[name][k], tensor) for name, tensor in member.items())


def test_one_network_stays_where_it_is(zoo):
    group, _, members = zoo
    result = match_many(group, stack(members[:1]))
    assert all(torch.equal(result.weights[n][0], w) for n, w in members[0].items())


def test_scales_are_brought_together(generator):
    from torch import nn

    net = network(4, 6, 2, activation=nn.ReLU)
    group, own = group_of(net, 4), weights_of(net)
    members = [own] + [group.act(group.sample(generator=generator), own) for _ in range(3)]
    result = match_many(group, stack(members), by=ByWeights(scales="match"))
    for name, tensor in result.weights.items():
        torch.testing.assert_close(tensor, own[name].expand_as(tensor))


def test_bad_stacks_are_refused(zoo):
    group, own, members = zoo
    with pytest.raises(CosetError, match="member axis"):
        match_many(group, own)
    with pytest.raises(CosetError, match="0 networks"):
        match_stream(group, [])
    bad = [members[0], {**members[1], "0.bias": members[1]["0.bias"] * torch.inf}]
    with pytest.raises(CosetError, match=r"member 1 with 7 numbers in '0\.bias'"):
        match_stream(group, bad)


def test_every_way_of_matching_streams(zoo):
    """Planted frames come back whichever way units are compared."""
    group, _, members = zoo
    net = network(5, 7, 6, 3)
    inputs = torch.randn(64, 5, generator=torch.Generator().manual_seed(0)).double()
    targets = torch.arange(64) % 3
    ways = [
        ByWeights(scales="canonical"),
        ByWeights(scales="mass"),
        ByActivations(net, inputs),
        ByCovariance(net, inputs),
        BySinkhorn(steps=20),
        ByStraightThrough(net, (inputs, targets), steps=2),
    ]
    wanted = match_stream(group, members).mean
    for by in ways:
        frame = match_stream(group, members, by=by)
        for name, tensor in wanted.items():
            torch.testing.assert_close(frame.mean[name], tensor, rtol=1e-6, atol=1e-9)


def test_what_cannot_match_is_refused(zoo):
    group, _, members = zoo
    with pytest.raises(CosetError, match="method solve"):
        match_stream(group, members, by="weights")
