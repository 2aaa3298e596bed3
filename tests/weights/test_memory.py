"""Bytes that a pass keeps, counted by hand."""

import torch
from torch import nn

from coset.weights import functionalise
from coset.weights.memory import kept_for_gradients


def test_bytes_of_two_layers_counted_by_hand():
    """The inputs, and what tanh returns, which the second layer reads too; the weights are not."""
    network = functionalise(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    assert kept_for_gradients(network, torch.zeros(5, 4)) == 5 * (4 + 3) * 4


def test_dropout_leaves_the_generator_of_torch_where_it_was():
    network = functionalise(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)))
    before = torch.get_rng_state()
    assert kept_for_gradients(network, torch.zeros(5, 4)) > 5 * 4 * 4
    assert torch.equal(before, torch.get_rng_state())
