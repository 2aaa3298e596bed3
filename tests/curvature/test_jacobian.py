"""The Jacobian over a data set, by products and as a matrix, against automatic derivatives."""

import pytest
import torch
from curvature_networks import NETWORKS, brute_jacobian, build, problem_of
from torch import nn

from coset.curvature.jacobian import Jacobian

pytestmark = pytest.mark.usefixtures("double")


def check(module, inputs, chosen="*"):
    problem = problem_of(module, inputs)
    network = problem.network
    layout = network.layout.select(chosen)
    outputs = network.apply(network.weights, inputs)
    expected = brute_jacobian(network, layout, inputs).flatten(0, 1)
    right, left = torch.randn(layout.size, 2), torch.randn(len(expected), 2)
    for kept in (0, 1 << 20):
        found = Jacobian.of(problem, network.weights, layout, outputs, kept=kept)
        assert (found.matrix is None) == (kept == 0)
        assert found.shape == expected.shape
        torch.testing.assert_close(found.matmat(right), expected @ right)
        torch.testing.assert_close(found @ right[:, 0], expected @ right[:, 0])
        torch.testing.assert_close(found.pull(left), expected.mT @ left)
        torch.testing.assert_close(found.adjoint().matmat(left), expected.mT @ left)


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
    check(normed(nn.BatchNorm2d), torch.randn(3, 2, 9, 9), chosen)
