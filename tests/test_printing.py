"""Nouns print what they hold, whatever their size."""

import pytest
import torch
from torch import nn

import coset
from coset.printing import brief, shown

LONGEST = 1500
"""Characters: some lines of a screen."""


def printed() -> dict[str, object]:
    """What a user meets first, of a network whose tensors would fill pages."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
    inputs, targets = torch.randn(30, 20), torch.randint(3, (30,))
    group, weights = coset.discover(net, inputs), coset.weights_of(net)
    predictor = coset.fit(net, (inputs, targets))
    ensemble = coset.fit(net, (inputs, targets), method=coset.DeepEnsemble(2))
    return {
        "predictor": predictor,
        "posterior": predictor.posterior,
        "ensemble": ensemble.posterior,
        "predictions": predictor(inputs),
        "joint predictions": predictor.joint(inputs[:4]),
        "group": group,
        "element": group.identity(),
        "match": coset.match(group, weights, to=weights),
        "smallest mass": coset.minimise_mass(group, weights),
        "data": coset.data.load("digits"),
    }


NOUNS = printed()


@pytest.mark.parametrize("name", NOUNS)
def test_nouns_fit_on_a_screen_and_print_no_tensors(name: str) -> None:
    text = repr(NOUNS[name])
    assert len(text) < LONGEST
    assert "tensor(" not in text


def test_a_predictor_says_what_the_fit_found() -> None:
    lines = dict(line.split(maxsplit=1) for line in repr(NOUNS["predictor"]).splitlines()[1:])
    assert lines["network"] == "Sequential, 1,203 numbers"
    assert lines["posterior"] == "Gaussian over 1,203 weights"
    assert "effective_weights" in lines["found"]


def test_long_lists_and_small_tensors() -> None:
    assert shown(tuple(range(9))) == "(0, 1, 2, 3, 4, 5, … 9 in all)"
    assert shown((8,)) == "(8,)"
    assert shown(torch.tensor([1.0, 2.5])) == "[1, 2.5]"
    assert shown({"a": 1.0, "b": 1.0}) == "{1 for all 2}"


def test_functions_and_empty_fields_are_left_out() -> None:
    network = coset.functionalise(nn.Linear(2, 1))
    assert brief(network).startswith("Network(weights={2 tensors, 3 numbers}, layout=")
    assert "function" not in brief(network)
