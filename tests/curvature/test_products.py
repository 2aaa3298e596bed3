"""Products with the Jacobian, in chunks, against the Jacobian itself."""

import pytest
import torch
from curvature_networks import NETWORKS, brute_jacobian, build
from torch import nn

from coset import CosetError, functionalise
from coset.curvature.products import Linearisation

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_products_are_those_of_the_jacobian_whatever_the_chunks(name, memory):
    module, inputs = build(name, 5)
    network = functionalise(module)
    jacobian = brute_jacobian(network, network.layout, inputs).flatten(0, 1)
    line = Linearisation(network, network.weights, network.layout, memory)
    directions = torch.randn(3, network.layout.size)
    pushed = line.push(inputs, directions)
    torch.testing.assert_close(pushed.flatten(1), directions @ jacobian.mT)
    cotangents = torch.randn_like(pushed)
    torch.testing.assert_close(line.pull(inputs, cotangents), cotangents.flatten(1) @ jacobian)


def test_backward_products_one_after_the_other_are_the_same(monkeypatch):
    module, inputs = build("mlp", 5)
    network = functionalise(module)
    line = Linearisation(network, network.weights, network.layout)
    cotangents = torch.randn(3, 5, 3)
    together = line.pull(inputs, cotangents)
    monkeypatch.setattr("coset.curvature.products._SIDE_BY_SIDE", 0)
    torch.testing.assert_close(line.pull(inputs, cotangents), together)


class Encoder(nn.Module):
    """Fused attention, whose fast kernels have no forward-mode derivative."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


def test_fused_attention_is_taken_apart():
    network = functionalise(Encoder())
    inputs = torch.randn(2, 4, 8)
    line = Linearisation(network, network.weights, network.layout)
    direction = torch.randn(1, network.layout.size)
    step = 1e-6
    moved = [
        network.apply(
            network.layout.unflatten(
                network.layout.flatten(network.weights) + sign * step * direction[0]
            ),
            inputs,
        )
        for sign in (1, -1)
    ]
    numeric = (moved[0] - moved[1]) / (2 * step)
    torch.testing.assert_close(line.push(inputs, direction)[0], numeric, rtol=1e-5, atol=1e-8)
    assert torch.backends.mha.get_fastpath_enabled()


class Branching(nn.Module):
    """Control flow that depends on values: vmap refuses it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        outputs = self.layer(x)
        return outputs if float(outputs.sum()) > 0 else 2 * outputs


def test_a_network_that_vmap_cannot_take_goes_one_direction_at_a_time():
    network = functionalise(Branching())
    inputs, directions = torch.randn(4, 2), torch.randn(3, 3)
    line = Linearisation(network, network.weights, network.layout)
    network.weights["layer.bias"].fill_(-100.0)  # on the second branch
    direct = 2 * (directions[:, :2] @ inputs.mT + directions[:, 2:])
    torch.testing.assert_close(line.push(inputs, directions).squeeze(2), direct)


class Opaque(torch.autograd.Function):
    """A function with a backward and no forward-mode derivative."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return Opaque.apply(self.layer(x))


def test_a_network_without_derivatives_is_refused():
    network = functionalise(Custom())
    line = Linearisation(network, network.weights, network.layout)
    with pytest.raises(CosetError, match="cannot be differentiated"):
        line.push(torch.randn(2, 2), torch.randn(1, 3))


def test_pictures_whose_channels_are_last_in_memory():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 2, 1))
    network, inputs = functionalise(module), torch.randn(2, 3, 6, 6)
    line = Linearisation(network, network.weights, network.layout)
    directions = torch.randn(2, network.layout.size)
    last = inputs.to(memory_format=torch.channels_last)
    torch.testing.assert_close(line.push(last, directions), line.push(inputs, directions))
