"""Equal units: the fewest transpositions, against brute force."""

import itertools
from collections import Counter

import pytest
import torch
from tests.alignment.reference import group_of, network, permutations_only, random_weights
from torch import nn

from coset import weights_of
from coset.alignment.match import match
from coset.alignment.ties import nearest_home
from coset.alignment.transpositions import transpositions
from coset.symmetry.elements import Element


def fewest(permutation, places, units):
    """Over all permutations that pair as many of each class of places with each class of units."""
    classes = dict(zip(permutation, units, strict=True))
    wanted = Counter(zip(places, units, strict=True))
    return min(
        transpositions(torch.tensor(other))
        for other in itertools.permutations(range(len(permutation)))
        if Counter((place, classes[u]) for place, u in zip(places, other, strict=True)) == wanted
    )


@pytest.mark.parametrize("kind", ["places", "both alike", "both"])
def test_the_fewest_transpositions_as_by_brute_force(kind, generator):
    """Exact with one class of equals, and mostly with several."""

    def labels(size):
        return torch.randint(size, (size,), generator=generator).tolist()

    excess = []
    for size in [2, 3, 4, 5, 6] * 6:
        permutation = torch.randperm(size, generator=generator).tolist()
        places = labels(size)
        units = {"places": list(range(size)), "both alike": places, "both": labels(size)}[kind]
        found = nearest_home(permutation, places, units)
        classes = dict(zip(permutation, units, strict=True))
        assert sorted(found) == list(range(size))
        assert Counter(zip(places, units, strict=True)) == Counter(
            zip(places, (classes[unit] for unit in found), strict=True)
        )
        least = fewest(permutation, places, units)
        excess.append(transpositions(torch.tensor(found)) - least)
        assert transpositions(torch.tensor(found)) <= transpositions(torch.tensor(permutation))
        alone = [kind for kind, n in Counter(places).items() if n > 1]
        if len(alone) < 2 and kind == "places":
            assert excess[-1] == 0
    assert sum(excess) <= 2


@pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh])
@pytest.mark.parametrize(
    ("dead", "order"), [((0, 1), (3, 2, 0, 1)), ((0, 2, 3, 6), (4, 6, 0, 7, 3, 1, 2, 5))]
)
def test_dead_units_take_the_fewest_swaps(dead, order, activation, generator):
    """The dead ones may take any order: tried out one by one."""
    net = network(3, len(order), 2, activation=activation)
    group = group_of(net, 3)
    own = random_weights(weights_of(net), generator)
    rows = torch.tensor(dead)
    own["0.weight"][rows], own["0.bias"][rows], own["2.weight"][:, rows] = 0.0, 0.0, 0.0
    name = group.permutations[0].name
    element = Element({name: torch.tensor(order)}, group.identity().scales)
    moved = group.act(element, own)
    result = match(group, moved, to=own)
    best = torch.tensor(order).argsort()
    choices = []
    for units in itertools.permutations(best[rows].tolist()):
        best[rows] = torch.tensor(units)
        choices.append(transpositions(best))
    assert result.transpositions == min(choices)
    assert result.ties == len(dead)
    torch.testing.assert_close(result.weights, own)


def grouped(groups, generator):
    """Groups of twelve channels: groups move, and channels inside a group."""
    norm = nn.GroupNorm(groups, 12)
    net = nn.Sequential(nn.Conv2d(2, 12, 1), norm, nn.GELU(), nn.Conv2d(12, 2, 1))
    group = group_of(net.double(), 2, 4, 4)
    return group, random_weights(weights_of(net), generator)


def blank(weights, channels):
    for name, tensor in weights.items():
        if name != "3.bias":
            tensor.index_fill_(int(name == "3.weight"), torch.tensor(channels), 0.0)


def test_dead_groups_go_home_with_all_that_is_in_them(generator):
    group, own = grouped(4, generator)
    outer, inner = group.permutations
    blank(own, list(range(6)))  # the first two groups
    tables = {**group.identity().permutations, outer.name: torch.tensor([3, 2, 0, 1])}
    moved = group.act(permutations_only(group, Element(tables, {})), own)
    result = match(group, moved, to=own)
    assert result.transpositions_of == {outer.name: 2, inner.name: 0}
    torch.testing.assert_close(result.weights, own)


def test_dead_channels_inside_groups_go_home(generator):
    group, own = grouped(3, generator)
    outer, inner = group.permutations
    blank(own, [0, 1, 4, 5, 8, 9])  # the first two of each group
    tables = {**group.identity().permutations, inner.name: torch.tensor([[3, 2, 0, 1]] * 3)}
    moved = group.act(permutations_only(group, Element(tables, {})), own)
    result = match(group, moved, to=own)
    assert result.transpositions_of == {outer.name: 0, inner.name: 6}
    torch.testing.assert_close(result.weights, own)


def test_dead_units_before_a_single_output(generator):
    """The weights of one output are a vector to those who move them."""
    net = network(2, 5, 1, activation=nn.Tanh)
    own = random_weights(weights_of(net), generator)
    own["0.weight"][:2], own["0.bias"][:2], own["2.weight"][:, :2] = 0, 0, 0
    result = match(group_of(net, 2), own, to=own)
    assert result.transpositions == 0
    assert result.ties
