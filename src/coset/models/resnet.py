"""Residual networks (He et al. 2015, 2016), with the norm and the activation as choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypedDict, Unpack

from torch import nn

from coset.errors import require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, require_builders
from coset.models.normalisation import NORMALISATIONS, Normalisation
from coset.models.residual import (
    BasicBlock,
    Bottleneck,
    PreactivationBlock,
    ResNet,
    Shortcut,
    Style,
    build_stages,
    convolution,
    multiply,
    projection_shortcut,
)


@dataclass(frozen=True)
class Stem:
    """The first convolution, and the stride of the maximum pooling after it (one: no pooling)."""

    kernel: int
    stride: int
    pool_stride: int


STEMS: Mapping[str, Stem] = {
    "cifar": Stem(kernel=3, stride=1, pool_stride=1),
    "imagenet": Stem(kernel=7, stride=2, pool_stride=2),
}

BlockType: TypeAlias = type[BasicBlock] | type[Bottleneck] | type[PreactivationBlock]


class Options(TypedDict, total=False):
    """The arguments that every factory of this file takes beside depths and widths."""

    in_channels: int
    classes: int
    normalisation: str | Normalisation
    activation: str | Activation
    dropout: float
    stem: str | Stem
    shortcut: Shortcut


def resnet(
    *,
    depths: Sequence[int],
    widths: Sequence[int],
    block: BlockType = BasicBlock,
    in_channels: int = 3,
    classes: int = 10,
    normalisation: str | Normalisation = "batch",
    activation: str | Activation = "relu",
    dropout: float = 0.0,
    stem: str | Stem = "cifar",
    shortcut: Shortcut = projection_shortcut,
) -> ResNet:
    """Return a residual network.

    The first norm and activation follow the stem; with pre-activation blocks, which begin with
    their own, they stand before the global average instead.

    Args:
        depths: Blocks of each stage; every stage but the first halves the picture.
        widths: Width of each stage; the first is also the stem's.
        block: ``BasicBlock``, ``PreactivationBlock``, or ``Bottleneck`` whose output is four
            times its width.
        in_channels: Channels of the pictures.
        classes: Outputs.
        normalisation: A name from the table of normalisations, or a factory as ``nn.BatchNorm2d``.
        activation: A name from the table of activations, or a factory as ``nn.SiLU``.
        dropout: Rate of channel dropout after the first norm of each block, and of dropout
            before the last layer.
        stem: ``"cifar"`` (3×3, no pooling), ``"imagenet"`` (7×7 of stride 2, then pooling) or your
            own.
        shortcut: ``projection_shortcut`` or ``padding_shortcut``.

    >>> model = resnet(depths=(1,), widths=(2,), in_channels=1)
    >>> sum(p.numel() for p in model.parameters())  # 18+4, 36+4, 36+4, 30
    132
    """
    require_counts(in_channels=in_channels, classes=classes)
    require_builders(block=block, shortcut=shortcut)
    style = Style(
        choose("normalisation", normalisation, NORMALISATIONS),
        choose("activation", activation, ACTIVATIONS),
        dropout,
        shortcut,
    )
    stages = build_stages(partial(block, style=style), block.expansion, depths, widths)
    after = block.expansion * widths[-1]
    first, *pooling = _stem(choose("stem", stem, STEMS), in_channels, widths[0])
    head = nn.Linear(after, classes)
    if block.norm_first:
        closing = [("bn", style.normalisation(after)), ("activation", style.activation())]
        return ResNet([first, *pooling], stages, closing, head, dropout)
    opening = [("bn1", style.normalisation(widths[0])), ("activation", style.activation())]
    return ResNet([first, *opening, *pooling], stages, [], head, dropout)


def preactivation_resnet(
    *, depths: Sequence[int], widths: Sequence[int], **options: Unpack[Options]
) -> ResNet:
    """Return a residual network of pre-activation blocks; options as for ``resnet``.

    >>> model = preactivation_resnet(depths=(1,), widths=(2,), in_channels=1)
    >>> sum(p.numel() for p in model.parameters())  # 18, 4+36, 4+36, 4, 30
    132
    """
    return resnet(depths=depths, widths=widths, block=PreactivationBlock, **options)


def resnet20(*, width: int = 1, **options: Unpack[Options]) -> ResNet:
    """Return ResNet-20, ``width`` times as wide; options as for ``resnet``.

    272,474 parameters with the projection shortcuts of the published checkpoints (option B, the
    default), 269,722 with ``padding_shortcut`` (option A, as in the paper).

    >>> sum(p.numel() for p in resnet20(normalisation="filter_response").parameters())
    272474
    """
    return resnet(depths=(3, 3, 3), widths=multiply(width, (16, 32, 64)), **options)


def resnet18(*, width: int = 1, **options: Unpack[Options]) -> ResNet:
    """Return ResNet-18, ``width`` times as wide; options as for ``resnet``.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model = resnet18()
    >>> sum(p.numel() for p in model.parameters())
    11173962
    """
    return resnet(depths=(2, 2, 2, 2), widths=multiply(width, (64, 128, 256, 512)), **options)


def resnet50(*, width: int = 1, **options: Unpack[Options]) -> ResNet:
    """Return ResNet-50, ``width`` times as wide; options as for ``resnet``.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model = resnet50(classes=1000, stem="imagenet")
    >>> sum(p.numel() for p in model.parameters())
    25557032
    """
    widths = multiply(width, (64, 128, 256, 512))
    return resnet(depths=(3, 4, 6, 3), widths=widths, block=Bottleneck, **options)


def preactivation_resnet18(*, width: int = 1, **options: Unpack[Options]) -> ResNet:
    """Return the pre-activation ResNet-18, ``width`` times as wide; options as for ``resnet``.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model = preactivation_resnet18()
    >>> sum(p.numel() for p in model.parameters())
    11172170
    """
    widths = multiply(width, (64, 128, 256, 512))
    return preactivation_resnet(depths=(2, 2, 2, 2), widths=widths, **options)


def _stem(stem: Stem, before: int, after: int) -> list[tuple[str, nn.Module]]:
    parts: list[tuple[str, nn.Module]] = [
        ("conv1", convolution(before, after, stem.kernel, stem.stride))
    ]
    if stem.pool_stride > 1:
        parts.append(("pool", nn.MaxPool2d(3, stride=stem.pool_stride, padding=1)))
    return parts
