"""What a fit tells of its way is in proportion to its work."""

import math

import pytest
import torch
from laplace_problems import train
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coset import Laplace, LastLayer, fit, models


def perceptron():
    return models.mlp(16, (32, 32), 10)


def pictures():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


@pytest.mark.parametrize(
    ("build", "shape", "rows"), [(perceptron, (16,), 3000), (pictures, (1, 8, 8), 600)]
)
@pytest.mark.parametrize(
    "method", [Laplace(effort=math.inf), Laplace(effort=12.0), Laplace(effort=4.0)], ids=repr
)
def test_the_work_left_is_told_right_within_a_factor_of_two(
    build, shape, rows, method, monkeypatch
):
    """Work is counted by torch, product by product, as the fit makes them."""
    torch.manual_seed(0)
    targets = torch.arange(rows) % 10
    inputs = torch.randn(10, *shape)[targets] + torch.randn(rows, *shape)
    module = train(build(), inputs, targets, steps=60)
    monkeypatch.setattr("coset.inference.laplace.budget._EIGEN", 0.0)  # torch counts none
    told = []
    with FlopCounterMode(display=False) as counter:

        def progress(done, line):
            told.append((done, counter.get_total_flops(), line))

        fit(module, (inputs, targets), method=method, progress=progress)
        whole = counter.get_total_flops()
    begin = told[0][1]
    looked_at = 0
    for done, work, line in told:
        if done >= 0.1 and work - begin < 0.9 * (whole - begin):
            left = (work - begin) * (1 - done) / done
            assert 0.5 < left / (whole - work) < 2, (done, work / whole, line)
            looked_at += 1
    assert looked_at > 5
    assert told[-1][0] == 1.0


def test_the_last_layer_is_told_from_beginning_to_end():
    torch.manual_seed(0)
    data = torch.randn(300, 16), torch.arange(300) % 10
    told = []
    method = Laplace(subset=LastLayer())
    fit(perceptron(), data, method=method, progress=lambda done, line: told.append(done))
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
