"""The recorded uses give the same Jacobian as automatic differentiation."""

import pytest
import torch
from curvature_networks import NETWORKS, Scaled, brute_jacobian, build
from torch import Tensor, nn

from coset import CosetError, functionalise
from coset.curvature.capture import Recorded, record
from coset.curvature.measure import blocks_of
from coset.curvature.rows import gradient_rows
from coset.weights.layout import Layout

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("name", NETWORKS)
def test_jacobian(name):
    module, inputs = build(name)
    network = functionalise(module)
    assert not record(network, network.weights, network.layout, inputs).foreign
    rows = gradient_rows(network, network.weights, network.layout, inputs)
    torch.testing.assert_close(rows, brute_jacobian(network, network.layout, inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_visit_hands_over_the_same_gradients_once(name):
    module, inputs = build(name)
    network = functionalise(module)
    recorded = record(network, network.weights, network.layout, inputs)
    cotangent = torch.randn_like(recorded.outputs)
    for _ in range(2):  # nothing is left behind in the graph
        visited = []
        recorded.visit(cotangent, lambda *found, to=visited: to.append(found))
        expected = recorded.gradients(cotangent)
        assert sorted(names for names, _ in visited) == sorted(expected)
        for names, found in visited:
            torch.testing.assert_close(found, expected[names])


def test_an_error_on_the_way_leaves_no_listener():
    network = functionalise(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    recorded = record(network, network.weights, network.layout, torch.randn(4, 2))
    cotangent, visited = torch.ones(4, 2), []

    def fail(names, found):
        visited.append(names)
        raise CosetError("got enough")

    with pytest.raises(CosetError, match="got enough"):
        recorded.visit(cotangent, fail)
    recorded.gradients(cotangent)
    assert len(visited) == 1


@pytest.mark.parametrize("rows", range(1, 10))
@pytest.mark.parametrize(
    "name", ["vision", "language", "by hand", "torch attention", "decoder", "lstm", "gru"]
)
def test_as_many_positions_as_examples(name, rows):
    module, inputs = build(name, rows)
    network = functionalise(module)
    found = gradient_rows(network, network.weights, network.layout, inputs)
    torch.testing.assert_close(found, brute_jacobian(network, network.layout, inputs))
    assert not record(network, network.weights, network.layout, inputs).foreign


def test_a_weight_of_two_kinds_is_named():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) + self.layer.weight.sum(0)

    network, inputs = functionalise(Both()), torch.randn(4, 3)
    recorded = record(network, network.weights, network.layout, inputs)
    assert recorded.foreign == {"layer.weight": "two kinds of layers"}
    rows = gradient_rows(network, network.weights, network.layout, inputs)
    torch.testing.assert_close(rows, brute_jacobian(network, network.layout, inputs))


@pytest.mark.parametrize("name", ["mlp", "convolutions", "transposed", "tokens"])
@pytest.mark.parametrize("pattern", ["*weight", "*bias", "0.*"])
def test_parts_of_layers(name, pattern):
    module, inputs = build(name)
    network = functionalise(module)
    layout = network.layout.select(pattern)
    rows = gradient_rows(network, network.weights, layout, inputs)
    torch.testing.assert_close(rows, brute_jacobian(network, layout, inputs))


def test_blocks_cover_every_weight_once():
    module, inputs = build("convolutions")
    network = functionalise(module)
    recorded = record(network, network.weights, network.layout, inputs)
    found = torch.cat([b.entries.flatten() for b in blocks_of(recorded, network.layout)])
    assert torch.equal(found.sort().values, torch.arange(network.layout.size))


def test_unknown_uses_are_named_and_still_differentiated():
    network, inputs = functionalise(Scaled()), torch.randn(4, 4)
    recorded = record(network, network.weights, network.layout, inputs)
    assert set(recorded.foreign) == {"gain"}
    with pytest.raises(CosetError, match=r"'gain' \(read by einsum\)"):
        blocks_of(recorded, network.layout)
    rows = gradient_rows(network, network.weights, network.layout, inputs)
    torch.testing.assert_close(rows, brute_jacobian(network, network.layout, inputs))


def test_distances_are_differentiated_in_turn():
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(torch.randn(5, 4))

        def forward(self, x):
            return torch.cdist(x, self.centres)

    network, inputs = functionalise(Distances()), torch.randn(3, 4)
    rows = gradient_rows(network, network.weights, network.layout, inputs)
    apart = network.weights["centres"] - inputs.unsqueeze(1)  # n centres features
    unit = apart / apart.norm(dim=-1, keepdim=True)
    expected = torch.einsum("nkf,kc->nkcf", unit, torch.eye(5))  # jacrev makes the same mistake
    torch.testing.assert_close(rows, expected.flatten(2))


def test_examples_behind_the_first_axis_are_not_guessed():
    class Flattened(nn.Module):
        def __init__(self):
            super().__init__()
            self.each, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):  # (n, t, 2): positions are folded into the examples
            return self.last(self.each(x.flatten(0, 1)).reshape(len(x), -1, 3).mean(1))

    network, inputs = functionalise(Flattened()), torch.randn(4, 5, 2)
    recorded = record(network, network.weights, network.layout, inputs)
    assert set(recorded.foreign) == {"each.weight", "each.bias"}
    rows = gradient_rows(network, network.weights, network.layout, inputs)
    torch.testing.assert_close(rows, brute_jacobian(network, network.layout, inputs))


def test_batch_statistics_are_refused():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))
    network = functionalise(module)
    with pytest.raises(CosetError, match="batch norm in training mode"):
        record(network, network.weights, network.layout, torch.randn(4, 2))


def test_outputs_that_are_not_numbers_are_refused():
    network = functionalise(nn.Linear(1, 1))
    with pytest.raises(CosetError, match="not finite"):
        gradient_rows(network, network.weights, network.layout, torch.full((1, 1), torch.inf))


class Viewing(nn.Module):
    """Views what a convolution returns, which channels that come last do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().view(len(x), -1))


def test_networks_may_view_what_convolutions_return():
    module = Viewing().double()
    network = functionalise(module)
    inputs = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    recorded = record(network, network.weights, network.layout, inputs)
    torch.testing.assert_close(recorded.outputs.detach(), module(inputs).detach())


@pytest.mark.parametrize("last", [nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 3, padding=1, bias=False)])
def test_rows_of_a_last_layer_with_pixels_are_its_inputs_put_in_place(last, monkeypatch):
    """Without a backward pass, and without the square of the number of outputs in memory."""
    module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), last.double())
    inputs = torch.randn(3, 2, 5, 4)
    network = functionalise(module)
    layout = Layout.of({name: network.weights[name] for name in network.weights if name[0] == "2"})
    monkeypatch.setattr(Recorded, "gradients", None)
    rows = gradient_rows(network, network.weights, layout, inputs)
    given = layout.restrict(network.weights)
    wanted = torch.func.jacrev(lambda w: network.apply({**network.weights, **w}, inputs))(given)
    flat = torch.cat([wanted[name].reshape(*rows.shape[:2], -1) for name in layout.names], dim=-1)
    torch.testing.assert_close(rows, flat)
    some = torch.tensor([5, 0, 2])
    found = gradient_rows(network, network.weights, layout, inputs, index=some)
    assert torch.equal(found, rows[:, :, some])
