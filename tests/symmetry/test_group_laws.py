"""Every test network: the group is the one derived by hand, and obeys the laws of a group."""

import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.symmetry.discovered import NAMES, Discovered, discovered, distance, repeated, seeded
from tests.symmetry.probe import continuous_scalings, true_continuous_scalings
from torch import nn

from coset.errors import CosetError
from coset.symmetry.check import symmetry_error
from coset.symmetry.discover import discover
from coset.weights.stacking import stack, unstack

EXACT = 1e-12
SMALL = [
    "relu_mlp",
    "squared_relu",
    "maxout",
    "residual_stream",
    "shared_linear",
    "weight_normalisation",
    "batch_norm_tanh",
    "attention_grouped_queries",
    "family_optunet",
]
seeds = given(seed=st.integers(0, 2**32 - 1))
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=NAMES)
def found(request: pytest.FixtureRequest) -> Discovered:
    return discovered(request.param)


def test_group_is_the_one_derived_by_hand(found: Discovered) -> None:
    case, group = found.case, found.group
    permutations = sorted((f.size, len(f.within)) for f in group.permutations)
    scalings = sorted((f.size, f.domain) for f in group.scalings if f.size > 1)
    assert tuple(permutations) == case.permutations
    assert tuple(scalings) == case.scalings
    assert tuple(sorted((i.tensor, i.groups) for i in group.invariances)) == case.invariances
    for known in group.invariances:
        rows = group.shapes[known.tensor][known.axis]
        expected = {"filter": rows, "layer": 1}.get(known.groups, known.count)
        assert known.count == expected
        assert rows % known.count == 0
    assert group.log_order() == pytest.approx(case.log_order)
    if case.continuous is not None:
        assert continuous_scalings(group) == case.continuous


def test_nothing_failed_and_what_is_not_read_is_reported(found: Discovered) -> None:
    assert not [pin for pin in found.group.pinned if "numerical check" in pin.reason]
    reported = {pin.tensor for pin in found.group.pinned if "never read" in pin.reason}
    assert reported.issuperset(found.case.unread)
    touched = {s.tensor for f in found.group.permutations for s in f.sites}
    touched |= {s.tensor for f in found.group.scalings for s in f.sites}
    assert touched.isdisjoint(found.case.unread)


def test_elements_keep_the_function(found: Discovered) -> None:
    error = symmetry_error(found.module, found.group, found.example, elements=2)
    assert error < 1e-9


@seeds
@few
def test_composition_acts_like_both(found: Discovered, seed: int) -> None:
    group, generator = found.group, seeded(seed)
    first, then = group.sample(generator=generator), group.sample(generator=generator)
    both = group.act(group.compose(first, then), found.double)
    assert distance(both, group.act(then, group.act(first, found.double))) < EXACT


@seeds
@few
def test_identity_inverse_and_associativity(found: Discovered, seed: int) -> None:
    group, generator, weights = found.group, seeded(seed), found.double
    a, b, c = (group.sample(generator=generator) for _ in range(3))
    assert distance(group.act(group.identity(), weights), weights) == 0
    assert distance(group.act(group.inverse(a), group.act(a, weights)), weights) < EXACT
    left = group.compose(group.compose(a, b), c)
    right = group.compose(a, group.compose(b, c))
    neutral = group.compose(a, group.inverse(a))
    for name, table in left.permutations.items():
        assert torch.equal(table, right.permutations[name])
        assert torch.equal(neutral.permutations[name], group.identity().permutations[name])
    for name, table in left.scales.items():
        torch.testing.assert_close(table, right.scales[name], rtol=EXACT, atol=0)
        torch.testing.assert_close(
            neutral.scales[name], torch.ones_like(table), rtol=EXACT, atol=EXACT
        )


def test_stacks_act_member_by_member(found: Discovered) -> None:
    group, generator = found.group, seeded(3)
    elements = group.sample(generator=generator, members=3)
    each = [
        type(elements)(
            {n: t[k] for n, t in elements.permutations.items()},
            {n: t[k] for n, t in elements.scales.items()},
        )
        for k in range(3)
    ]
    members = stack([group.act(group.sample(generator=generator), found.double) for _ in range(3)])
    together = group.act(elements, members)
    alone = [group.act(e, w) for e, w in zip(each, unstack(members), strict=True)]
    assert distance(together, stack(alone)) < EXACT
    same = group.act(each[0], members)
    assert distance(same, stack([group.act(each[0], w) for w in unstack(members)])) < EXACT


def test_action_keeps_types_and_its_arguments(found: Discovered) -> None:
    weights = {name: tensor.clone() for name, tensor in found.weights.items()}
    element = found.group.sample(generator=seeded(4))
    tables = {n: t.clone() for n, t in (*element.permutations.items(), *element.scales.items())}
    moved = found.group.act(element, weights)
    assert list(moved) == list(weights)
    for name, tensor in weights.items():
        assert torch.equal(tensor, found.weights[name])
        assert moved[name].dtype == tensor.dtype
        assert moved[name].shape == tensor.shape
        assert moved[name].data_ptr() != tensor.data_ptr() or not tensor.numel()
    for name, table in (*element.permutations.items(), *element.scales.items()):
        assert torch.equal(table, tables[name])


@pytest.mark.parametrize("name", SMALL)
def test_no_continuous_scaling_is_missed(name: str) -> None:
    """The numerical probe, which knows nothing of rules, counts the same scalings."""
    found = discovered(name)
    truth = true_continuous_scalings(found.module, found.example)
    assert truth == continuous_scalings(found.group) + found.case.dead


def test_order_of_a_perceptron() -> None:
    """6! 5! permutations."""
    assert discovered("relu_mlp").group.log_order() == pytest.approx(math.log(720 * 120))
    alone = discover(nn.Linear(2, 2), torch.zeros(1, 2)).log_order()
    assert alone == 0
    assert isinstance(alone, float)


def test_weights_that_do_not_fit_are_refused() -> None:
    found = discovered("relu_mlp")
    element = found.group.identity()
    wrong = {**found.weights, "2.weight": torch.zeros(5, 5)}
    missing = {name: tensor for name, tensor in found.weights.items() if name != "2.bias"}
    with pytest.raises(CosetError, match=r"2\.weight"):
        found.group.act(element, wrong)
    with pytest.raises(CosetError, match=r"2\.bias"):
        found.group.act(element, missing)
    with pytest.raises(CosetError, match="stack"):
        found.group.act(element, {**repeated(found.weights, 2), "2.weight": torch.zeros(5, 6)})
    with pytest.raises(CosetError, match=r"type Sequential.*take coset\.weights_of"):
        found.group.act(element, nn.Sequential())


def test_elements_for_another_number_of_members_are_refused(generator: torch.Generator) -> None:
    found = discovered("relu_mlp")
    group = found.group
    six, three = (group.sample(generator=generator, members=count) for count in (6, 3))
    with pytest.raises(CosetError, match="3 and 6 members"):
        group.act(six, repeated(found.weights, 3))
    with pytest.raises(CosetError, match="3 and 6 members"):
        group.compose(six, three)
    with pytest.raises(CosetError, match="generator=3"):
        group.sample(generator=3)  # type: ignore[arg-type]


def test_elements_of_other_groups_are_refused() -> None:
    def group_of(*units: int):
        sizes = (3, *units, 2)
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        return discover(nn.Sequential(*layers), torch.zeros(1, 3))

    own, wider, deeper = group_of(4), group_of(5), group_of(4, 4)
    one = own.identity()
    for call, words in (
        (lambda: own.compose(one, wider.identity()), r"shape \(5,\).*needed \(4,\)"),
        (lambda: own.compose(wider.identity(), one), r"shape \(5,\).*needed \(4,\)"),
        (lambda: deeper.compose(one, deeper.identity()), "without a table"),
        (lambda: own.inverse(wider.identity()), r"shape \(5,\).*needed \(4,\)"),
        (lambda: deeper.inverse(one), "without a table"),
        (lambda: own.inverse(one.permutations), "dict in the place of an element"),
    ):
        with pytest.raises(CosetError, match=words):
            call()
