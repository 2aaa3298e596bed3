"""The parts of residual networks: shortcuts, blocks, stages and the network they make.

Names follow the published checkpoints (``conv1, bn1, layer1.0.conv1, …, linear``), whatever the
norm: ``bn1`` may be a filter response norm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from coset.errors import CosetError, require_counts
from coset.models.choices import Activation, dropout_of, require_lists
from coset.models.normalisation import Normalisation

Image: TypeAlias = Float[Tensor, "n _ _ _"]
Block: TypeAlias = Callable[[int, int, int], nn.Module]
"""Builds a block from its input channels, its width and its stride."""


def convolution(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size, up to its stride.

    >>> convolution(3, 8).weight.shape
    torch.Size([8, 3, 3, 3])
    """
    return nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)


class PaddingShortcut(nn.Module):
    """Option A of He et al.: drop pixels by the stride, fill the new channels with zeros.

    >>> import torch
    >>> PaddingShortcut(1, 3, 2)(torch.ones(1, 1, 4, 4)).sum(dim=(2, 3))
    tensor([[0., 4., 0.]])
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.padding = ((after - before) // 2, after - before - (after - before) // 2)

    def forward(self, inputs: Image) -> Image:
        """Subsample and pad."""
        kept = inputs[:, :, :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, *self.padding))


def projection_shortcut(
    before: int, after: int, stride: int, normalisation: Normalisation
) -> nn.Module:
    """Option B of He et al.: a 1×1 convolution and a norm where the shape changes.

    >>> projection_shortcut(8, 8, 1, nn.BatchNorm2d)
    Sequential()
    """
    if stride == 1 and before == after:
        return nn.Sequential()
    return nn.Sequential(convolution(before, after, 1, stride), normalisation(after))


def padding_shortcut(
    before: int, after: int, stride: int, normalisation: Normalisation
) -> nn.Module:
    """Option A of He et al., without parameters; the norm is not used.

    >>> padding_shortcut(8, 8, 1, nn.BatchNorm2d)
    Sequential()
    """
    if stride == 1 and before == after:
        return nn.Sequential()
    return PaddingShortcut(before, after, stride)


Shortcut: TypeAlias = Callable[[int, int, int, Normalisation], nn.Module]


@dataclass(frozen=True)
class Style:
    """What every block of one network shares."""

    normalisation: Normalisation
    activation: Activation
    dropout: float = 0.0
    shortcut: Shortcut = projection_shortcut


class BasicBlock(nn.Module):
    """Two 3×3 convolutions: ``a(shortcut(x) + n(conv(a(dropout(n(conv(x)))))))``."""

    expansion = 1
    norm_first = False

    def __init__(self, before: int, width: int, stride: int, style: Style) -> None:
        super().__init__()
        self.conv1 = convolution(before, width, stride=stride)
        self.bn1 = style.normalisation(width)
        self.dropout = dropout_of(style.dropout, nn.Dropout2d)
        self.activation1 = style.activation()
        self.conv2 = convolution(width, width)
        self.bn2 = style.normalisation(width)
        self.shortcut = style.shortcut(before, width, stride, style.normalisation)
        self.activation2 = style.activation()

    def forward(self, inputs: Image) -> Image:
        """Add the residual branch to the shortcut."""
        hidden = self.activation1(self.dropout(self.bn1(self.conv1(inputs))))
        outputs: Tensor = self.activation2(self.bn2(self.conv2(hidden)) + self.shortcut(inputs))
        return outputs


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride) and 1×1 convolutions; the output is four times as wide."""

    expansion = 4
    norm_first = False

    def __init__(self, before: int, width: int, stride: int, style: Style) -> None:
        super().__init__()
        after = self.expansion * width
        self.conv1 = convolution(before, width, 1)
        self.bn1 = style.normalisation(width)
        self.dropout = dropout_of(style.dropout, nn.Dropout2d)
        self.activation1 = style.activation()
        self.conv2 = convolution(width, width, stride=stride)
        self.bn2 = style.normalisation(width)
        self.activation2 = style.activation()
        self.conv3 = convolution(width, after, 1)
        self.bn3 = style.normalisation(after)
        self.shortcut = style.shortcut(before, after, stride, style.normalisation)
        self.activation3 = style.activation()

    def forward(self, inputs: Image) -> Image:
        """Add the residual branch to the shortcut."""
        hidden = self.activation1(self.dropout(self.bn1(self.conv1(inputs))))
        hidden = self.activation2(self.bn2(self.conv2(hidden)))
        outputs: Tensor = self.activation3(self.bn3(self.conv3(hidden)) + self.shortcut(inputs))
        return outputs


class PreactivationBlock(nn.Module):
    """Norm and activation come before each convolution (He et al. 2016, figure 1b)."""

    expansion = 1
    norm_first = True

    def __init__(self, before: int, width: int, stride: int, style: Style) -> None:
        super().__init__()
        self.bn1 = style.normalisation(before)
        self.dropout = dropout_of(style.dropout, nn.Dropout2d)
        self.activation1 = style.activation()
        self.conv1 = convolution(before, width, stride=stride)
        self.bn2 = style.normalisation(width)
        self.activation2 = style.activation()
        self.conv2 = convolution(width, width)
        # A norm on the projection would undo the clean path that pre-activation is about.
        self.projects = stride != 1 or before != width
        self.shortcut = style.shortcut(before, width, stride, nn.Identity)

    def forward(self, inputs: Image) -> Image:
        """Add the residual branch to the shortcut; a projection reads the normalised input."""
        normalised = self.activation1(self.dropout(self.bn1(inputs)))
        shortcut = self.shortcut(normalised) if self.projects else inputs
        outputs: Tensor = self.conv2(self.activation2(self.bn2(self.conv1(normalised)))) + shortcut
        return outputs


class ResNet(nn.Module):
    """A stem, stages of blocks, a closing norm (or none), a global average and a linear layer."""

    def __init__(
        self,
        stem: Sequence[tuple[str, nn.Module]],
        stages: Sequence[nn.Module],
        closing: Sequence[tuple[str, nn.Module]],
        head: nn.Linear,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        named_stages = [(f"layer{index}", stage) for index, stage in enumerate(stages, start=1)]
        self.order = []
        for name, module in (*stem, *named_stages, *closing):
            self.add_module(name, module)
            self.order.append(name)
        self.dropout = dropout_of(dropout)
        self.linear = head

    def forward(self, inputs: Image) -> Float[Tensor, "n c"]:
        """Return one row of outputs for each picture."""
        for name in self.order:
            inputs = self.get_submodule(name)(inputs)
        outputs: Tensor = self.linear(self.dropout(inputs.mean(dim=(2, 3))))
        return outputs


def build_stages(
    block: Block, expansion: int, depths: Sequence[int], widths: Sequence[int]
) -> list[nn.Sequential]:
    """Return the stages; each but the first halves the picture in its first block.

    >>> [len(stage) for stage in build_stages(lambda *_: nn.Identity(), 1, (2, 3), (8, 16))]
    [2, 3]
    """
    require_lists(depths=depths, widths=widths)
    if len(depths) != len(widths) or not depths:
        raise CosetError(
            f"got {len(depths)} depths and {len(widths)} widths",
            "needed one of each for every stage, and at least one stage",
            "give depths and widths of equal length",
        )
    stages, before = [], widths[0]
    for index, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        blocks = []
        for position in range(depth):
            stride = 2 if index > 0 and position == 0 else 1
            blocks.append(block(before, width, stride))
            before = expansion * width
        stages.append(nn.Sequential(*blocks))
    return stages


def multiply(width: int, widths: Sequence[int]) -> list[int]:
    """Return the widths of a network ``width`` times as wide.

    >>> multiply(2, (16, 32))
    [32, 64]
    """
    require_counts(width=width)
    return [width * size for size in widths]
