"""Weights at which networks are compared: finite, but for masks."""

import pytest
import torch
from torch import nn

from coset import CosetError, PermutationByHand, discover

HIDDEN = PermutationByHand("hidden", 5, [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)])


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("groups", [None, [HIDDEN]])
def test_weights_that_are_not_finite_are_named(number, groups):
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    discover(net, torch.zeros(1, 3))  # that the group is known makes no difference
    with torch.no_grad():
        net[2].weight[0, 1] = number
    with pytest.raises(CosetError, match=r"1 numbers in '2\.weight' that are infinite"):
        discover(net, torch.zeros(1, 3), groups=groups)


def test_statistics_that_are_no_numbers_are_named():
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    net[1].running_var.fill_(torch.nan)
    with pytest.raises(CosetError, match=r"5 numbers in '1\.running_var'"):
        discover(net, torch.zeros(2, 3))


def test_masks_may_be_infinite():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.value = nn.Linear(3, 4), nn.Linear(3, 4)
            self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))

        def forward(self, x):
            scores = self.query(x) @ x.new_ones(4, 6) + self.mask
            return (scores.softmax(-1) @ self.value(x)).sum(-1)

    group = discover(Masked(), torch.zeros(1, 6, 3))
    assert {factor.size for factor in group.permutations} >= {4}
