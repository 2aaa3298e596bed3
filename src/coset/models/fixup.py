"""Residual networks without normalisation, by FixUp (Zhang, Dauphin, Ma 2019, section 3).

Every layer owns its rule of initialisation, so resetting all modules one by one, in any order,
gives a FixUp start again.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import require_counts
from coset.models.choices import (
    ACTIVATIONS,
    Activation,
    choose,
    require_builders,
    require_lists,
)
from coset.models.residual import Image, PaddingShortcut, ResNet, build_stages, multiply


class ScalarBias(nn.Module):
    """Add one learnt number, zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to zero."""
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Shift every entry."""
        return inputs + self.bias


class ScalarMultiplier(nn.Module):
    """Multiply by one learnt number, one at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to one."""
        nn.init.ones_(self.weight)

    def forward(self, inputs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Scale every entry."""
        return inputs * self.weight


class ScaledConvolution(nn.Conv2d):
    """A convolution whose start is He's normal of variance 2 / (out · kernel²), times ``gain``.

    It stays an ``nn.Conv2d`` for everything that looks for convolutions; only the start differs.

    >>> ScaledConvolution(1, 2, 3, gain=0.0).weight.abs().max().item()
    0.0
    """

    def __init__(
        self, before: int, after: int, kernel: int, stride: int = 1, *, gain: float
    ) -> None:
        self.gain = gain
        super().__init__(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)

    def reset_parameters(self) -> None:
        """Draw a new start."""
        fan_out = self.weight[:, 0].numel()
        nn.init.normal_(self.weight, std=self.gain * math.sqrt(2 / fan_out))


class ZeroLinear(nn.Linear):
    """A linear layer that starts at zero.

    >>> ZeroLinear(2, 2)(torch.ones(1, 2)).tolist()
    [[0.0, 0.0]]
    """

    def reset_parameters(self) -> None:
        """Return to zero."""
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


ConvolutionShape: TypeAlias = tuple[int, int, int, int]
"""Input channels, output channels, kernel and stride."""


def basic_branch(before: int, width: int, stride: int) -> list[ConvolutionShape]:
    """Return the two convolutions of a basic block.

    >>> basic_branch(8, 16, 2)
    [(8, 16, 3, 2), (16, 16, 3, 1)]
    """
    return [(before, width, 3, stride), (width, width, 3, 1)]


def bottleneck_branch(before: int, width: int, stride: int) -> list[ConvolutionShape]:
    """Return the three convolutions of a bottleneck, four times as wide at its end.

    >>> bottleneck_branch(8, 4, 2)
    [(8, 4, 1, 1), (4, 4, 3, 2), (4, 16, 1, 1)]
    """
    return [(before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]


Branch: TypeAlias = Callable[[int, int, int], list[ConvolutionShape]]


class FixupBlock(nn.Module):
    """A residual block of m convolutions that starts as its shortcut.

    The first m - 1 convolutions start ``blocks^(-1 / (2m - 2))`` times smaller than He's rule, the
    last at zero.  A scalar bias stands before every convolution and every activation, a scalar
    multiplier after the last convolution.
    """

    def __init__(
        self,
        before: int,
        width: int,
        stride: int,
        *,
        branch: Branch,
        blocks: int,
        build: Activation,
    ) -> None:
        super().__init__()
        shapes = branch(before, width, stride)
        gain = blocks ** (-1 / (2 * len(shapes) - 2))
        layers: list[nn.Module] = []
        for shape in shapes[:-1]:
            layers += [ScalarBias(), ScaledConvolution(*shape, gain=gain), ScalarBias(), build()]
        last = ScaledConvolution(*shapes[-1], gain=0.0)
        layers += [ScalarBias(), last, ScalarMultiplier(), ScalarBias()]
        self.branch = nn.Sequential(*layers)
        after = shapes[-1][1]
        same = stride == 1 and before == after
        self.shortcut = nn.Sequential() if same else PaddingShortcut(before, after, stride)
        self.activation = build()

    def forward(self, inputs: Image) -> Image:
        """Add the residual branch to the shortcut."""
        outputs: Tensor = self.activation(self.branch(inputs) + self.shortcut(inputs))
        return outputs


class Options(TypedDict, total=False):
    """The arguments that every factory of this file takes beside depths and widths."""

    in_channels: int
    classes: int
    activation: str | Activation
    dropout: float


def fixup_resnet(
    *,
    depths: Sequence[int],
    widths: Sequence[int],
    branch: Branch = basic_branch,
    in_channels: int = 3,
    classes: int = 10,
    activation: str | Activation = "relu",
    dropout: float = 0.0,
) -> ResNet:
    """Return a residual network without normalisation, in CIFAR style with padding shortcuts.

    Args:
        depths: Blocks of each stage; every stage but the first halves the picture.
        widths: Width of each stage; the first is also the stem's.
        branch: ``basic_branch`` or ``bottleneck_branch``.
        in_channels: Channels of the pictures.
        classes: Outputs.
        activation: A name from the table of activations, or a factory as ``nn.SiLU``.
        dropout: Rate of dropout before the last layer.

    >>> model = fixup_resnet(depths=(1,), widths=(2,), in_channels=1)
    >>> sum(p.numel() for p in model.parameters())  # 18+1, 36+36+5, 1+30
    127
    """
    require_counts(in_channels=in_channels, classes=classes)
    require_lists(depths=depths)
    require_builders(branch=branch)
    build = choose("activation", activation, ACTIVATIONS)
    expansion = branch(1, 1, 1)[-1][1]
    block = partial(FixupBlock, branch=branch, blocks=sum(depths), build=build)
    stages = build_stages(block, expansion, depths, widths)
    stem = [
        ("conv1", ScaledConvolution(in_channels, widths[0], 3, gain=1.0)),
        ("bias1", ScalarBias()),
        ("activation", build()),
    ]
    head = ZeroLinear(expansion * widths[-1], classes)
    return ResNet(stem, stages, [("bias2", ScalarBias())], head, dropout)


def fixup_resnet20(*, width: int = 1, **options: Unpack[Options]) -> ResNet:
    """Return ResNet-20 without normalisation, ``width`` times as wide; options: ``fixup_resnet``.

    268,346 weights of convolutions and linear layer, and 5 numbers a block and 2 around them:

    >>> sum(p.numel() for p in fixup_resnet20().parameters())
    268393
    """
    return fixup_resnet(depths=(3, 3, 3), widths=multiply(width, (16, 32, 64)), **options)


def fixup_resnet50(*, width: int = 1, **options: Unpack[Options]) -> ResNet:
    """Return ResNet-50 without normalisation, ``width`` times as wide; options: ``fixup_resnet``.

    >>> with torch.device("meta"):
    ...     model = fixup_resnet50()
    >>> model.linear.in_features
    2048
    """
    widths = multiply(width, (64, 128, 256, 512))
    return fixup_resnet(depths=(3, 4, 6, 3), widths=widths, branch=bottleneck_branch, **options)
