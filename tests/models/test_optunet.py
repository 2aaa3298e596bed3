import torch
from torch.nn import functional

from coset.models.optunet import optunet


def test_355_parameters_in_the_published_shares():
    sizes = [p.numel() for p in optunet().parameters()]
    assert sizes == [32, 250, 30, 3, 30, 10]
    assert sum(sizes) == 355


def test_it_is_the_formula():
    model = optunet().double()
    inputs = torch.randn(5, 1, 28, 28, dtype=torch.float64)
    w1, w2, w3, b3, w4, b4 = model.parameters()
    hidden = functional.max_pool2d(functional.relu(functional.conv2d(inputs, w1)), 3)
    hidden = functional.relu(functional.conv2d(hidden, w2, groups=2)).mean((2, 3))
    expected = functional.relu(hidden @ w3.T + b3) @ w4.T + b4
    torch.testing.assert_close(model(inputs), expected)


def test_the_smallest_picture_has_18_pixels_a_side():
    assert optunet()(torch.zeros(1, 1, 18, 18)).shape == (1, 10)


def test_hidden_units_can_be_rescaled():
    """2 + 10 + 3 = 15 units: producers by a factor, consumers by its inverse."""
    model = optunet().double()
    inputs = torch.randn(5, 1, 28, 28, dtype=torch.float64)
    before = model(inputs)
    w1, w2, w3, b3, w4, _ = model.parameters()
    first, second, third = (torch.rand(size, dtype=torch.float64) + 0.5 for size in (2, 10, 3))
    with torch.no_grad():
        w1 *= first[:, None, None, None]
        w2 *= (second / first.repeat_interleave(5))[:, None, None, None]
        w3 *= third[:, None] / second
        b3 *= third
        w4 /= third
    torch.testing.assert_close(model(inputs), before)
