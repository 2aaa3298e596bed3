"""Weights compared by the outputs they cause."""

import pytest
import torch
from torch import nn

from coset import ByCovariance, ByWeights, CosetError, discover, match
from coset.weights import weights_of


def perceptron(bias=True):
    return nn.Sequential(nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, 2))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
    )


@pytest.mark.parametrize(
    ("build", "shape"), [(perceptron, (6,)), (lambda: perceptron(False), (6,))]
)
def test_inner_products_are_those_of_the_outputs(build, shape, double):
    torch.manual_seed(0)
    inputs = torch.randn(40, *shape) @ torch.randn(6, 6)
    one, other = build(), build()
    by = ByCovariance(one, inputs)
    seen = [by.seen(weights_of(net)) for net in (one, other)]
    assert [layer.weight for layer in by.layers] == ["0.weight"]
    rows = [
        torch.cat([w["0.weight"], w["0.bias"][:, None]], 1) if "0.bias" in w else w["0.weight"]
        for w in seen
    ]
    outputs = [net[0](inputs).detach() for net in (one, other)]
    torch.testing.assert_close(rows[0] @ rows[1].T, outputs[0].T @ outputs[1] / 40)
    assert torch.equal(seen[0]["2.weight"], one[2].weight)


def test_convolutions_are_compared_by_their_maps(double):
    torch.manual_seed(0)
    inputs = torch.randn(7, 2, 5, 5)
    one, other = convolutional(), convolutional()
    by = ByCovariance(one, inputs)
    rows = [
        torch.cat([w["0.weight"].flatten(1), w["0.bias"][:, None]], 1)
        for w in (by.seen(weights_of(net)) for net in (one, other))
    ]
    maps = [net[0](inputs).detach().transpose(0, 1).flatten(1) for net in (one, other)]
    torch.testing.assert_close(rows[0] @ rows[1].T, maps[0] @ maps[1].T / maps[0].shape[1])


def test_weights_of_dead_inputs_have_no_say(double):
    """Half of the inputs are always zero and their weights are large noise, new in every sample."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 12), nn.Tanh(), nn.Linear(12, 3))
    inputs = torch.randn(200, 40)
    inputs[:, 20:] = 0
    group, centre = discover(net, inputs[:1]), weights_of(net)
    found, plain = 0, 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        noisy = {name: w.clone() for name, w in centre.items()}
        noisy["0.weight"][:, 20:] += torch.randn(12, 20, generator=generator)
        element = group.sample(generator=generator)
        moved = group.act(element, noisy)
        by = ByCovariance(net, inputs)
        back = match(group, moved, to=centre, by=by).weights["0.weight"][:, :20]
        found += int(torch.equal(back, centre["0.weight"][:, :20]))
        back = match(group, moved, to=centre, by=ByWeights()).weights["0.weight"][:, :20]
        plain += int(torch.equal(back, centre["0.weight"][:, :20]))
    assert found == 5
    assert plain < 5


def test_layers_that_read_no_data_are_compared_as_they_are():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs):
            return self.last(torch.relu(self.twice(torch.relu(self.twice(inputs)))))

    assert ByCovariance(Tied(), torch.randn(3, 4)).layers == ()
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 2))
    assert ByCovariance(grouped, torch.randn(3, 2, 5, 5)).layers == ()


def test_scales_are_refused():
    with pytest.raises(CosetError, match="permutations and signs alone"):
        ByCovariance(perceptron(), torch.randn(3, 6), ByWeights())
