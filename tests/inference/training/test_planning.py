import pytest
import torch
from torch import nn
from training_problems import classification, perceptron

from coset.inference import SGD, Adam
from coset.inference.training.planning import bytes_per_member, members_per_chunk
from coset.inference.training.planning import plan as plan_of
from coset.inference.training.recipe import Recipe


def test_bytes_of_a_linear_network_counted_by_hand():
    """4·3 + 3 parameters of 4 bytes: weights, gradient, momentum; 8 rows of 4 floats and a label.

    Autograd keeps the inputs, 16 bytes an example, which are counted twice.
    """
    problem = classification(nn.Sequential(nn.Linear(4, 3)))
    found = bytes_per_member(problem, Recipe(SGD(), batch_size=8))
    assert found == 3 * 60 + 8 * (2 * 16 + 16 + 8)


def test_more_slots_batches_and_validation_need_more():
    problem = classification(perceptron())
    least = bytes_per_member(problem, Recipe(SGD(momentum=0.0), batch_size=4))
    held_out = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    for more in (
        Recipe(Adam(), batch_size=4),
        Recipe(SGD(momentum=0.0), batch_size=8),
        Recipe(SGD(momentum=0.0), batch_size=4, validation=held_out),
    ):
        assert bytes_per_member(problem, more) > least


@pytest.mark.parametrize("members", [1, 2, 7, 64])
@pytest.mark.parametrize("budget", [0, 10, 35, 10_000])
def test_chunks_fit_the_budget_and_cover_all_members(members, budget):
    size = members_per_chunk(members, 10, budget)
    assert 1 <= size <= members
    assert size == 1 or size * 10 <= budget


class Noisy(nn.Module):
    """Draws from torch's own generator, which threads would share."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(600, 600)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return outputs + torch.randn_like(outputs) if self.training else outputs


def test_threads_are_for_heavy_steps_without_shared_randomness():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        heavy = classification(nn.Sequential(nn.Linear(600, 600)), (600,))
        light, noisy = classification(perceptron()), classification(Noisy(), (600,))
        for problem, workers in ((heavy, 2), (light, 1), (noisy, 1)):
            found = plan_of(problem, Recipe(), 8, memory=2**30)
            assert found.workers == workers
            assert found.size == 8 // workers
        assert plan_of(heavy, Recipe(), 1, memory=2**30).workers == 1
        assert plan_of(heavy, Recipe(), 8, memory=1).size == 1
        torch.set_num_threads(1)
        assert plan_of(heavy, Recipe(), 8, memory=2**30).workers == 1
    finally:
        torch.set_num_threads(threads)
