"""Scales fitted to sums of squares, against the plain way that scales weights in every round."""

import pytest
import torch
from tests.alignment.reference import permutations_only
from tests.symmetry.discovered import discovered
from torch import nn

from coset import ByWeights, discover, match, models, weights_of
from coset.alignment.by_weights import ascend
from coset.alignment.plans import matched_tensors
from coset.alignment.scales import (
    fit_scales,
    rescaled,
    squared_distance,
    stretching,
    with_scales,
)
from coset.symmetry.action import region
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


def norms(group, weights, factor):
    """For each unit of a factor the norms of what its scale multiplies, and of what it divides."""
    found = torch.zeros(2, *group.tables.shape(factor), dtype=torch.float64)
    for site in factor.sites:
        if site.tensor in matched_tensors(group) and site.power:
            squares = region(weights[site.tensor], 0, site).double().square()
            kept = [*site.parents, *site.digits]
            rest = [d for d in range(squares.dim()) if d not in kept]
            summed = squares.sum(rest) if rest else squares
            summed = summed.permute([sorted(kept).index(d) for d in kept])
            found[int(site.power < 0)] += summed.reshape(found.shape[1:])
    return found.sqrt()


def ratios(group, weights, factor):
    multiplied, divided = norms(group, weights, factor)
    return multiplied / divided if bool((divided > 0).all()) else multiplied


NESTED = ("family_vision_transformer", "shufflenet", "gru", "group_norm_convnet")


@pytest.mark.parametrize("name", [*CASES, *NESTED])
def test_ratios_of_norms_are_those_of_the_target(name, generator):
    """The weights themselves are scaled, and all norms taken anew."""
    if name in CASES:
        group, own, other = pair(name, generator)
    else:
        group, own = discovered(name).group, discovered(name).double
        other = {
            n: w * (0.5 + torch.rand(w.shape, dtype=w.dtype, generator=generator))
            for n, w in own.items()
        }
    after = group.act(with_scales(group, fit_scales(group, own, other)), own)
    for factor in stretching(group):
        squares = norms(group, other, factor).square().flatten(1)
        clear = (squares >= 0.01 * squares.mean(1, keepdim=True)).all(0)  # others count for less
        found, wanted = (ratios(group, given, factor).flatten() for given in (after, other))
        torch.testing.assert_close(found[clear], wanted[clear], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_at_a_common_scale_all_units_of_a_factor_have_one_ratio(name, generator):
    group, own, _ = pair(name, generator)
    after = rescaled(group, own, fit_scales(group, own, None))
    for factor in stretching(group):
        found = ratios(group, after, factor)
        torch.testing.assert_close(found, found.log().mean().exp().expand_as(found))


def test_unrelated_networks_are_compared_in_earnest_once(monkeypatch, generator):
    """The second comparison, at a common scale, is for networks whose scales differ."""
    runs = []
    monkeypatch.setattr(
        "coset.alignment.by_weights.ascend", lambda *given: runs.append(1) or ascend(*given)
    )
    group = discover(models.mlp(20, (30, 30), 3), torch.zeros(1, 20))
    one, other = (weights_of(models.mlp(20, (30, 30), 3)) for _ in range(2))
    match(group, one, to=other, by=ByWeights())
    assert len(runs) == 2  # as they are, and quickly at a common scale
    element = group.sample(generator=generator)
    match(group, group.act(element, other), to=other, by=ByWeights())
    assert len(runs) == 3  # a rescaling that leaves no doubts is fitted to what was found


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


def test_layers_as_a_whole_are_brought_to_scale_in_a_deep_chain(generator):
    """Forty layers of one unit: all of the target's weights come back."""
    net = nn.Sequential(*(layer for _ in range(40) for layer in (nn.Linear(1, 1), nn.ReLU())))
    net = nn.Sequential(*net, nn.Linear(1, 1)).double()
    group = discover(net, torch.zeros(1, 1, dtype=torch.float64))
    there = weights_of(net)
    moved = group.act(group.sample(generator=generator), there)
    scales = fit_scales(group, moved, there)
    torch.testing.assert_close(group.act(with_scales(group, scales), moved), there)


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
    rescaled(group, own, fit_scales(group, own, other))
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
