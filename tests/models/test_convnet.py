import pytest
import torch
from torch.nn import functional

from coset.errors import CosetError
from coset.models.convnet import convnet


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_number_of_parameters_is_the_sum_over_layers():
    expected = (9 * 1 + 1) * 16 + (9 * 16 + 1) * 32 + (9 * 32 + 1) * 64 + 65 * 10
    assert count(convnet()) == expected == 23_946
    assert count(convnet(in_channels=2, widths=(4,), classes=3, kernel=5)) == 51 * 4 + 15


def test_a_norm_takes_the_place_of_the_bias():
    assert count(convnet(widths=(4,), normalisation="batch")) == 9 * 4 + 2 * 4 + 50


def test_it_is_the_formula():
    model = convnet(in_channels=2, widths=(3, 4), classes=5).double()
    inputs = torch.randn(3, 2, 9, 8, dtype=torch.float64)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    hidden = functional.relu(functional.conv2d(inputs, w1, b1, stride=2, padding=1))
    hidden = functional.relu(functional.conv2d(hidden, w2, b2, stride=2, padding=1))
    torch.testing.assert_close(model(inputs), hidden.mean((2, 3)) @ w3.T + b3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"widths": (0,)},
        {"widths": 16},
        {"kernel": 0},
        {"normalisation": "bn"},
        {"normalisation": None},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(CosetError, match=next(iter(arguments))):
        convnet(**arguments)
