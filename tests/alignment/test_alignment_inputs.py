"""Alignment of networks with two inputs: the same as with both side by side in one."""

import pytest
import torch
from torch import nn

from coset import discover, match, weights_of
from coset.alignment.barrier import barrier
from coset.alignment.by_activations import ByActivations
from coset.alignment.by_covariance import ByCovariance
from coset.alignment.by_straight_through import ByStraightThrough


class Summed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(2, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.last = nn.Linear(6, 3)

    def forward(self, left, right):
        return self.last(nn.functional.gelu(self.norm(self.left(left) + self.right(right))))


class SideBySide(Summed):
    def forward(self, both):
        return super().forward(both[:, :4], both[:, 4:])


@pytest.fixture
def data(generator):
    inputs = tuple(torch.randn(30, n, generator=generator).double() for n in (4, 2))
    return inputs, torch.randint(3, (30,), generator=generator)


@pytest.mark.parametrize("norm", [True, False])
def test_barriers(norm, data, generator):
    a = weights_of(Summed(norm).double())
    b = {name: w + torch.rand(w.shape, generator=generator).double() for name, w in a.items()}
    (left, right), targets = data
    settings = {"points": 3, "reset_norm": norm, "repair": not norm}
    found = barrier(Summed(norm).double(), a, b, data, **settings)
    one = (torch.cat([left, right], dim=1), targets)
    wanted = barrier(SideBySide(norm).double(), a, b, one, **settings)
    torch.testing.assert_close(found.loss, wanted.loss)
    torch.testing.assert_close(found.error, wanted.error)


WAYS = {
    "activations": lambda module, data: ByActivations(module, data[0]),
    "covariance": lambda module, data: ByCovariance(module, data[0]),
    "straight through": lambda module, data: ByStraightThrough(module, data, steps=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_planted_permutations_are_undone(way, data, generator):
    module = Summed(norm=False).double()
    group, own = discover(module, data[0]), weights_of(module)
    moved = group.act(group.sample(generator=generator), own)
    found = match(group, moved, to=own, by=WAYS[way](module, data))
    for name, tensor in group.act(found.element, moved).items():
        torch.testing.assert_close(tensor, own[name])
