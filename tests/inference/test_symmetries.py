import pytest
import torch
from torch import nn

from coset import Problem, discover
from coset.inference.symmetries import symmetries


def problem_of(module):
    return Problem.of(module, (torch.randn(6, 3, 4), torch.zeros(6, dtype=torch.long)))


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)
    )


class Attention(nn.Module):
    """Two heads of two units."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.mix(x, x, x, need_weights=False)[0].mean(1))


def test_all_symmetries_are_those_discovered():
    module = perceptron()
    assert symmetries(problem_of(module)) == discover(module, torch.randn(1, 3, 4))


def test_symmetries_that_move_frozen_parameters_are_left_out():
    module = perceptron()
    module[1].requires_grad_(False)
    group = symmetries(problem_of(module))
    assert [factor.size for factor in group.permutations] == [5]
    assert [factor.size for factor in group.scalings] == [5]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("build", "frozen"),
    [(perceptron, "3.weight"), (perceptron, "5.bias"), (Attention, "mix.out_proj.weight")],
)
def test_what_is_left_moves_neither_frozen_parameters_nor_outputs(build, frozen, generator):
    module = build()
    module.get_parameter(frozen).requires_grad_(False)
    problem = problem_of(module)
    network, inputs = problem.network, problem.train.inputs
    group = symmetries(problem)
    names = {factor.name for factor in group.permutations}
    assert all(names.issuperset(factor.within) for factor in group.permutations)
    moved = group.act(group.sample(generator=generator), network.weights)
    assert torch.equal(moved[frozen], network.weights[frozen])
    torch.testing.assert_close(network.apply(moved, inputs), network.apply(network.weights, inputs))
