"""One point for every orbit."""

from collections.abc import Callable

import pytest
import torch
from tests.symmetry.discovered import NAMES, discovered, distance, repeated, seeded
from torch import Tensor, nn
from torch.func import functional_call

from coset.errors import CosetError
from coset.symmetry.discover import discover
from coset.symmetry.elements import Element
from coset.symmetry.removing.canonical import canonical_form, canonicalise
from coset.symmetry.removing.mass import minimise_mass
from coset.vocabulary import Weights
from coset.weights.network import weights_of
from coset.weights.stacking import stack, unstack

MEMBERS = 4


@pytest.mark.parametrize("name", NAMES)
def test_all_points_of_an_orbit_lead_to_one(name: str) -> None:
    """Single precision, random elements; and once more changes nothing."""
    found = discovered(name)
    group = found.group
    canonical = canonicalise(group, found.weights)
    elements = group.sample(generator=seeded(5), members=MEMBERS)
    orbit = group.act(elements, repeated(found.weights, MEMBERS))
    assert distance(canonicalise(group, orbit), canonical) < 1e-6
    assert distance(canonicalise(group, canonical), canonical) < 1e-6


@pytest.mark.parametrize("kind", ["permutations", "scalings"])
@pytest.mark.parametrize("name", ["relu_mlp", "tanh_mlp", "attention_einsum", "batch_norm_convnet"])
def test_one_kind_alone(name: str, kind: str) -> None:
    """All points that elements of that kind lead to have one form, and the others another."""
    found = discovered(name)
    group, identity = found.group, found.group.identity()
    full = group.sample(generator=seeded(5))
    alone, other = (
        Element(full.permutations, identity.scales),
        Element(identity.permutations, full.scales),
    )
    if kind == "scalings":
        alone, other = other, alone
    canonical = canonicalise(group, found.double, kinds=(kind,))
    moved = group.act(alone, found.double)
    assert distance(canonicalise(group, moved, kinds=(kind,)), canonical) < 1e-10
    assert distance(canonicalise(group, canonical, kinds=(kind,)), canonical) < 1e-10
    apart = canonicalise(group, group.act(other, found.double), kinds=(kind,))
    assert distance(apart, canonical) > 1e-2
    whole = canonicalise(group, found.double)
    assert distance(canonicalise(group, canonical), whole) < 1e-10


@pytest.mark.parametrize("kinds", [(), ("signs",), "permutations"])
def test_unknown_kinds_are_refused(kinds: tuple[str, ...]) -> None:
    found = discovered("relu_mlp")
    with pytest.raises(CosetError, match="needed some of 'permutations', 'scalings'"):
        canonicalise(found.group, found.weights, kinds=kinds)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_element_leads_to_the_canonical_weights(name: str) -> None:
    """So the function is kept: the element is one of the group."""
    found = discovered(name)
    form = canonical_form(found.group, found.double)
    acted = found.group.act(form.element, repeated(found.double, 1))
    assert distance(acted, {n: t.unsqueeze(0) for n, t in form.weights.items()}) < 1e-10


def test_perceptron_has_unit_rows_in_descending_order() -> None:
    found = discovered("relu_mlp")
    canonical = canonicalise(found.group, found.double)
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(
            canonical[name].norm(dim=1), torch.ones(len(canonical[name])).double()
        )
        assert (canonical[name][:, 0].diff() <= 0).all()
    inputs = torch.randn(7, 3, dtype=torch.float64, generator=seeded(0))
    module = found.case.factory().double()
    torch.testing.assert_close(
        functional_call(module, canonical, inputs), functional_call(module, found.double, inputs)
    )


def test_norms_get_unit_weights_of_either_sign() -> None:
    """|γ| is one; negative weights stay negative, since only positive scales pass a ReLU."""
    found = discovered("batch_norm_convnet")
    canonical = canonicalise(found.group, found.double)
    for name in ("1.weight", "4.weight"):
        torch.testing.assert_close(canonical[name].abs(), torch.ones_like(canonical[name]))
    assert (found.double["1.weight"] < 0).any()
    filters = canonical["0.weight"].flatten(1)
    torch.testing.assert_close(filters.norm(dim=1), torch.ones(4).double())
    assert (filters.pow(3).sum(1) > 0).all()


def test_values_of_attention_get_unit_rows_whatever_their_biases() -> None:
    """Their rows read a stream whose scales its own weights decide first; biases decide nothing."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.mix = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            x = self.embed(inputs)
            return self.head(x + self.mix(x, x, x, need_weights=False)[0])

    torch.manual_seed(0)
    module = Attention().double()
    group, weights = discover(module, torch.zeros(1, 5, 3).double()), weights_of(module)
    for size in (0.0, 1e-12, 1.0):
        weights["mix.in_proj_bias"] = torch.full((12,), size, dtype=torch.float64)
        found = canonicalise(group, weights)
        values = found["mix.in_proj_weight"][8:]
        torch.testing.assert_close(values.norm(dim=1), torch.ones(4, dtype=torch.float64))


def test_heads_are_sorted_by_their_sorted_units() -> None:
    found = discovered("attention_grouped_queries")
    canonical = canonicalise(found.group, found.double)
    query = canonical["query.weight"].reshape(2, 2, 3, -1)
    assert (query[:, 0, :, 0].diff(dim=1) <= 0).all()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def test_dead_and_tied_units_keep_numbers_finite() -> None:
    module = perceptron()
    group = discover(module, torch.zeros(1, 3))
    weights = weights_of(module)
    weights["0.weight"][1] = weights["0.bias"][1] = 0.0
    weights["0.weight"][2] = weights["0.weight"][3]
    weights["0.bias"][2] = weights["0.bias"][3]
    canonical = canonicalise(group, weights)
    assert all(tensor.isfinite().all() for tensor in canonical.values())
    assert distance(canonicalise(group, canonical), canonical) < 1e-6
    inputs = torch.randn(9, 3, generator=seeded(1))
    torch.testing.assert_close(
        functional_call(module, canonical, inputs), functional_call(module, weights, inputs)
    )


def with_dead_units(weights: Weights, seed: int) -> Weights:
    """About a third of the rows and of the columns, and half of the biases, are zero."""
    generator = seeded(seed)

    def kept(size: int, part: float) -> Tensor:
        return (torch.rand(size, generator=generator) > part).double()

    dead = {}
    for name, tensor in weights.items():
        shape = tensor.shape
        drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
        if tensor.dim() == 1:
            dead[name] = drawn * kept(shape[0], 0.5)
        else:
            dead[name] = drawn * kept(shape[0], 0.3)[:, None] * kept(shape[1], 0.3)
    return dead


def of_three_numbers(weights: Weights, seed: int) -> Weights:
    """Weights of minus one, zero and one: directions that agree, cubes that cancel."""
    generator = seeded(seed)
    return {
        name: torch.randint(-1, 2, tensor.shape, generator=generator).double()
        if tensor.dim() > 1
        else torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        for name, tensor in weights.items()
    }


@pytest.mark.parametrize("draw", [with_dead_units, of_three_numbers])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Identity])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_special_weights_do_not_part_an_orbit(
    draw: Callable[[Weights, int], Weights], activation: type[nn.Module], precision: torch.dtype
) -> None:
    """What nothing decides (a unit that nothing comes into) decides nothing else."""
    module = nn.Sequential(nn.Linear(3, 8), activation(), nn.Linear(8, 6), activation())
    module.append(nn.Linear(6, 2))
    group = discover(module, torch.zeros(1, 3))
    for seed in range(20):
        weights = draw(weights_of(module), seed)
        weights = {name: tensor.to(precision) for name, tensor in weights.items()}
        canonical = canonicalise(group, weights)
        orbit = group.act(group.sample(generator=seeded(seed)), weights)
        assert distance(canonicalise(group, canonical), canonical) < 1e-5
        assert distance(canonicalise(group, orbit), canonical) < 1e-5
        inputs = torch.randn(9, 3, generator=seeded(1)).to(precision)
        torch.testing.assert_close(
            functional_call(module, canonical, inputs), functional_call(module, weights, inputs)
        )


def test_equal_rows_are_told_apart_by_what_they_feed() -> None:
    """Units with the same incoming weights are sorted by the values they send on."""
    module = perceptron()
    group = discover(module, torch.zeros(1, 3))
    weights = weights_of(module)
    weights["0.weight"][:] = weights["0.weight"][0]
    weights["0.bias"][:] = weights["0.bias"][0]
    orbit = group.act(group.sample(generator=seeded(2), members=5), repeated(weights, 5))
    assert distance(canonicalise(group, orbit), canonicalise(group, weights)) < 1e-6


def test_zero_norm_weight_is_skipped() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    group = discover(module, torch.zeros(2, 3))
    weights = weights_of(module)
    weights["1.weight"] = torch.tensor([0.0, 2.0, -3.0, 0.5])
    canonical = canonicalise(group, weights)
    assert sorted(canonical["1.weight"].abs().tolist()) == pytest.approx([0.0, 1.0, 1.0, 1.0])
    inputs = torch.randn(6, 3, generator=seeded(3))
    torch.testing.assert_close(
        functional_call(module, canonical, inputs), functional_call(module, weights, inputs)
    )


class Cycle(nn.Module):
    """A product of three linear maps: two scales a unit among three tensors and the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Parameter(torch.randn(4, 3)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = (x @ w.T for w in (self.first, self.second, self.third))
        return (a * b * c) @ self.out.T


def test_members_are_independent() -> None:
    module = Cycle()
    group = discover(module, torch.zeros(1, 3))
    members = [weights_of(Cycle()) for _ in range(3)]
    together = canonicalise(group, stack(members))
    for one, member in zip(unstack(together), members, strict=True):
        assert distance(one, canonicalise(group, member)) == 0


def test_arguments_are_kept_and_wrong_names_refused() -> None:
    found = discovered("relu_mlp")
    before = {name: tensor.clone() for name, tensor in found.weights.items()}
    canonicalise(found.group, found.weights)
    assert distance(found.weights, before) == 0
    with pytest.raises(CosetError, match="unknown"):
        canonicalise(found.group, {**before, "7.weight": torch.zeros(2)})


def test_weights_that_have_no_canonical_form_are_refused() -> None:
    found = discovered("relu_mlp")
    for wrong, words in (
        ({**found.weights, "2.weight": found.weights["2.weight"] * torch.nan}, "not numbers"),
        ({**found.weights, "2.bias": found.weights["2.bias"] + torch.inf}, r"2\.bias"),
        ({**found.weights, "0.weight": found.weights["0.weight"].long()}, "torch.int64"),
        (found.module, r"take coset\.weights_of"),
    ):
        with pytest.raises(CosetError, match=words):
            canonicalise(found.group, wrong)
        with pytest.raises(CosetError, match=words):
            minimise_mass(found.group, wrong)
    with pytest.raises(CosetError, match="group=None"):
        canonicalise(None, found.weights)  # type: ignore[arg-type]
