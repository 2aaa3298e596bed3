import torch
from training_problems import classification, convolutional, perceptron

from coset.inference.training.work import operations_per_example, operations_per_step


def test_operations_of_a_perceptron_counted_by_hand():
    problem = classification(perceptron())
    expected = 2 * (4 * 8 + 8 * 3)
    assert operations_per_example(problem.network, torch.randn(3, 4)) == expected
    step = operations_per_step(problem.network, torch.randn(3, 4), members=5, batch=7)
    assert step == 3 * 5 * 7 * expected


def test_operations_of_convolutions_counted_by_hand():
    """36 and 4 pixels of 9 entries each for every pair of channels, then 16 to 3 units."""
    problem = classification(convolutional(), (1, 6, 6))
    expected = 2 * (36 * 9 * 3 + 4 * 9 * 3 * 4 + 16 * 3)
    assert operations_per_example(problem.network, torch.randn(2, 1, 6, 6)) == expected
