import pytest
import torch
from torch import nn

from coset import CosetError, functionalise, stack
from coset.posterior.chunks import count_rows, plan_chunks, split_rows


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


def test_rows_are_split_in_order_in_every_part():
    inputs = torch.arange(7), torch.arange(7) * 10
    chunks = list(split_rows(inputs, 3))
    assert [len(first) for first, _ in chunks] == [3, 3, 1]
    assert torch.equal(torch.cat([second for _, second in chunks]), inputs[1])
    assert count_rows(inputs) == 7


def test_parts_have_the_same_rows():
    with pytest.raises(CosetError, match="6 and 7 rows"):
        count_rows((torch.zeros(7), torch.zeros(6)))
