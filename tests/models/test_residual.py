import pytest
import torch
from torch import nn
from torch.nn import functional

from coset.errors import CosetError
from coset.models.residual import (
    BasicBlock,
    Bottleneck,
    PaddingShortcut,
    PreactivationBlock,
    Style,
    build_stages,
    multiply,
    padding_shortcut,
    projection_shortcut,
)

PLAIN = Style(nn.BatchNorm2d, nn.ReLU)


def pictures(channels=4):
    return torch.randn(3, channels, 6, 6, dtype=torch.float64)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_a_zero_branch_leaves_the_shortcut(block):
    width = 4 // block.expansion
    module = block(4, width, 1, PLAIN).double()
    with torch.no_grad():
        last = module.bn2 if block is BasicBlock else module.bn3
        last.weight.zero_()
    inputs = pictures()
    torch.testing.assert_close(module(inputs), inputs.relu())


def test_the_basic_block_is_its_formula():
    module = BasicBlock(4, 8, 2, PLAIN).double()
    inputs = pictures()
    hidden = functional.conv2d(inputs, module.conv1.weight, stride=2, padding=1)
    hidden = functional.batch_norm(hidden, None, None, training=True).relu()
    hidden = functional.conv2d(hidden, module.conv2.weight, padding=1)
    hidden = functional.batch_norm(hidden, None, None, training=True)
    shortcut = functional.conv2d(inputs, module.shortcut[0].weight, stride=2)
    shortcut = functional.batch_norm(shortcut, None, None, training=True)
    torch.testing.assert_close(module(inputs), (hidden + shortcut).relu())


def test_the_preactivation_block_adds_to_an_untouched_input():
    module = PreactivationBlock(4, 4, 1, PLAIN).double()
    with torch.no_grad():
        module.conv2.weight.zero_()
    inputs = pictures()
    assert torch.equal(module(inputs), inputs)


def test_the_preactivation_projection_reads_the_normalised_input():
    module = PreactivationBlock(4, 8, 2, PLAIN).double()
    with torch.no_grad():
        module.conv2.weight.zero_()
    inputs = pictures()
    normalised = functional.batch_norm(inputs, None, None, training=True).relu()
    expected = functional.conv2d(normalised, module.shortcut[0].weight, stride=2)
    torch.testing.assert_close(module(inputs), expected)


def test_dropout_follows_the_first_norm():
    module = BasicBlock(4, 4, 1, Style(nn.BatchNorm2d, nn.ReLU, dropout=0.5))
    seen = []
    module.bn1.register_forward_hook(lambda *_: seen.append("bn1"))
    module.dropout.register_forward_hook(lambda *_: seen.append("dropout"))
    module.activation1.register_forward_hook(lambda *_: seen.append("activation1"))
    module(torch.randn(2, 4, 6, 6))
    assert seen == ["bn1", "dropout", "activation1"]
    assert isinstance(module.dropout, nn.Dropout2d)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (2, 5), (3, 3)])
def test_the_padding_shortcut_drops_pixels_and_adds_zeros(before, after):
    inputs = pictures(before)
    outputs = PaddingShortcut(before, after, 2)(inputs)
    assert outputs.shape == (3, after, 3, 3)
    start = (after - before) // 2
    assert torch.equal(outputs[:, start : start + before], inputs[:, :, ::2, ::2])
    assert outputs.count_nonzero() == 3 * before * 9


@pytest.mark.parametrize("shortcut", [padding_shortcut, projection_shortcut])
def test_equal_shapes_need_no_shortcut(shortcut):
    inputs = pictures()
    assert shortcut(4, 4, 1, nn.BatchNorm2d)(inputs) is inputs


def test_every_stage_but_the_first_starts_with_stride_two():
    seen = []

    def block(*shape):
        seen.append(shape)
        return nn.Identity()

    build_stages(block, 4, (2, 1, 2), (8, 16, 32))
    assert seen == [(8, 8, 1), (32, 8, 1), (32, 16, 2), (64, 32, 2), (128, 32, 1)]


@pytest.mark.parametrize(("depths", "widths"), [((1,), (4, 8)), ((), ()), ((0,), (4,))])
def test_stages_that_do_not_fit_are_refused(depths, widths):
    with pytest.raises(CosetError, match="depths"):
        build_stages(lambda *_: nn.Identity(), 1, depths, widths)


def test_a_width_multiplies():
    assert multiply(3, (1, 2)) == [3, 6]
    with pytest.raises(CosetError, match="width=0"):
        multiply(0, (1, 2))
