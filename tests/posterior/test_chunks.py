import pytest
import torch
from torch import nn

from coset import functionalise, stack
from coset.posterior.chunks import plan_chunks


@pytest.mark.usefixtures("double")
def test_the_plan_keeps_to_the_memory(generator):
    network = functionalise(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))
    members = stack([network.initialise(generator) for _ in range(5)])
    inputs = torch.randn(100, 3)
    small = plan_chunks(network, members, inputs, 1)
    assert (small.members, small.rows) == (1, 1)
    large = plan_chunks(network, members, inputs, 1 << 30)
    assert (large.members, large.rows) == (5, 100)
    # the largest activation has 8 numbers of 8 bytes, four such at once: 256 bytes a row
    middle = plan_chunks(network, members, inputs, 256 * 250)
    assert (middle.members, middle.rows) == (2, 100)


def test_weight_matrices_are_no_activations(generator):
    network = functionalise(nn.Linear(10_000, 2))
    members = stack([network.initialise(generator) for _ in range(2)])
    plan = plan_chunks(network, members, torch.zeros(64, 10_000), 64 * 2 * 4 * 4 * 2)
    assert (plan.members, plan.rows) == (2, 64)
