import math

import pytest
import torch
from torch import nn

from coset.errors import CosetError
from coset.models.fixup import (
    FixupBlock,
    ScalarBias,
    ScalarMultiplier,
    ScaledConvolution,
    basic_branch,
    bottleneck_branch,
    fixup_resnet,
    fixup_resnet20,
    fixup_resnet50,
)


def blocks_of(model):
    return [part for part in model.modules() if isinstance(part, FixupBlock)]


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fixup_resnet20().double()


def test_the_size_is_that_of_option_a_with_scalars_for_norms():
    """ResNet-20 of option A has 269,722, of which 1,376 in norms; 9 blocks of 5 scalars, and 2."""
    with torch.device("meta"):
        sizes = [parameter.numel() for parameter in fixup_resnet20().parameters()]
    assert sum(sizes) == 269_722 - 1_376 + 9 * 5 + 2 == 268_393


def test_the_large_one_counts_its_bottlenecks():
    """Three convolutions a block, seven scalars; the shortcuts have no weights."""
    expected, before = 27 * 64 + 2 + 2049 * 10, 64
    for depth, width in zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True):
        for _ in range(depth):
            expected += before * width + 9 * width**2 + 4 * width**2 + 7
            before = 4 * width
    with torch.device("meta"):
        assert sum(p.numel() for p in fixup_resnet50().parameters()) == expected


def test_there_is_no_normalisation(model):
    kinds = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
    assert not any(isinstance(part, kinds) for part in model.modules())


def test_residual_branches_and_outputs_start_at_zero(model):
    inputs = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert model(inputs).abs().max() == 0
    channels = 16
    for block in blocks_of(model):
        hidden = torch.randn(2, channels, 8, 8, dtype=torch.float64)
        assert block.branch(hidden).abs().max() == 0
        assert torch.equal(block(hidden), block.shortcut(hidden).relu())
        channels = block.branch[-3].out_channels


def test_the_first_convolutions_shrink_with_the_number_of_blocks(model):
    """Deviation √(2 / (k² · out)) · L^(-1/2) for L = 9 blocks of m = 2 convolutions."""
    for block in blocks_of(model):
        weight = block.branch[1].weight
        expected = math.sqrt(2 / (9 * weight.shape[0])) * 9**-0.5
        # n draws: the relative error of a deviation is 1/√(2n); five of them, one in 10⁶.
        assert abs(weight.std() / expected - 1) < 5 / math.sqrt(2 * weight.numel())


def test_bottlenecks_shrink_with_the_fourth_root():
    model = fixup_resnet(depths=(8, 8), widths=(8, 8), branch=bottleneck_branch)
    gains = [part.gain for part in model.modules() if isinstance(part, ScaledConvolution)]
    assert gains == [1.0, *([16**-0.25, 16**-0.25, 0.0] * 16)]


def test_resetting_keeps_the_rules(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for part in reversed(list(model.modules())):
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    for part in model.modules():
        if isinstance(part, ScalarBias):
            assert part.bias.item() == 0.0
        if isinstance(part, ScalarMultiplier):
            assert part.weight.item() == 1.0
    for block in blocks_of(model):
        assert block.branch[-3].weight.abs().max() == 0
        assert block.branch[1].weight.abs().max() > 0
    assert model.linear.weight.abs().max() == model.linear.bias.abs().max() == 0


def test_the_block_is_its_formula():
    block = FixupBlock(4, 4, 1, branch=basic_branch, blocks=3, build=nn.ReLU).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    b1, w1, b2, b3, w2, scale, b4 = block.parameters()
    inputs = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    hidden = torch.conv2d(inputs + b1, w1, padding=1) + b2
    expected = torch.conv2d(hidden.relu() + b3, w2, padding=1) * scale + b4 + inputs
    torch.testing.assert_close(block(inputs), expected.relu())


def test_training_leaves_the_start(model):
    """Zero branches are no trap: three steps of gradient descent move the outputs."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 3, 8, 8, dtype=torch.float64)
    targets = torch.arange(8)
    losses = []
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[0] == pytest.approx(math.log(10))
    assert losses[-1] < losses[0]
    assert blocks_of(model)[0].branch[-3].weight.abs().max() > 0


@pytest.mark.parametrize(
    "arguments",
    [{"width": 0}, {"classes": 0}, {"activation": "swish"}, {"dropout": -1.0}],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(CosetError, match=next(iter(arguments))):
        fixup_resnet20(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"depths": 3}, {"depths": ("1",)}, {"widths": 4}, {"branch": "basic"}],
)
def test_bad_shapes_are_refused(arguments):
    with pytest.raises(CosetError, match=next(iter(arguments))):
        fixup_resnet(**{"depths": (1,), "widths": (4,)} | arguments)
