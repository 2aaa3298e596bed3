"""Residual networks (He et al. 2015, 2016), with the norm and the activation as choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypedDict, Unpack

from torch import nn

from coset.models.choices import ACTIVATIONS, Activation, choose, require_sizes
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

PostactivationBlock: TypeAlias = type[BasicBlock] | type[Bottleneck]


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
    block: PostactivationBlock = BasicBlock,
    in_channels: int = 3,
    classes: int = 10,
    normalisation: str | Normalisation = "batch",
    activation: str | Activation = "relu",
    dropout: float = 0.0,
    stem: str | Stem = "cifar",
    shortcut: Shortcut = projection_shortcut,
) -> ResNet:
    """Return a residual network with norm and activation after the convolutions.

    Args:
        depths: Blocks of each stage; every stage but the first halves the picture.
        widths: Width of each stage; the first is also the stem's.
        block: ``BasicBlock``, or ``Bottleneck`` whose output is four times its width.
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
    require_sizes(in_channels=in_channels, classes=classes)
    style = _style(normalisation, activation, dropout, shortcut)
    stages = build_stages(partial(block, style=style), block.expansion, depths, widths)
    head = nn.Linear(block.expansion * widths[-1], classes)
    first, *pooling = _stem(choose("stem", stem, STEMS), in_channels, widths[0])
    norm = [("bn1", style.normalisation(widths[0])), ("activation", style.activation())]
    return ResNet([first, *norm, *pooling], stages, [], head, dropout)


def preactivation_resnet(
    *,
    depths: Sequence[int],
    widths: Sequence[int],
    in_channels: int = 3,
    classes: int = 10,
    normalisation: str | Normalisation = "batch",
    activation: str | Activation = "relu",
    dropout: float = 0.0,
    stem: str | Stem = "cifar",
    shortcut: Shortcut = projection_shortcut,
) -> ResNet:
    """Return a residual network of pre-activation blocks, closed by a norm and an activation.

    The arguments are those of ``resnet``; there is no norm after the stem.

    >>> model = preactivation_resnet(depths=(1,), widths=(2,), in_channels=1)
    >>> sum(p.numel() for p in model.parameters())  # 18, 4+36, 4+36, 4, 30
    132
    """
    require_sizes(in_channels=in_channels, classes=classes)
    style = _style(normalisation, activation, dropout, shortcut)
    stages = build_stages(partial(PreactivationBlock, style=style), 1, depths, widths)
    parts = _stem(choose("stem", stem, STEMS), in_channels, widths[0])
    closing = [("bn", style.normalisation(widths[-1])), ("activation", style.activation())]
    return ResNet(parts, stages, closing, nn.Linear(widths[-1], classes), dropout)


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


def _style(
    normalisation: str | Normalisation,
    activation: str | Activation,
    dropout: float,
    shortcut: Shortcut,
) -> Style:
    return Style(
        choose("normalisation", normalisation, NORMALISATIONS),
        choose("activation", activation, ACTIVATIONS),
        dropout,
        shortcut,
    )


def _stem(stem: Stem, before: int, after: int) -> list[tuple[str, nn.Module]]:
    parts: list[tuple[str, nn.Module]] = [
        ("conv1", convolution(before, after, stem.kernel, stem.stride))
    ]
    if stem.pool_stride > 1:
        parts.append(("pool", nn.MaxPool2d(3, stride=stem.pool_stride, padding=1)))
    return parts
