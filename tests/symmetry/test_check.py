"""What the numerical check notices: false invariances, small outputs, outputs that vanish."""

import importlib
from collections.abc import Callable

import pytest
import torch
from tests.symmetry.discovered import seeded
from torch import Tensor, nn
from torch.func import functional_call

from coset.errors import CosetError
from coset.symmetry.check import Probe, difference, random_scales, symmetry_error
from coset.symmetry.describing.drawing import draw
from coset.symmetry.discover import discover
from coset.symmetry.elements import ScaleInvariance
from coset.symmetry.idealised import idealised
from coset.symmetry.tracing import trace
from coset.weights.network import weights_of

search = importlib.import_module("coset.symmetry.discover")


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.GroupNorm(1, 3)
    ).eval()


EXAMPLE = torch.zeros(2, 1, 6, 6)


def test_false_invariances_are_dropped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group norm over all channels divides out one scale of the layer, not one of each filter."""
    true = discover(normalised(), EXAMPLE).invariances
    assert [(i.tensor, i.groups, i.bias) for i in true] == [
        ("0.weight", "filter", "0.bias"),
        ("3.weight", "layer", "3.bias"),
    ]
    wrong = (true[0], ScaleInvariance("3", "3.weight", "filter", 0, 3, "3.bias"))
    monkeypatch.setattr(search, "find_invariances", lambda *_: list(wrong))
    search._KNOWN.clear()
    group = discover(normalised(), EXAMPLE)
    search._KNOWN.clear()
    assert group.invariances == (true[0],)
    pin = group.pinned[-1]
    assert (pin.tensor, pin.axis, pin.reason) == ("3.weight", None, "failed the numerical check")


class ByHand(nn.Module):
    """Norms written out, with every kind of epsilon."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        one = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        two = h / h.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        three = h / (1e-6 + h.abs().amax(-1, keepdim=True))
        return self.out(one + two + three)


@pytest.mark.parametrize(
    ("module", "example"), [(normalised(), EXAMPLE), (ByHand(), torch.zeros(4, 3))]
)
def test_idealised_networks_forget_scales(module: nn.Module, example: Tensor) -> None:
    """Exactly, though the epsilon of the network itself is seen."""
    group = discover(module, example)
    assert group.invariances
    graph = trace(module, example)
    weights = {name: tensor.double() for name, tensor in weights_of(module).items()}
    probe = Probe.at(graph, weights, weights, (example,), generator=seeded(0))
    moved = probe.rescaled(group.invariances, generator=seeded(1))
    assert probe.idealised().change(moved) < 1e-12
    assert probe.change(moved) > 1e-9
    assert len(idealised(graph).nodes) == len(graph.nodes)


class SmallGates(nn.Module):
    """Gated units of weights near 0.02 before a norm by hand, as language models begin."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, bias=False) for _ in range(3))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.down(nn.functional.gelu(self.gate(x)) * self.up(x))
        return h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def test_small_activations_do_not_hide_an_invariance() -> None:
    torch.manual_seed(0)
    group = discover(SmallGates(), torch.zeros(2, 8))
    assert {(i.tensor, i.groups) for i in group.invariances} == {
        ("up.weight", "layer"),
        ("down.weight", "layer"),
    }


def test_scales_of_groups_are_equal_inside_a_group() -> None:
    grouped = ScaleInvariance("0", "0.weight", "channel-group", 0, 2)
    scales = random_scales(grouped, 6, generator=seeded(0)).reshape(2, 3)
    assert torch.equal(scales, scales[:, :1].expand(2, 3))
    assert float(scales[0, 0]) != float(scales[1, 0])
    whole = ScaleInvariance("0", "0.weight", "layer")
    assert random_scales(whole, 6, generator=seeded(0)).unique().numel() == 1


def test_small_outputs_are_compared_with_their_size() -> None:
    small = torch.tensor([2e-9, -1e-9], dtype=torch.float64)
    assert difference([small], [small + 1e-9]) == pytest.approx(0.5 / 1.5 * 1.0, rel=1e-6)
    large = torch.tensor([3.0, 0.0])
    assert difference([large], [large + 0.5]) == 0.5
    infinite = torch.tensor([torch.inf, 1.0])
    assert difference([infinite], [infinite]) == 0.0
    assert difference([infinite], [torch.zeros(2)]) == torch.inf


def test_tiny_outputs_do_not_hide_a_false_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of size 1e-10 change by as much: less than any absolute tolerance."""

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

        def forward(self, x: Tensor) -> Tensor:
            return 1e-10 * self.layers(x)

    module = Tiny()
    sound = discover(module, torch.zeros(1, 3))
    search._KNOWN.clear()
    act = type(sound).act

    def broken(group, element, weights):
        moved = act(group, element, weights)
        return {**moved, "layers.2.weight": weights["layers.2.weight"]}

    monkeypatch.setattr(type(sound), "act", broken)
    group = discover(module, torch.zeros(1, 3))
    search._KNOWN.clear()
    assert not group.permutations
    assert {pin.reason for pin in group.pinned} >= {"failed the numerical check"}


def test_outputs_that_vanish_are_named() -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) * 1e-200 * 1e-200

    with pytest.raises(CosetError, match="all zero"):
        discover(Silent(), torch.zeros(1, 3))


@pytest.mark.parametrize("last", [nn.Identity(), nn.ReLU()], ids=["open", "rectified"])
def test_groups_do_not_depend_on_which_units_are_dead(last: nn.Module) -> None:
    """Of two units, or of one rectified output, a probe may see none: then others are drawn.

    The first draws are silent for one network in four; here each of forty must answer.
    """
    example = (torch.zeros(1, 2),)
    layers = [nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False), last]
    net = nn.Sequential(*layers)
    graph = trace(net, example)
    for _ in range(40):
        weights = {name: torch.randn_like(tensor) for name, tensor in weights_of(net).items()}
        group = search.group_of(graph, weights, example)
        assert [factor.size for factor in group.permutations] == [2]
        assert len(group.scalings) == 1


def test_operations_of_torch_modules_name_the_module() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    assert functional_call(net, weights_of(net), torch.zeros(1, 3)).shape == (1, 2)
    sources = {node.op: node.source for node in trace(net, torch.zeros(1, 3)).nodes}
    assert sources["linear"] == "module 1.1"
    alone = trace(nn.Softmax(-1), torch.zeros(1, 3)).nodes[-1]
    assert alone.source == "Softmax"


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_wrapped_modules_are_the_modules_inside(wrap: Callable[[nn.Module], nn.Module]) -> None:
    module = normalised()
    group = discover(module, EXAMPLE)
    assert symmetry_error(wrap(module), group, torch.randn(2, 1, 6, 6)) < 1e-12
    assert draw(wrap(module), EXAMPLE, group) == draw(module, EXAMPLE, group)


def test_nothing_to_compare_is_refused() -> None:
    """No element, or no outputs: an error of zero would say that all is well."""
    module, group = normalised(), discover(normalised(), EXAMPLE)
    for call, words in (
        (lambda: symmetry_error(module, group, EXAMPLE, elements=0), "elements=0"),
        (lambda: symmetry_error(module, group, EXAMPLE[:0]), "no outputs"),
        (lambda: symmetry_error(module, None, EXAMPLE), "group=None"),
        (lambda: discover(module, EXAMPLE[:0]), "at least one row"),
    ):
        with pytest.raises(CosetError, match=words):
            call()
