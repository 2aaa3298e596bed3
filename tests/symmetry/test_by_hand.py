"""Factors written by hand: accepted when they hold, refused by name when they do not."""

import math

import pytest
import torch
from torch import nn

from coset import (
    CosetError,
    PermutationByHand,
    ScalingByHand,
    Site,
    discover,
    symmetry_error,
    weights_of,
)
from coset.symmetry.by_hand import group_by_hand
from coset.symmetry.runner import module_runner


class Branching(nn.Module):
    """Its path depends on data, so it cannot be traced."""

    def __init__(self, hidden=6, norm=False):
        super().__init__()
        self.first = nn.Linear(3, hidden)
        self.norm = nn.LayerNorm(hidden) if norm else nn.Identity()
        self.second = nn.Linear(hidden, 2)

    def forward(self, x):
        h = self.norm(self.first(x).float()).relu()  # a cast to single precision inside
        return self.second(h) if h.sum() > 1 else 2 * self.second(h)


HIDDEN = PermutationByHand(
    "hidden", 6, [("first.weight", 0), ("first.bias", 0), ("second.weight", 1)]
)
SCALES = ScalingByHand(
    "scales", 6, [("first.weight", 0, 1), ("first.bias", 0, 1), ("second.weight", 1, -1)]
)
EXAMPLE = torch.zeros(2, 3)


class Attention(nn.Module):
    """Two heads of three units; the value's units pass through the average over tokens."""

    def __init__(self):
        super().__init__()
        self.value = nn.Linear(4, 6, bias=False)
        self.score = nn.Linear(4, 2, bias=False)
        self.output = nn.Linear(6, 4, bias=False)

    def forward(self, x):
        weights = self.score(x).softmax(0)  # tokens, heads
        mixed = torch.einsum("th,thu->hu", weights, self.value(x).unflatten(-1, (2, 3)))
        return self.output(mixed.flatten())


HEADS = PermutationByHand(
    "heads", 2, [("value.weight", 0), ("score.weight", 0), ("output.weight", 1)]
)
UNITS = PermutationByHand("units", 3, [("value.weight", 0), ("output.weight", 1)], ("heads",))
UNIT_SCALES = ScalingByHand(
    "sizes", 3, [("value.weight", 0, 1), ("output.weight", 1, -1)], "nonzero", ("heads",)
)


def test_discover_names_the_line_and_points_here():
    with pytest.raises(CosetError, match=r"test_by_hand\.py:\d+ .*h\.sum\(\) > 1.*groups="):
        discover(Branching(), EXAMPLE)


def test_factors_that_hold_make_a_group():
    """6! permutations and six positive scales, although the module casts to single precision."""
    module = Branching()
    group = discover(module, EXAMPLE, groups=[HIDDEN, SCALES])
    assert group.log_order() == pytest.approx(math.log(720))
    assert group.scalings[0].along == "hidden"
    assert symmetry_error(module, group, EXAMPLE) < 1e-12
    assert "no factor written for it (3)" in str(group)
    assert "axis 0: free, moved by hidden" in group.explain("first.weight")


def test_found_and_written_factors_agree():
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    sites = [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)]
    powers = [("0.weight", 0, 1), ("0.bias", 0, 1), ("2.weight", 1, -1)]
    written = group_by_hand(
        net,
        torch.zeros(1, 3),
        [PermutationByHand("0", 5, sites), ScalingByHand("0.weight:scale", 5, powers)],
    )
    found = discover(net, torch.zeros(1, 3))
    assert written.permutations == found.permutations
    assert written.scalings == found.scalings


def test_nested_factors():
    """Heads 2!, inside each of the two 3!; scales of the units are moved with them."""
    module, example = Attention(), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    group = group_by_hand(module, example, [HEADS, UNITS, UNIT_SCALES])
    assert group.log_order() == pytest.approx(math.log(2 * 6 * 6))
    assert group.scalings[0].along == "units"
    assert group.permutations[1].within == ("heads",)
    found = discover(module, example)
    assert found.log_order() == pytest.approx(group.log_order())
    assert symmetry_error(module, group, example) < 1e-12


def test_all_ancestors_are_filled_in():
    net = nn.Sequential(nn.Linear(2, 12, bias=False), nn.Linear(12, 1, bias=False))
    sites = [("0.weight", 0), ("1.weight", 1)]
    group = group_by_hand(
        net,
        torch.zeros(1, 2),
        [
            PermutationByHand("a", 2, sites),
            PermutationByHand("b", 2, sites, ("a",)),
            PermutationByHand("c", 3, sites, ("b",)),
        ],
    )
    assert group.permutations[2].within == ("a", "b")
    assert group.log_order() == pytest.approx(math.log(2 * 2**2 * 6**4))


def test_full_sites_and_whole_tensors():
    """A fused layer: only the first four of eight rows are the hidden units; one common scale."""

    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.fused = nn.Linear(3, 8, bias=False)
            self.head = nn.Linear(4, 2, bias=False)

        def forward(self, x):
            h, gate = self.fused(x).chunk(2, -1)
            return self.head(h) * gate.softmax(-1).amax(-1, keepdim=True)

    rows = Site("fused.weight", ((0, 1, 0, 4),), (4, 3), (0,))
    group = group_by_hand(
        Fused(),
        torch.zeros(1, 3),
        [
            PermutationByHand("hidden", 4, [rows, ("head.weight", 1)]),
            ScalingByHand(
                "whole",
                1,
                [
                    Site("fused.weight", ((0, 1, 0, 4),), (4, 3), (), power=1),
                    ("head.weight", 0, -1),
                ],
                "nonzero",
            ),
        ],
    )
    assert group.permutations[0].sites[0] == rows


def test_tied_tensors_answer_to_both_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x):
            return (self.one(x) * self.two(x)).sum(-1)

    group = group_by_hand(
        Tied(), torch.zeros(1, 3), [PermutationByHand("a", 4, [("two.weight", 0)])]
    )
    assert group.permutations[0].sites[0].tensor == "one.weight"


REFUSED = {
    "no such tensor": (
        [PermutationByHand("hidden", 6, [("first.wieght", 0)])],
        r"'first\.wieght' in factor 'hidden'.*'first\.weight'",
    ),
    "nothing like it": ([PermutationByHand("hidden", 6, [("zzz", 0)])], "'zzz'.*it has first"),
    "no such axis": ([PermutationByHand("hidden", 6, [("first.bias", 1)])], "shape .6,."),
    "wrong size": ([PermutationByHand("hidden", 4, [("first.weight", 0)])], "multiple of 4"),
    "a site is missing": (
        [PermutationByHand("hidden", 6, HIDDEN.sites[:2])],
        r"'hidden', which changes the outputs by \d.*not among its sites",
    ),
    "scales that do not cancel": (
        [ScalingByHand("scales", 6, [*SCALES.sites[:2], ("second.weight", 1, 1)])],
        "'scales', which changes the outputs",
    ),
    "signs through a rectifier": (
        [ScalingByHand("scales", 6, SCALES.sites, "sign")],
        "'scales', which changes",
    ),
    "the same name twice": ([HIDDEN, HIDDEN], "'hidden' twice"),
    "no name": ([PermutationByHand("", 6, HIDDEN.sites)], "no name"),
    "one unit": ([PermutationByHand("hidden", 1, HIDDEN.sites)], "size of at least 2"),
    "no sites": ([PermutationByHand("hidden", 6, [])], "0 sites"),
    "the same site twice": (
        [PermutationByHand("hidden", 6, [*HIDDEN.sites, HIDDEN.sites[0]])],
        "same site twice",
    ),
    "a permutation with a power": (
        [PermutationByHand("hidden", 6, SCALES.sites)],
        "permutations have no power",
    ),
    "a scale without a power": ([ScalingByHand("scales", 6, HIDDEN.sites)], "other than 0"),
    "a parent not yet written": (
        [PermutationByHand("hidden", 6, HIDDEN.sites, ("heads",))],
        "within 'heads'",
    ),
    "another domain": ([ScalingByHand("scales", 6, SCALES.sites, "real")], "domain 'real'"),
    **{
        f"a full site with {what}": (
            [PermutationByHand("hidden", 6, [Site("first.weight", *rest)])],
            "in factor 'hidden'; needed a block",
        )
        for what, rest in {
            "another view": ((), (6, 4), (0,)),
            "another digit": ((), (6, 3), (1,)),
            "a digit too many": ((), (6, 3), (2,)),
            "a block outside": (((0, 1, 3, 6),), (6, 3), (0,)),
            "a block that does not divide": (((0, 4, 0, 1),), (4, 3), (0,)),
        }.items()
    },
    "the same units twice": (
        [HIDDEN, PermutationByHand("again", 6, HIDDEN.sites)],
        "does not compose",
    ),
}


@pytest.mark.parametrize(("factors", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(factors, message):
    with pytest.raises(CosetError, match=f"(?s){message}"):
        group_by_hand(Branching(), EXAMPLE, factors)


def test_scales_that_forget_the_nesting_are_refused():
    flat = ScalingByHand("sizes", 6, UNIT_SCALES.sites, "nonzero")
    with pytest.raises(CosetError, match="does not compose"):
        group_by_hand(Attention(), torch.ones(5, 4), [HEADS, UNITS, flat])


def test_a_random_forward_is_refused():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 4)

        def forward(self, x):
            return self.linear(x).sum(-1) + torch.rand(())

    with pytest.raises(CosetError, match="two answers to the same input"):
        group_by_hand(
            Noisy(),
            torch.zeros(1, 2),
            [PermutationByHand("units", 4, [("linear.weight", 0), ("linear.bias", 0)])],
        )


def test_weights_that_do_not_fit_are_refused_by_name():
    module = Branching()
    group = group_by_hand(module, EXAMPLE, [HIDDEN])
    weights = weights_of(module)
    with pytest.raises(CosetError, match=r"'first\.bias' of shape \(7,\)"):
        group.act(group.identity(), {**weights, "first.bias": torch.zeros(7)})
    with pytest.raises(CosetError, match=r"unknown 'third\.weight'"):
        group.act(group.identity(), {**weights, "third.weight": torch.zeros(7)})


def test_the_module_is_not_changed_and_runs_in_double_precision():
    module = Branching(norm=True).train()
    before = weights_of(module)
    run = module_runner(module)
    (output,) = run({n: t.double() for n, t in before.items()}, [torch.ones(1, 3)])
    assert output.dtype == torch.float64
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(module).items())
    assert module.first.weight.dtype == torch.float32


def test_nested_outputs_are_flattened():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            h = self.linear(x)
            return {"a": h, "b": [h.argmax(-1), (h,)], "c": None}

    module = Several()
    outputs = module_runner(module)({}, [torch.ones(1, 2)])
    assert [out.dtype for out in outputs] == [torch.float64, torch.int64, torch.float64]


def test_factors_are_not_believed_because_a_network_is_silent():
    """Outputs that are zero at the first draw agree with anything: others are drawn."""
    wrong = PermutationByHand("hidden", 2, [("0.weight", 0)])
    for seed in range(20):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1), nn.ReLU())
        with torch.no_grad():
            net[2].weight.copy_(-net[2].weight.abs())
            net[2].bias.fill_(-1.0)
        with pytest.raises(CosetError, match="changes the outputs"):
            discover(net, torch.zeros(1, 2), groups=[wrong])


def test_networks_that_answer_nothing_are_refused():
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2), nn.Sigmoid())
    factor = PermutationByHand("hidden", 6, [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)])
    net.append(nn.Threshold(1.0, 0.0))
    with pytest.raises(CosetError, match="all zero"):
        discover(net, torch.zeros(1, 3), groups=[factor])
