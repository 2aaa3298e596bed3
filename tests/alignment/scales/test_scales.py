"""Scales fitted to norms, against the plain way that scales the weights in every round."""

import numpy as np
import pytest
import torch
from tests.alignment.reference import permutations_only
from tests.symmetry.discovered import discovered
from torch import nn

from coset import ByWeights, discover, match, models, weights_of
from coset.alignment.by_weights import ascend
from coset.alignment.scales.fitting import (
    distance_when_scaled,
    explained_by_norms,
    fit_by_weights,
    fit_scales,
    rescaled,
    spread_of_scales,
    squared_distance,
    with_scales,
)
from coset.alignment.scales.layout import scaled_axes, stretching
from coset.alignment.scales.norms import Units, fit_logs
from coset.alignment.scales.tables import Runs
from coset.symmetry.elements import Element


class Outer(nn.Module):
    """A tensor that three factors scale: units, units and units."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 5)
        self.core = nn.Parameter(torch.randn(6, 4, 5))
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        one, two = self.one(x).relu(), self.two(x).relu()
        pairs = (one[:, :, None] * two[:, None, :]).flatten(1)
        return self.last((pairs @ self.core.flatten(1).T).relu())


class Split(nn.Module):
    """A tensor of one axis of which scales run along a part, before a vector."""

    def __init__(self):
        super().__init__()
        self.last = nn.Parameter(torch.randn(12))
        self.first, self.bias = nn.Linear(3, 4, bias=False), nn.Parameter(torch.randn(4))

    def forward(self, x):
        units = (self.first(x) + self.bias).relu()
        return (units[:, :, None] * self.last.view(4, 3)).sum(1)


CASES = {
    "split": (Split, (1, 3)),
    "perceptron": (lambda: models.mlp(5, (6, 7), 3), (1, 5)),
    "residual": (lambda: models.resnet20(width=1), (1, 3, 8, 8)),
    "convolutions": (models.convnet, (1, 1, 8, 8)),
    "three factors": (Outer, (1, 3)),
}


def pair(name, generator):
    build, shape = CASES[name]
    module = build().double().eval()
    group = discover(module, torch.zeros(shape, dtype=torch.float64))
    own = {
        n: torch.rand(w.shape, dtype=w.dtype, generator=generator) + 0.1
        for n, w in weights_of(module).items()
    }
    other = {n: w * torch.rand(w.shape, dtype=w.dtype, generator=generator) for n, w in own.items()}
    return group, own, other


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("to_another", [True, False])
@pytest.mark.parametrize("most", [1, 5])
def test_norms_tell_all_that_is_needed(name, to_another, most, generator):
    group, own, other = pair(name, generator)
    first = next(iter(own.values()))
    first[0] = 0  # a unit without a norm there
    to = other if to_another else None
    assert scaled_axes(group) is not None
    plain = fit_by_weights(group, own, to, most=most, tolerance=0.0)
    found = fit_scales(group, own, to, most=most, tolerance=0.0)
    assert any(bool((scales != 1).any()) for scales in plain.values())
    for factor, scales in plain.items():
        torch.testing.assert_close(found[factor], scales, rtol=1e-9, atol=1e-12)
    acted, stretched = group.act(with_scales(group, found), own), rescaled(group, own, found)
    for factor in stretching(group):
        for site in factor.sites:
            if "running" not in site.tensor:
                torch.testing.assert_close(stretched[site.tensor], acted[site.tensor])


def test_spread_does_not_depend_on_the_order_of_units(generator):
    group, own, other = pair("residual", generator)
    element = Element(group.sample(generator=generator).permutations, group.identity().scales)
    moved = group.act(element, own)
    assert spread_of_scales(group, moved, other) == pytest.approx(
        spread_of_scales(group, own, other), rel=1e-9
    )
    assert spread_of_scales(group, moved, own) < 1e-12


def test_spread_sees_a_rescaling_and_no_biases_near_zero(generator):
    """A bias of a millionth instead of a thousandth says nothing of the scale of its unit."""
    group = discover(models.mlp(5, (6, 7), 3), torch.zeros(1, 5))
    own = weights_of(models.mlp(5, (6, 7), 3))
    quiet = {n: w * (1e-3 if n.endswith("bias") else 1) for n, w in own.items()}
    quieter = {n: w * (1e-6 if n.endswith("bias") else 1) for n, w in own.items()}
    assert spread_of_scales(group, quieter, quiet) < 0.01
    scales = {n: torch.linspace(0.3, 3, t.numel()) for n, t in group.identity().scales.items()}
    stretched = group.act(Element(group.identity().permutations, scales), quiet)
    assert spread_of_scales(group, stretched, quiet) > 0.5


def test_unrelated_networks_are_compared_once(monkeypatch, generator):
    """The second comparison, at a common scale, is for networks whose scales differ."""
    runs = []
    monkeypatch.setattr(
        "coset.alignment.by_weights.ascend", lambda *given: runs.append(1) or ascend(*given)
    )
    group = discover(models.mlp(20, (30, 30), 3), torch.zeros(1, 20))
    one, other = (weights_of(models.mlp(20, (30, 30), 3)) for _ in range(2))
    match(group, one, to=other, by=ByWeights())
    assert len(runs) == 1
    element = group.sample(generator=generator)
    match(group, group.act(element, other), to=other, by=ByWeights())
    assert len(runs) == 4  # as they are, at a common scale at a glance, and in earnest


@pytest.mark.parametrize("name", CASES)
def test_tables_tell_how_scales_change_the_distance(name, generator):
    group, own, other = pair(name, generator)
    axes, scales = scaled_axes(group), fit_scales(group, own, other, most=2)
    logs = np.concatenate([scales[n].log().flatten().numpy() for n in axes.factors])
    found = axes.change(logs, axes.sums(own, own), axes.sums(own, other))

    def distance(weights):
        return sum(float((weights[n] - other[n]).square().sum()) for n in axes.tables)

    assert found == pytest.approx(distance(rescaled(group, own, scales)) - distance(own), rel=1e-9)
    assert axes.apart(own, other) == pytest.approx(distance(own), rel=1e-12)
    np.testing.assert_allclose(axes.squares(own), axes.of_units(axes.sums(own, own)), rtol=1e-12)
    few = fit_scales(group, own, other, most=12, tolerance=1e-3)
    assert distance_when_scaled(group, own, other) == pytest.approx(
        squared_distance(rescaled(group, own, few), other), rel=1e-9
    )


def test_norms_explain_what_a_rescaling_has_done(generator):
    """By hand: of ``v = (3, 4)`` and ``w = (6, 8)`` all, of ``w = (-4, 3)`` nothing."""
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    group = discover(module, torch.zeros(1, 2))
    first = torch.tensor([[3.0, 4.0], [4.0, 3.0]])
    there = {"0.weight": first, "2.weight": torch.tensor([[1.0, 1.0]])}
    twice = {**there, "0.weight": 2 * first}
    turned = {**there, "0.weight": torch.tensor([[-4.0, 3.0], [3.0, -4.0]])}
    assert explained_by_norms(group, twice, there) == pytest.approx(1)
    assert explained_by_norms(group, turned, there) == pytest.approx(0, abs=1e-6)
    large = {n: 1e25 * w for n, w in twice.items()}  # too large to be squared
    far = {n: 1e25 * w for n, w in there.items()}
    assert explained_by_norms(group, large, far) == pytest.approx(1)


@pytest.mark.parametrize("scales", ["automatic", "match"])
@pytest.mark.parametrize("name", ["perceptron", "residual", "convolutions"])
def test_noise_does_not_hide_a_rescaling(name, scales, generator):
    """Lone biases near zero are mostly noise, and have little say."""
    build, shape = CASES[name]
    module = build().double().eval()
    group = discover(module, torch.zeros(shape, dtype=torch.float64))
    there = weights_of(module)
    noisy = {
        n: w + 0.05 * w.std(correction=0) * torch.randn(w.shape, dtype=w.dtype, generator=generator)
        for n, w in there.items()
    }
    stretched = {
        f.name: (0.3 * torch.randn(group.tables.shape(f), generator=generator).double()).exp()
        for f in stretching(group)
    }
    order = Element(group.sample(generator=generator).permutations, group.identity().scales)
    moved = group.act(order, group.act(with_scales(group, stretched), noisy))
    found = match(group, moved, to=there, by=ByWeights(scales=scales))
    left = squared_distance(found.weights, there)
    assert left < 1.1 * squared_distance(noisy, there)


def test_layers_as_a_whole_are_brought_to_scale_in_a_deep_chain():
    """By the closed form: with ``ρ = 2 x[l] - x[l-1] - x[l+1]`` in a chain without ends."""
    count = 40
    wanted = np.sin(np.arange(count)) * 3

    def squares(logs):
        steps = np.diff(wanted - logs, prepend=0, append=0)
        return np.exp(2 * np.stack([steps[:-1], steps[1:]]))

    units = Units(Runs.of([1] * count), np.ones((2, count)))
    found = fit_logs(units, squares, np.ones((2, count)), most=200, tolerance=1e-12)
    np.testing.assert_allclose(found, wanted, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "seed"), [("unet_with_skip", 24), ("family_point_transformer", 7)]
)
def test_weights_in_single_precision_do_not_lead_scales_astray(name, seed):
    """Where whole weights are scaled in every round, and rounds end as noise."""
    case = discovered(name)
    group, there = case.group, case.weights
    sampled = group.sample(generator=torch.Generator().manual_seed(seed)).scales
    scales = {factor.name: sampled[factor.name].abs() for factor in stretching(group)}
    found = fit_scales(group, group.act(with_scales(group, scales), there), there)
    for factor, wanted in scales.items():
        torch.testing.assert_close(found[factor], 1 / wanted, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize(
    ("name", "seed"),
    [("rms_norm_mlp", 14), ("rms_norm_mlp", 23), ("square_mlp", 87), ("layer_norm_mlp", 4)],
)
def test_norms_that_explain_the_distance_are_a_reason_to_compare_anew(name, seed):
    """Scales mislead the first comparison, and no scales mend what it has found."""
    case, generator = discovered(name), torch.Generator().manual_seed(seed)
    group = case.group
    one, other = (group.act(group.sample(generator=generator), case.double) for _ in range(2))
    assert match(group, one, to=other).squared_distance < 1e-20


@pytest.mark.parametrize("scales", ["automatic", "match", "canonical", "mass"])
@pytest.mark.parametrize("left", [0.0, 1e-10, 1e-4, 1e-2])
@pytest.mark.parametrize("side", ["in", "out"])
def test_a_unit_that_all_but_died_in_the_target_is_not_followed(side, left, scales, generator):
    module = models.mlp(10, (20, 15), 4).double()
    group = discover(module, torch.zeros(1, 10, dtype=torch.float64))
    own = weights_of(module)
    there = {n: w.clone() for n, w in own.items()}
    first, bias, second = list(there.values())[:3]
    for part in (first[3], bias[3]) if side == "in" else (second[:, 3],):
        part *= left
    moved = group.act(group.sample(generator=generator), own)
    found = match(group, moved, to=there, by=ByWeights(scales=scales))
    assert found.squared_distance < 1.1 * squared_distance(own, there)


@pytest.mark.parametrize("size", [1e-25, 1e-18, 1e18, 1e25])
@pytest.mark.parametrize("scales", ["automatic", "match"])
def test_tiny_and_huge_networks_have_scales_too(scales, size, generator):
    module = models.mlp(5, (6, 7), 3).double()
    group = discover(module, torch.zeros(1, 5, dtype=torch.float64))
    there = {n: size * w for n, w in weights_of(module).items()}
    moved = group.act(group.sample(generator=generator), there)
    found = match(group, moved, to=there, by=ByWeights(scales=scales))
    torch.testing.assert_close(found.weights, there, rtol=1e-9, atol=1e-12 * size)


@pytest.mark.parametrize("size", [1e-33, 1e-25, 1e-19, 1e-16])
@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("net", ["family_mlp", "attention_chunked", "rnn_tanh"])
def test_weights_whose_products_single_precision_loses_are_matched(net, anchored, size, generator):
    case = discovered(net)
    small = {n: w.float() * size for n, w in case.double.items()}
    moved = case.group.act(
        permutations_only(case.group, case.group.sample(generator=generator)), small
    )
    by = ByWeights(scales="keep", anchored=anchored, restarts=0 if anchored else 9)
    found = match(case.group, moved, to=small, by=by)
    assert all(torch.equal(found.weights[n], w) for n, w in small.items())
    assert {w.dtype for w in found.weights.values()} == {torch.float32}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_written_to_the_weights(name, generator):
    group, own, other = pair(name, generator)
    before = {n: w.clone() for n, w in (own | {f"to {k}": v for k, v in other.items()}).items()}
    fit_scales(group, own, other)
    explained_by_norms(group, own, other)
    spread_of_scales(group, own, other)
    after = own | {f"to {k}": v for k, v in other.items()}
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_networks_that_are_no_copies_get_the_scales_of_their_target_too(generator):
    """A rescaling lowers their distance by less than half, as the rest of it stays."""
    torch.manual_seed(0)
    module = models.mlp(20, (48, 48), 5)
    group, there = discover(module, torch.zeros(1, 20)), weights_of(module)
    other = weights_of(models.mlp(20, (48, 48), 5))
    scales = {
        f.name: (0.4 * torch.randn(group.tables.shape(f), generator=generator)).exp()
        for f in stretching(group)
    }
    stretched = group.act(with_scales(group, scales), other)
    by = {rule: ByWeights(scales=rule) for rule in ("automatic", "match", "keep")}
    apart = {
        rule: squared_distance(match(group, stretched, to=there, by=way).weights, there)
        for rule, way in by.items()
    }
    assert apart["automatic"] == pytest.approx(apart["match"], rel=0.05)
    assert 0.5 * apart["keep"] < apart["automatic"] < 0.75 * apart["keep"]
    assert squared_distance(match(group, other, to=there).weights, there) == pytest.approx(
        squared_distance(match(group, other, to=there, by=by["keep"]).weights, there)
    )
