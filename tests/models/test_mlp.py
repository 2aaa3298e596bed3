from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from coset.errors import CosetError
from coset.models.mlp import mlp


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_the_number_of_parameters_is_the_sum_over_layers(sizes):
    model = mlp(sizes[0], sizes[1:-1], sizes[-1])
    expected = sum((a + 1) * b for a, b in pairwise(sizes))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_the_benchmark_network_has_118282_parameters():
    model = mlp(784, (128, 128), 10)
    assert sum(p.numel() for p in model.parameters()) == 785 * 128 + 129 * 128 + 129 * 10 == 118_282


def test_it_is_the_formula():
    model = mlp(6, (5,), 2, activation="tanh").double()
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    w1, b1, w2, b2 = model.parameters()
    expected = torch.tanh(inputs.flatten(1) @ w1.T + b1) @ w2.T + b2
    torch.testing.assert_close(model(inputs), expected)


def test_the_activation_may_be_a_factory():
    model = mlp(3, (4,), 2, activation=torch.nn.Softplus).double()
    inputs = torch.randn(4, 3, dtype=torch.float64)
    expected = model.linear2(functional.softplus(model.linear1(inputs)))
    torch.testing.assert_close(model(inputs), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_features": 0}, "in_features=0"),
        ({"in_features": (28, 28)}, "in_features"),
        ({"hidden": (4, -1)}, "hidden"),
        ({"hidden": 128}, "got hidden=128; needed a list"),
        ({"classes": 0}, "classes=0"),
        ({"activation": "swish"}, "needed one of relu, silu, gelu, tanh"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(CosetError, match=message):
        mlp(**arguments)


def test_sizes_of_numpy_are_sizes():
    one, three = np.int64(1), np.int64(3)
    assert mlp(three, (three,), one)(torch.ones(2, 3)).shape == (2, 1)
