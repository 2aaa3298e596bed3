"""One table of what the public functions of alignment refuse, and in which words."""

import re
import warnings

import pytest
import torch
from tests.alignment.reference import group_of, network
from torch import nn

from coset import (
    ByActivations,
    ByCovariance,
    BySinkhorn,
    ByStraightThrough,
    ByWeights,
    CosetError,
    match,
    match_many,
    match_stream,
    permutation_with_transpositions,
    stack,
    transpositions,
    weights_of,
)

NET = network(4, 6, 2)
OTHER = network(4, 5, 2)
GROUP = group_of(NET, 4)
OWN = weights_of(NET)
INPUTS = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).double()
NARROW = INPUTS[:, :3]
UNDEFINED = INPUTS * torch.nan
LABELS = torch.zeros(20, dtype=torch.long)
WHOLE = {**OWN, "0.bias": torch.zeros(6, dtype=torch.long)}


def by(way):
    return match(GROUP, OWN, to=OWN, by=way)


REFUSED = {
    "a module to move": (lambda: match(GROUP, NET, to=OWN), "weights_of(module)"),
    "a module to match to": (lambda: match(GROUP, OWN, to=NET), "weights_of(module)"),
    "a list to match to": (lambda: match(GROUP, OWN, to=[OWN]), "of type list"),
    "nothing to match to": (lambda: match(GROUP, OWN, to=None), "of type NoneType"),
    "no tensors": (
        lambda: match(GROUP, {"0.bias": 1.0}, to=OWN),
        "'0.bias' of type float; needed tensors",
    ),
    "whole numbers": (lambda: match(GROUP, WHOLE, to=OWN), "'0.bias' of type torch.int64"),
    "a class": (lambda: by(ByWeights), "got by=ByWeights; needed a way of matching"),
    "a word": (lambda: by("weights"), "got by='weights'"),
    "a class for many": (lambda: match_many(GROUP, stack([OWN] * 2), by=ByWeights), "by=ByWeights"),
    "a list for many": (lambda: match_many(GROUP, [OWN, OWN]), "coset.stack"),
    "half a round": (lambda: match_many(GROUP, stack([OWN] * 2), rounds=0.5), "rounds=0.5"),
    "a generator as stream": (
        lambda: match_stream(GROUP, (OWN for _ in range(2))),
        "members of type generator",
    ),
    "a stack as stream": (lambda: match_stream(GROUP, stack([OWN] * 2)), "match_many"),
    "stacks in a stream": (
        lambda: match_stream(GROUP, [stack([OWN] * 2)] * 2),
        "got a stack as member 0",
    ),
    "modules in a stream": (lambda: match_stream(GROUP, [NET, NET]), "member 0 of type"),
    "undefined activations": (
        lambda: by(ByActivations(NET, UNDEFINED)),
        "not finite, in example 0",
    ),
    "another module": (lambda: by(ByActivations(OTHER, INPUTS)), "'0.weight' is of shape (5, 4)"),
    "a deeper module": (
        lambda: by(ByActivations(network(4, 6, 2, 2), INPUTS)),
        "'4.weight' is of shape (2, 2); needed missing",
    ),
    "no module": (lambda: by(ByActivations(OWN, INPUTS)), "module of type dict"),
    "activations of narrow inputs": (
        lambda: by(ByActivations(NET, NARROW)),
        "got inputs of shape (2, 3)",
    ),
    "activations of a list": (lambda: by(ByActivations(NET, [1.0])), "of a float as inputs"),
    "no activations": (lambda: by(ByActivations(NET, INPUTS[:0])), "0 rows"),
    "inputs of two lengths": (
        lambda: by(ByActivations(NET, (INPUTS, INPUTS[:3]))),
        "20 and 3 rows",
    ),
    "covariance of narrow inputs": (lambda: by(ByCovariance(NET, NARROW)), "shape (20, 3)"),
    "undefined covariance": (
        lambda: by(ByCovariance(NET, UNDEFINED)),
        "not finite, in example 0",
    ),
    "covariance of another": (lambda: by(ByCovariance(OTHER, INPUTS)), "'0.weight' is of shape"),
    "covariance by a class": (lambda: ByCovariance(NET, INPUTS, by=ByWeights), "ByWeights"),
    "straight through narrow inputs": (
        lambda: by(ByStraightThrough(NET, (NARROW, LABELS), steps=1)),
        "inputs of shape (20, 3)",
    ),
    "straight through undefined inputs": (
        lambda: by(ByStraightThrough(NET, (UNDEFINED, LABELS), steps=1)),
        "not finite, in example 0",
    ),
    "straight through wrong labels": (
        lambda: by(ByStraightThrough(NET, (INPUTS, LABELS + 2), steps=1)),
        "labels from 2 to 2",
    ),
    "straight through another": (
        lambda: by(ByStraightThrough(OTHER, (INPUTS, LABELS), steps=1)),
        "'0.weight' is of shape",
    ),
    "half a restart": (lambda: ByWeights(restarts=0.5), "restarts=0.5"),
    "transpositions of a list": (lambda: transpositions([1, 0]), "of type list"),
    "transpositions of bytes": (
        lambda: transpositions(torch.tensor([1, 0], dtype=torch.uint8)),
        "torch.uint8",
    ),
    "transpositions of a mask": (lambda: transpositions(torch.tensor([True, False])), "torch.bool"),
    "a seed": (lambda: match(GROUP, OWN, to=OWN, generator=3), "got generator=3; needed Generator"),
    "no seed": (lambda: match(GROUP, OWN, to=OWN, generator=0), "got generator=0"),
    "a seed of many": (
        lambda: match_many(GROUP, stack([OWN] * 2), generator=3),
        "got generator=3",
    ),
    "a seed of a stream": (lambda: match_stream(GROUP, [OWN] * 2, generator=3), "got generator=3"),
    "a seed of transpositions": (
        lambda: permutation_with_transpositions(5, 2, generator=3),
        "got generator=3",
    ),
    "half a transposition": (
        lambda: permutation_with_transpositions(5, 2.5, generator=torch.Generator()),
        "k=2.5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(case):
    call, words = REFUSED[case]
    with pytest.raises(CosetError, match=re.escape(words)):
        call()


def test_small_indices_are_indices():
    assert transpositions(torch.tensor([1, 2, 0], dtype=torch.int32)) == 2


def test_parameters_are_taken_without_their_gradients():
    parameters = dict(NET.named_parameters())
    several = {name: torch.stack([p, p]) for name, p in parameters.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = match(GROUP, parameters, to=parameters)
        assert found.squared_distance == 0.0
        many = match_many(GROUP, several)
        frame = match_stream(GROUP, [parameters, parameters])
    for tensors in (found.weights, many.weights, frame.mean):
        assert not any(tensor.requires_grad for tensor in tensors.values())


@pytest.mark.parametrize("way", [ByWeights(), BySinkhorn(), "activations", "covariance"])
def test_a_network_without_units_stays_where_it_is(way):
    net = nn.Linear(4, 2).double()
    ways = {"activations": ByActivations(net, INPUTS), "covariance": ByCovariance(net, INPUTS)}
    own = weights_of(net)
    result = match(group_of(net, 4), own, to=own, by=ways.get(way, way))
    assert result.transpositions == 0
    torch.testing.assert_close(result.weights, own)
