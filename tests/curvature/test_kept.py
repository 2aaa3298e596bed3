"""Products from a kept run, against the Jacobian itself."""

from dataclasses import replace

import pytest
import torch
from curvature_networks import NETWORKS, brute_jacobian, build, problem_of
from torch import nn

from coset import functionalise
from coset.curvature.jacobian import Jacobian
from coset.curvature.kept import keep

pytestmark = pytest.mark.usefixtures("double")


def check(module, inputs, layout=None):
    network = functionalise(module)
    layout = layout or network.layout
    jacobian = brute_jacobian(network, layout, inputs).flatten(0, 1)
    run = keep(network, network.weights, layout, inputs)
    directions = torch.randn(2, layout.size)
    pushed = run.push(directions)
    torch.testing.assert_close(pushed.flatten(1), directions @ jacobian.mT)
    cotangents = torch.randn_like(pushed)
    torch.testing.assert_close(run.pull(cotangents), cotangents.flatten(1) @ jacobian)
    assert run.rows == len(inputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_the_jacobian(name):
    check(*build(name, 4))


def normed(norm, **options):
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, **options),
        norm(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    module(torch.randn(8, 2, 9, 9))
    return module.eval()


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"stride": 2, "padding": (1, 2)}, {"padding": "same"}, {"dilation": 2}],
)
def test_norms_with_running_statistics_and_every_geometry(options):
    inputs = torch.randn(3, 2, 9, 9)
    check(normed(nn.BatchNorm2d, **options), inputs)
    check(normed(lambda c: nn.BatchNorm2d(c, affine=False), **options), inputs)
    check(normed(lambda c: nn.GroupNorm(2, c), **options), inputs)


@pytest.mark.parametrize("chosen", ["0.bias", "3.weight", "1.*", "6.*"])
def test_some_of_the_tensors(chosen):
    module = normed(nn.BatchNorm2d)
    check(module, torch.randn(3, 2, 9, 9), functionalise(module).layout.select(chosen))


def test_what_does_not_fit_is_run_anew(monkeypatch):
    module, inputs = build("convolutions", 7)
    problem = problem_of(module, inputs)
    network = problem.network
    outputs = network.apply(network.weights, inputs)
    expected = brute_jacobian(network, network.layout, inputs).flatten(0, 1)
    each = Jacobian.of(problem, network.weights, network.layout, outputs, kept=0)
    right, left = torch.randn(network.layout.size, 2), torch.randn(len(expected), 2)
    row = each._line.row_bytes(inputs, 0) // 2
    assert each.room == 0
    for room, kept in ((7 * row, 7), (2 * row, 2), (0, 0)):
        monkeypatch.setattr("coset.curvature.jacobian._PART", 2 * row)
        jacobian = replace(each, room=room)
        for _ in range(2):
            torch.testing.assert_close(jacobian.matmat(right), expected @ right)
            torch.testing.assert_close(jacobian.pull(left), expected.mT @ left)
        assert sum(run.rows for run in jacobian._runs) == kept


class Rounded(torch.autograd.Function):
    """A function whose author forbids second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient

    @staticmethod
    def jvp(ctx, change):
        return 2 * change


def test_a_network_without_second_derivatives_is_run_anew():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 2)

        def forward(self, x):
            return Rounded.apply(self.first(x))

    inputs = torch.randn(4, 3)
    problem = problem_of(Net(), inputs)
    network = problem.network
    jacobian = Jacobian.of(problem, network.weights, network.layout, torch.zeros(4, 2), kept=0)
    assert not jacobian._can_keep
