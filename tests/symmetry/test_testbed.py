"""The test bed itself: networks run and export, the probes give numbers known by hand."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from tests.symmetry.cases import CASES, Case
from tests.symmetry.fuzz import random_program
from tests.symmetry.probe import (
    continuous_scalings,
    relabelling_error,
    scaling_error,
    swap_error,
    true_continuous_scalings,
)
from torch import Tensor, nn

BY_NAME = {case.name: case for case in CASES}
QUICK = [
    "relu_mlp",
    "tanh_mlp",
    "maxout",
    "residual_stream",
    "shared_linear",
    "unused_parameters",
    "cumulative_sum",
    "weight_normalisation",
    "batch_norm_tanh",
    "batch_norm_convnet",
    "group_norm_convnet",
    "attention_interleaved",
    "attention_grouped_queries",
    "attention_with_slopes",
    "lstm",
    "family_optunet",
]
EXACT, BROKEN = 1e-12, 1e-4


def outputs_of(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        outputs = module(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def assert_exports(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        # Recurrent layers refresh a private list of their weights while they are traced.
        warnings.filterwarnings("ignore", ".*were assigned during export")
        torch.export.export(module, inputs, strict=False)


def relabelling_of(name: str, relabelling: dict[tuple[str, int], list[int]]) -> float:
    case = BY_NAME[name]
    return relabelling_error(case.factory(), case.example(), relabelling)


def swapped(size: int, *pairs: tuple[int, int]) -> list[int]:
    index = list(range(size))
    for first, second in pairs:
        index[first], index[second] = index[second], index[first]
    return index


def axis_of(index: list[int], *names: str, axis: int = 0) -> dict[tuple[str, int], list[int]]:
    return {(name, axis): index for name in names}


def norm(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{part}" for part in ("weight", "bias", "running_mean", "running_var"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_is_a_network_in_general_position(case: Case) -> None:
    module, example = case.factory(), case.example()
    inputs = example if isinstance(example, tuple) else (example,)
    outputs = outputs_of(module, inputs)
    again = outputs_of(case.factory(), inputs)
    assert not any(part.training for part in module.modules())
    assert all(
        torch.equal(a, b) and a.isfinite().all() for a, b in zip(outputs, again, strict=True)
    )
    assert all(
        parameter.unique().numel() > 1 or parameter.numel() == 1
        for parameter in module.parameters()
    )
    names = set(module.state_dict())
    assert names.issuperset(case.unread)
    assert names.issuperset(tensor for tensor, _ in case.invariances)
    assert case.factory.__doc__
    assert_exports(module, inputs)


def test_case_names_are_unique() -> None:
    assert len(BY_NAME) == len(CASES)


def test_order_counts_copies() -> None:
    """ShuffleNet: 2! 2! for both groupings, 3! and 4! in two groups, 5! in four cells."""
    expected = math.log(2 * 2 * 6**2 * 24**2 * 120**4)
    assert BY_NAME["shufflenet"].log_order == pytest.approx(expected)
    assert BY_NAME["shufflenet"].permutations == ((2, 0), (2, 0), (3, 1), (4, 1), (5, 2))


def expected_scalings(case: Case) -> int:
    assert case.continuous is not None
    return case.continuous + case.dead


@pytest.mark.parametrize("name", QUICK)
def test_probe_counts_the_scalings_derived_by_hand(name: str) -> None:
    case = BY_NAME[name]
    assert true_continuous_scalings(case.factory(), case.example()) == expected_scalings(case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.continuous is not None and c.name not in (*QUICK, "family_resnet50")],
    ids=lambda case: case.name,
)
def test_probe_counts_the_scalings_of_every_other_case(case: Case) -> None:
    assert true_continuous_scalings(case.factory(), case.example()) == expected_scalings(case)


@pytest.mark.parametrize(
    ("name", "number"), [("relu_mlp", 11), ("tanh_mlp", 0), ("batch_norm_convnet", 18)]
)
def test_probe_gives_known_numbers(name: str, number: int) -> None:
    """6 + 5 hidden units; none; before and after the norms of 4 + 5 channels."""
    case = BY_NAME[name]
    assert true_continuous_scalings(case.factory(), case.example()) == number


def test_swap_needs_every_axis() -> None:
    case = BY_NAME["relu_mlp"]
    module, example = case.factory(), case.example()
    hidden = [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)]
    assert swap_error(module, example, hidden, 1, 4) < EXACT
    assert swap_error(module, example, hidden[:2], 1, 4) > BROKEN


def test_pieces_of_one_maxout_unit_move_alone() -> None:
    index = swapped(15, (6, 7))
    assert relabelling_of("maxout", axis_of(index, "0.weight", "0.bias")) < EXACT
    across = swapped(15, (5, 6))
    assert relabelling_of("maxout", axis_of(across, "0.weight", "0.bias")) > BROKEN


def test_query_heads_move_inside_their_key_head() -> None:
    """Query heads 2 and 3 share key head 1; heads 1 and 2 do not share one."""

    def heads(first: int, second: int) -> float:
        index = swapped(12, *((3 * first + unit, 3 * second + unit) for unit in range(3)))
        sites = axis_of(index, "query.weight") | axis_of(index, "out.weight", axis=1)
        return relabelling_of("attention_grouped_queries", sites)

    assert heads(2, 3) < EXACT
    assert heads(1, 2) > BROKEN


def test_shuffled_groups_and_cells() -> None:
    """The first layer's groups swap; and units 0 and 1 of the cells of group 1."""
    blocks, pairs = [3, 4, 5, 0, 1, 2], [i ^ 1 for i in range(20)]
    halves = [*range(10, 20), *range(10)]
    groups = axis_of(blocks, "0.weight", "0.bias") | axis_of(halves, "2.0.weight", *norm("2.1"))
    groups |= axis_of(pairs, "4.0.weight", *norm("4.1")) | axis_of(pairs[:10], "5.0.weight", axis=1)
    assert relabelling_of("shufflenet", groups) < EXACT
    before, after = swapped(20, (10, 11), (15, 16)), swapped(20, (1, 3), (11, 13))
    cells = axis_of(before, "2.0.weight", *norm("2.1")) | axis_of(after, "4.0.weight", *norm("4.1"))
    cells |= axis_of(swapped(10, (1, 3)), "5.0.weight", axis=1)
    assert relabelling_of("shufflenet", cells) < EXACT


def test_padded_stream_falls_into_pieces() -> None:
    """The first two channels of the second stage swap alone; across the border they do not."""
    names = ("layer2.0.conv2.weight", *norm("layer2.0.bn2"))
    for pair, kept in (((0, 1), True), ((1, 2), False)):
        index = swapped(8, pair)
        sites = axis_of(index, *names) | axis_of(index, "linear.weight", axis=1)
        error = relabelling_of("family_resnet_padding", sites)
        assert error < EXACT if kept else error > BROKEN


SIGNS = {
    "batch_norm_convnet": (4, ["0.weight", "1.running_mean", "1.weight"], []),
    "instance_norm_convnet": (4, ["0.weight", "0.bias", "1.weight"], []),
    "rms_norm_mlp": (6, ["0.weight", "0.bias", "1.weight"], []),
    "weight_normalisation": (
        6,
        ["0.parametrizations.weight.original0", "0.parametrizations.weight.original1"],
        [],
    ),
    "filter_response_norm_convnet": (4, ["0.weight", "0.bias"], ["1.weight"]),
    "absolute_mlp": (6, ["0.weight", "0.bias"], []),
}


@pytest.mark.parametrize("name", SIGNS)
def test_signs_derived_by_hand(name: str) -> None:
    case = BY_NAME[name]
    size, rows, columns = SIGNS[name]
    sign = torch.where(torch.arange(size) % 2 == 0, -1.0, 1.0).double()
    scales = {(tensor, 0): sign for tensor in rows} | {(tensor, 1): sign for tensor in columns}
    assert scaling_error(case.factory(), case.example(), scales) < EXACT
    scales.pop((rows[0], 0))
    assert scaling_error(case.factory(), case.example(), scales) > BROKEN


def test_each_unit_of_a_root_mean_square_stream_has_a_sign() -> None:
    case = BY_NAME["llama_tied"]
    module = case.factory()
    sign = torch.where(torch.arange(8) % 3 == 0, -1.0, 1.0).double()
    scales = {("model.model.embed_tokens.weight", 1): sign}
    for layer in (f"model.model.layers.{i}." for i in range(2)):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            scales[f"{layer}{name}.weight", 0] = sign
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            scales[f"{layer}{name}.weight", 1] = sign
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            scales[f"{layer}{name}.weight", 1] = sign
    assert scaling_error(module, case.example(), scales) < 1e-10


def test_continuous_scalings_multiplies_copies_and_leaves_signs_out() -> None:
    def factor(size: int, domain: str, view: tuple[int, ...], parents: tuple[int, ...]) -> object:
        site = SimpleNamespace(view=view, parents=parents)
        return SimpleNamespace(size=size, domain=domain, sites=(site,))

    group = SimpleNamespace(
        scalings=(
            factor(5, "positive", (5, 3), ()),
            factor(3, "nonzero", (2, 3, 7), (0,)),
            factor(4, "sign", (4,), ()),
        )
    )
    assert continuous_scalings(group) == 5 + 3 * 2


def assert_program(seed: int) -> None:
    module, example = random_program(seed)
    again, same = random_program(seed)
    outputs = outputs_of(module, (example,))
    assert torch.equal(example, same)
    assert torch.equal(outputs[0], outputs_of(again, (same,))[0])
    assert outputs[0].isfinite().all()
    assert_exports(module, (example,))


def test_random_programs_run_and_export() -> None:
    for seed in range(15):
        assert_program(seed)


@pytest.mark.slow
def test_five_hundred_random_programs_run_and_export() -> None:
    for seed in range(500):
        assert_program(seed)
