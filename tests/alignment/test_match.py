"""Matching against brute force, planted elements and the published loop."""

import itertools

import pytest
import torch
from tests.alignment.reference import (
    ResidualStream,
    brute_force,
    group_of,
    inner,
    network,
    permutations_only,
    plain_loop,
    random_weights,
)
from tests.symmetry.cases import CASES
from tests.symmetry.discovered import discovered
from torch import nn

from coset import CosetError, discover, stack, weights_of
from coset.alignment.by_weights import ByWeights
from coset.alignment.match import match
from coset.alignment.proposals import cycles
from coset.symmetry.elements import Element

QUICK = (
    "relu_mlp",
    "tanh_mlp",
    "maxout",
    "tied_autoencoder_tanh",
    "residual_stream",
    "group_norm_convnet",
    "layer_norm_convnet",
    "unet_with_skip",
    "shufflenet",
    "attention_grouped_queries",
    "gru",
    "family_resnet_batch_relu",
    "encoder_norm_first",
)
LIGHT = [
    pytest.param(case, marks=[] if case.name in QUICK else [pytest.mark.slow], id=case.name)
    for case in CASES
    if not case.heavy
]


@pytest.mark.parametrize("units", [2, 4, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_hidden_layer_equals_brute_force(units, seed):
    generator = torch.Generator().manual_seed(seed)
    net = network(3, units, 2)
    group = group_of(net, 3)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    result = match(group, b, to=a)
    fixed = inner({"b": a["2.bias"]}, {"b": b["2.bias"]})
    assert result.objective == pytest.approx(brute_force(group, b, a) - fixed)


def test_two_hidden_layers_never_beat_brute_force(generator):
    net = network(3, 4, 4, 2)
    group = group_of(net, 3)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    best = brute_force(group, b, a)
    fixed = inner({"b": a["4.bias"]}, {"b": b["4.bias"]})
    result = match(group, b, to=a, by=ByWeights(restarts=10), generator=generator)
    assert result.objective <= best - fixed + 1e-9
    assert result.objective >= inner(a, b) - fixed - 1e-9


@pytest.mark.parametrize("case", LIGHT)
def test_planted_elements_are_undone(case):
    """Nested, fused, recurrent, signed, rescaled: every architecture comes back to rounding."""
    module = case.factory()
    group = discover(module, case.example())
    own = {n: w.double() for n, w in weights_of(module).items()}
    element = group.sample(generator=torch.Generator().manual_seed(1))
    moved = group.act(element, own)
    result = match(group, moved, to=own)
    for name, tensor in own.items():
        torch.testing.assert_close(result.weights[name], tensor, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(group.act(result.element, moved), result.weights)


TABLE = [
    (10, 30, 50, 5, 1, 0.0),
    (10, 30, 50, 5, 4, 0.0),
    (10, 64, 128, 10, 4, 0.0),
    (10, 64, 128, 10, 4, 0.5),
    (32, 64, 128, 10, 8, 1.0),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_planted_table_is_recovered_in_every_run(row):
    """Gaussian weights on a residual stream: where the published order mostly fails."""
    *sizes, noise = row
    net = ResidualStream(*sizes)
    group = group_of(net.double(), sizes[0])
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        own = random_weights(weights_of(net), generator)
        element = permutations_only(group, group.sample(generator=generator))
        moved = group.act(element, own)
        moved = {
            n: w + noise * torch.randn(w.shape, generator=generator).double()
            for n, w in moved.items()
        }
        found = match(group, moved, to=own).element.permutations
        wanted = group.inverse(element).permutations
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_at_least_as_good_as_the_best_of_ten_published_loops():
    net = ResidualStream(6, 16, 16, 4, 3)
    group = group_of(net.double(), 6)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        a, b = trained_pair(net, generator)
        best = max(plain_loop(group, b, a, generator) for _ in range(10))
        ours = match(group, b, to=a)
        assert inner(a, ours.weights) >= best * (1 - 1e-9)


def test_restarts_climb_from_the_best_so_far():
    net = ResidualStream(6, 16, 16, 4, 3)
    group = group_of(net.double(), 6)
    higher = 0
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        a, b = trained_pair(net, generator)
        reached = [
            inner(a, match(group, b, to=a, by=ByWeights(restarts=count)).weights)
            for count in (0, 2, 8)
        ]
        assert reached == sorted(reached)  # the first restarts of eight are those of two
        higher += reached[2] > reached[0] * (1 + 1e-9)
    assert higher >= 2


@pytest.mark.parametrize("seed", [1, 4, 6, 7])
def test_units_compared_as_they_are_may_lead_to_the_scales_of_the_target(seed):
    """Twins that are told apart as they are, and not at a common scale."""
    (case,) = (case for case in CASES if case.name == "llama_untied")
    torch.manual_seed(0)
    module = case.factory().double()
    group = discover(module, case.example())
    generator = torch.Generator().manual_seed(5)
    own = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in weights_of(module).items()
    }
    moved = group.act(group.sample(generator=torch.Generator().manual_seed(seed)), own)
    assert match(group, moved, to=own).squared_distance < 1e-16 * inner(own, own)


class Recurrent(nn.Module):
    """Units whose matrix is permuted and flipped on both sides: the objective is quadratic."""

    def __init__(self, units):
        super().__init__()
        self.recurrent = nn.RNN(2, units, batch_first=True)
        self.head = nn.Linear(units, 2)

    def forward(self, x):
        return self.head(self.recurrent(x)[0])


def recurrent_pairs(units, count):
    """A group and pairs of random weights."""
    net = Recurrent(units).double()
    group = group_of(net, 4, 2)
    generator = torch.Generator().manual_seed(0)
    pairs = [[random_weights(weights_of(net), generator) for _ in range(2)] for _ in range(count)]
    return group, pairs


def test_what_goes_too_far_as_a_whole_is_done_in_part(monkeypatch):
    group, pairs = recurrent_pairs(16, 10)
    reached = []
    for parts in (cycles, lambda plan, move: ()):
        monkeypatch.setattr("coset.alignment.ascent.cycles", parts)
        reached.append(sum(match(group, b, to=a).objective for a, b in pairs))
    assert reached[0] > 1.2 * reached[1]


def test_restarts_find_the_best_of_few_recurrent_units():
    """Brute force over six orders and eight signs; without flips 15 of these 20 are found."""
    group, pairs = recurrent_pairs(3, 20)
    (factor,), (sign,) = group.permutations, group.scalings
    elements = [
        Element({factor.name: torch.tensor(order)}, {sign.name: torch.tensor(signs).double()})
        for order in itertools.permutations(range(3))
        for signs in itertools.product((1, -1), repeat=3)
    ]
    found = 0
    for a, b in pairs:
        result = match(group, b, to=a, by=ByWeights(restarts=20))
        fixed = inner({"b": a["head.bias"]}, {"b": b["head.bias"]})
        best = max(inner(group.act(element, b), a) for element in elements) - fixed
        assert result.objective < best + 1e-9
        found += result.objective > best - 1e-9
    assert found >= 18


def trained_pair(net, generator):
    """Two networks trained from different weights on one synthetic task."""
    inputs = torch.randn(256, 6, generator=generator).double()
    teacher = torch.randn(6, 4, generator=generator).double()
    targets = (inputs @ teacher).tanh()
    pair = []
    for _ in range(2):
        torch.manual_seed(int(torch.randint(1000, (), generator=generator)))
        for child in net.modules():
            if isinstance(child, nn.Linear):
                child.reset_parameters()
        optimiser = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(60):
            optimiser.zero_grad()
            nn.functional.mse_loss(net(inputs), targets).backward()
            optimiser.step()
        pair.append(weights_of(net))
    return pair


def test_scales_are_matched_or_kept(generator):
    """ReLU units scaled by two: matched they come back, kept they only move."""
    net = network(4, 5, 2, activation=nn.ReLU)
    group, own = group_of(net, 4), weights_of(net)
    identity = group.identity()
    double = {name: 2 * table for name, table in identity.scales.items()}
    moved = group.act(Element(identity.permutations, double), own)
    matched = match(group, moved, to=own, by=ByWeights(scales="match"))
    kept = match(group, moved, to=own, by=ByWeights(scales="keep"))
    automatic = match(group, moved, to=own)
    torch.testing.assert_close(matched.weights, own)
    torch.testing.assert_close(automatic.weights, own)
    torch.testing.assert_close(kept.weights, moved)


@pytest.mark.parametrize("seed", range(8))
def test_units_that_live_under_two_factors_wait_for_both(seed):
    """Channels that two grouped layers cut in different ways, into two groups each."""
    case, generator = discovered("shufflenet"), torch.Generator().manual_seed(seed)
    own = random_weights(case.double, generator)
    element = permutations_only(case.group, case.group.sample(generator=generator))
    found = match(case.group, case.group.act(element, own), to=own, by=ByWeights(scales="keep"))
    assert found.squared_distance == 0


@pytest.mark.parametrize("scales", ["canonical", "mass"])
def test_gauges_undo_rescalings(scales, generator):
    """Twins under permutations and scales meet in either gauge and come back exactly."""
    net = network(4, 6, 5, 2, activation=nn.ReLU)
    group = group_of(net, 4)
    own = random_weights(weights_of(net), generator)
    moved = group.act(group.sample(generator=generator), own)
    result = match(group, moved, to=own, by=ByWeights(scales=scales))
    torch.testing.assert_close(result.weights, own, rtol=1e-7, atol=1e-9)


def test_automatic_scales_are_kept_between_unrelated_networks(generator):
    """The published objective: brute force over permutations alone, on a ReLU network."""
    net = network(3, 5, 2, activation=nn.ReLU)
    group = group_of(net, 3)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    fixed = inner({"b": a["2.bias"]}, {"b": b["2.bias"]})
    result = match(group, b, to=a)
    assert result.objective == pytest.approx(brute_force(group, b, a) - fixed)


def test_equal_seeds_give_equal_results(generator):
    net = network(5, 8, 8, 3)
    group = group_of(net, 5)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    by = ByWeights(restarts=3)
    one, other = (
        match(group, b, to=a, by=by, generator=torch.Generator().manual_seed(4)) for _ in range(2)
    )
    assert one.objective == other.objective
    assert all(torch.equal(one.weights[n], other.weights[n]) for n in one.weights)


def test_single_precision_in_single_precision_out(generator):
    net = network(5, 8, 3).float()
    group = group_of(net.double(), 5)
    own = {n: w.float() for n, w in weights_of(net).items()}
    element = permutations_only(group, group.sample(generator=generator))
    result = match(group, group.act(element, own), to=own)
    assert all(torch.equal(result.weights[n], own[n]) for n in own)
    assert result.weights["0.weight"].dtype == torch.float32


def test_distance_follows_from_the_objective(generator):
    net = network(5, 8, 3)
    group = group_of(net, 5)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    result = match(group, b, to=a)
    squares = sum(float(w[n].square().sum()) for w in (a, b) for n in a)
    fixed = inner({"b": a["2.bias"]}, {"b": b["2.bias"]})  # no factor moves it
    assert result.squared_distance == pytest.approx(squares - 2 * (result.objective + fixed))
    assert result.pair_distance == (result.squared_distance, result.transpositions)
    assert result.distance == result.squared_distance


def test_the_distance_is_that_of_all_parameters_and_no_statistics(generator):
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 2)).double()
    group, a = group_of(net, 3), weights_of(net)
    b = {n: w + torch.rand(w.shape, generator=generator).double() for n, w in a.items()}
    result = match(group, b, to=a)
    wanted = sum(
        float((result.weights[name] - a[name]).square().sum()) for name, _ in net.named_parameters()
    )
    assert result.pair_distance == (pytest.approx(wanted), result.transpositions)
    shifted = match(group, {**a, "3.bias": a["3.bias"] + 2.0}, to=a)
    assert shifted.squared_distance == pytest.approx(8.0)


def test_dead_units_stay_at_home(generator):
    """Three dead units among eight: they are counted, and only the living ones move."""
    net = network(4, 8, 2)
    group = group_of(net, 4)
    a = random_weights(weights_of(net), generator)
    dead = torch.tensor([1, 4, 6])
    a["0.weight"][dead], a["0.bias"][dead], a["2.weight"][:, dead] = 0.0, 0.0, 0.0
    order = torch.arange(8)
    order[[0, 2]] = torch.tensor([2, 0])
    name = group.permutations[0].name
    moved = group.act(Element({name: order}, {}), a)
    result = match(group, moved, to=a)
    assert result.ties == 3
    assert result.transpositions == 1
    assert result.element.permutations[name].tolist() == order.tolist()


def test_a_network_without_symmetries(generator):
    net = nn.Linear(3, 2).double()
    own = weights_of(net)
    result = match(group_of(net, 3), own, to=own)
    assert (result.transpositions, result.ties, result.objective) == (0, 0, 0.0)


def bad_inputs(own):
    missing = {n: w for n, w in own.items() if n != "0.bias"}
    other = {**own, "0.weight": torch.zeros(9, 4, dtype=torch.float64)}
    undefined = {**own, "2.weight": own["2.weight"] * torch.nan}
    unknown = {**own, "third.weight": torch.zeros(1)}
    return {
        "no '0.bias'": missing,
        "'0.weight' of shape": other,
        "'2.weight' that are": undefined,
        "unknown 'third.weight'": unknown,
    }


@pytest.mark.parametrize("which", ["weights", "to"])
def test_bad_input_is_named(which, generator):
    net = network(4, 8, 2)
    group, own = group_of(net, 4), weights_of(net)
    for words, bad in bad_inputs(own).items():
        given = {"weights": own, "to": own, which: bad}
        with pytest.raises(CosetError, match=words):
            match(group, given["weights"], to=given["to"])


@pytest.mark.parametrize(
    "by",
    [ByWeights(), ByWeights(anchored=False, scales="keep"), ByWeights(scales="match")],
    ids=str,
)
def test_every_number_is_looked_at(by):
    """Those of tensors that nothing moves and of running statistics too."""
    net = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5, 2)
    )
    group, own = discover(net.eval(), torch.zeros(1, 2, 3, 3)), weights_of(net)
    for name, tensor in own.items():
        if not tensor.is_floating_point():
            continue
        bad = {**own, name: tensor.clone()}
        bad[name].view(-1)[-1] = torch.inf
        for words, given in (
            ("the weights to match to", (own, bad)),
            ("the weights to move", (bad, own)),
        ):
            with pytest.raises(CosetError, match=f"{words} with 1 numbers in '{name}'"):
                match(group, given[0], to=given[1], by=by)


def test_impossible_options_are_refused():
    with pytest.raises(CosetError, match="restarts=-1"):
        ByWeights(restarts=-1)
    with pytest.raises(CosetError, match="needed one of automatic"):
        ByWeights(scales="none")


def test_nothing_is_changed_in_place(generator):
    net = network(4, 8, 2)
    group = group_of(net, 4)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    copies = stack([a, b])
    match(group, b, to=a)
    assert all(torch.equal(copies[n][0], a[n]) and torch.equal(copies[n][1], b[n]) for n in a)


def test_types_may_differ(generator):
    """Double precision against single: compared in double, returned as given."""
    net = network(3, 40, 40, 2)
    group = group_of(net, 3)
    own = weights_of(net)
    moved = group.act(permutations_only(group, group.sample(generator=generator)), own)
    single = {name: tensor.float() for name, tensor in moved.items()}
    result = match(group, single, to=own)
    assert all(tensor.dtype == torch.float32 for tensor in result.weights.values())
    for name, tensor in own.items():
        torch.testing.assert_close(result.weights[name].double(), tensor, rtol=1e-6, atol=1e-7)
    bad = {**single, "0.bias": single["0.bias"] * torch.nan}
    with pytest.raises(CosetError, match=r"to move with 40 numbers in '0\.bias'"):
        match(group, bad, to=own)


def test_products_beyond_the_type_are_named():
    net = network(3, 4, 4, 2).float()
    group = group_of(net, 3)
    huge = {name: torch.full_like(tensor, 1e20) for name, tensor in weights_of(net).items()}
    with pytest.raises(CosetError, match="too large for their type"):
        match(group, huge, to=huge)
    wide = {name: tensor.double() for name, tensor in huge.items()}
    assert match(group, wide, to=wide).transpositions == 0
