"""Who reads which weight, and along which axis its examples lie."""

import torch
from torch import nn
from torch.nn import functional

from coset.weights import functionalise
from coset.weights.uses import Use, visit_uses


def uses_of(module, *shape, rows=5):
    network = functionalise(module)
    found: list[tuple[str, tuple[str, ...], int | None]] = []

    def see(use: Use) -> None:
        name = getattr(use.function, "__name__", "")
        if name not in ("__get__", "__set__"):
            found.append((name, use.names, use.axis))

    visit_uses(network.apply, network.weights, torch.randn(rows, *shape), see)
    return found


def test_a_size_that_others_have_too_does_not_tell_the_axis_of_the_examples():
    class Sequences(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.behind = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, inputs):  # five examples of five positions and five features
            return self.behind(self.before(inputs).transpose(0, 1)).transpose(0, 1).flatten(1)

    assert uses_of(Sequences(), 5, 5) == [
        ("linear", ("before.weight", "before.bias"), 0),
        ("linear", ("behind.weight", "behind.bias"), 1),
    ]


def test_weights_used_twice_by_hand_or_by_name_are_seen_each_time():
    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))

        def forward(self, inputs):
            hidden = functional.linear(bias=self.scale, weight=self.weight, input=inputs)
            return hidden @ self.weight * self.scale

    seen = uses_of(ByHand(), 3)
    assert seen[0] == ("linear", ("scale", "weight"), 0)
    assert {name for _, names, _ in seen[1:] for name in names} == {"scale", "weight"}


def test_merged_examples_have_no_axis_of_their_own():
    class Merged(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, inputs):
            return self.inner(inputs.flatten(0, 1)).view(len(inputs), -1)

    assert uses_of(Merged(), 3, 4) == [("linear", ("inner.weight", "inner.bias"), None)]


def test_tied_weights_are_one_weight():
    layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    layers[2].weight = layers[0].weight
    assert [names for _, names, _ in uses_of(layers, 3)] == [
        ("0.weight", "0.bias"),
        ("0.weight", "2.bias"),
    ]
