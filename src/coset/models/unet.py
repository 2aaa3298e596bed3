"""U-Nets: from pictures to pictures of the same size (Ronneberger, Fischer, Brox 2015)."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import CosetError, require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, dropout_of, require_lists
from coset.models.normalisation import NORMALISATIONS, Normalisation, normalised_convolution

Upsampling: TypeAlias = Callable[[int, int], nn.Module]
"""Builds a module that doubles height and width, from its input and output channels."""


def transposed_upsampling(before: int, after: int) -> nn.Module:
    """Double height and width by a learnt 2×2 transposed convolution.

    >>> transposed_upsampling(4, 2)(torch.zeros(1, 4, 3, 3)).shape
    torch.Size([1, 2, 6, 6])
    """
    return nn.ConvTranspose2d(before, after, 2, stride=2)


def interpolated_upsampling(before: int, after: int) -> nn.Module:
    """Double height and width by bilinear interpolation, after a 1×1 convolution.

    >>> interpolated_upsampling(4, 2)(torch.zeros(1, 4, 3, 3)).shape
    torch.Size([1, 2, 6, 6])
    """
    # The convolution commutes with the interpolation and is four times cheaper in front of it.
    enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return nn.Sequential(nn.Conv2d(before, after, 1), enlarge)


def bilinear_upsampling(before: int, after: int) -> nn.Module:
    """Double height and width by bilinear interpolation alone, which keeps the channels.

    >>> bilinear_upsampling(4, 2)(torch.zeros(1, 4, 3, 3)).shape
    torch.Size([1, 4, 6, 6])
    """
    return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)


UPSAMPLINGS: Mapping[str, Upsampling] = {
    "transposed": transposed_upsampling,
    "interpolated": interpolated_upsampling,
    "bilinear": bilinear_upsampling,
}

DOWNSAMPLINGS: Mapping[str, Callable[[], nn.Module]] = {
    # Odd sides round up here and are cropped on the way back, so every size is kept.
    "pool": partial(nn.MaxPool2d, 2, ceil_mode=True),
    "strided": nn.Identity,
}


class NoSkip(nn.Module):
    """Pass none of the channels on."""

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n 0 height width"]:
        """Return a picture without channels."""
        return inputs[:, :0]


class UNet(nn.Module):
    """Encoders, each half the size of the last; decoders that also read the encoder of their size.

    What a decoder reads of its encoder passes through the module of ``skips`` in between.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        pool: nn.Module,
        skips: Sequence[nn.Module],
        upsamplings: Sequence[nn.Module],
        decoders: Sequence[nn.Module],
        output: nn.Conv2d,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.pool = pool
        self.skips = nn.ModuleList(skips)
        self.upsamplings = nn.ModuleList(upsamplings)
        self.decoders = nn.ModuleList(decoders)
        self.output = output

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n c height width"]:
        """Return outputs for every pixel."""
        hidden = self.encoders[0](inputs)
        skips = []
        for encode, pass_on in zip(self.encoders[1:], self.skips, strict=True):
            skips.append(pass_on(hidden))
            hidden = encode(self.pool(hidden))
        for enlarge, decode in zip(self.upsamplings, self.decoders, strict=True):
            skip = skips.pop()
            height, width = skip.shape[2:]
            enlarged = enlarge(hidden)[:, :, :height, :width]
            hidden = decode(torch.cat([skip, enlarged], dim=1))
        outputs: Tensor = self.output(hidden)
        return outputs


def unet(
    *,
    in_channels: int = 1,
    classes: int = 1,
    widths: Sequence[int] = (16, 32, 64),
    normalisation: str | Normalisation = "group",
    activation: str | Activation = "relu",
    upsampling: str | Upsampling = "transposed",
    downsampling: Literal["pool", "strided"] = "pool",
    skips: Sequence[int] | None = None,
    dropout: float = 0.0,
) -> UNet:
    """Return a U-Net with one level for each width; height and width of the pictures are kept.

    Args:
        in_channels: Channels of the pictures.
        classes: Outputs for every pixel.
        widths: Channels of each level, the finest first.
        normalisation: A name from the table of normalisations, or a factory as ``nn.BatchNorm2d``.
        activation: A name from the table of activations, or a factory as ``nn.SiLU``.
        upsampling: ``"transposed"``, ``"interpolated"``, ``"bilinear"`` or your own.
        downsampling: ``"pool"``, or ``"strided"``: the first convolution of a level halves the
            size, and the finest level has one convolution only (Ulyanov et al. 2018).
        skips: Channels of the 1×1 convolution, norm and activation through which each decoder
            reads its encoder, the finest first; 0: it does not.  ``None``: it reads all channels.
        dropout: Rate at which whole channels are dropped behind every encoder and decoder.

    >>> sum(p.numel() for p in unet(widths=(2,)).parameters())  # 18+4, 36+4, 2+1
    65
    """
    require_lists(widths=widths)
    require_counts(in_channels=in_channels, classes=classes, levels=len(widths))
    norm = choose("normalisation", normalisation, NORMALISATIONS)
    build = choose("activation", activation, ACTIVATIONS)
    enlarge = choose("upsampling", upsampling, UPSAMPLINGS)
    shrink = choose("downsampling", downsampling, DOWNSAMPLINGS)
    strided = shrink is DOWNSAMPLINGS["strided"]
    passed = tuple(widths[:-1]) if skips is None else tuple(skips)
    _check_skips(passed, len(widths) - 1)
    upward = list(pairwise(reversed(widths)))
    encoders = [
        _convolutions(
            before,
            (after,) if strided and level == 0 else (after, after),
            norm,
            build,
            stride=2 if strided and level else 1,
            dropout=dropout,
        )
        for level, (before, after) in enumerate(pairwise((in_channels, *widths)))
    ]
    between: list[nn.Module] = [nn.Identity() for _ in upward]
    if skips is not None:
        between = [_skip(w, skip, norm, build) for w, skip in zip(widths, passed, strict=False)]
    upsamplings = [enlarge(before, after) for before, after in upward]
    keeps = enlarge is bilinear_upsampling
    decoders = [
        _convolutions(
            skip + (before if keeps else after), (after, after), norm, build, dropout=dropout
        )
        for skip, (before, after) in zip(reversed(passed), upward, strict=True)
    ]
    output = nn.Conv2d(widths[0], classes, 1)
    return UNet(encoders, shrink(), between, upsamplings, decoders, output)


def _check_skips(skips: Sequence[int], levels: int) -> None:
    if len(skips) != levels:
        raise CosetError(
            f"got {len(skips)} skips", f"needed {levels}: one for each level but the coarsest"
        )
    for skip in skips:
        require_counts(0, skips=skip)


def _skip(width: int, skip: int, norm: Normalisation, build: Activation) -> nn.Module:
    if not skip:
        return NoSkip()
    convolution, after = normalised_convolution(width, skip, norm, kernel=1)
    layers = OrderedDict(conv=convolution, norm=after, activation=build())
    return nn.Sequential(layers)


def _convolutions(
    before: int,
    after: Sequence[int],
    norm: Normalisation,
    build: Activation,
    *,
    stride: int = 1,
    dropout: float = 0.0,
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, (channels, width) in enumerate(pairwise((before, *after)), start=1):
        layers[f"conv{index}"], layers[f"norm{index}"] = normalised_convolution(
            channels, width, norm, stride=stride if index == 1 else 1
        )
        layers[f"activation{index}"] = build()
    layers["dropout"] = dropout_of(dropout, nn.Dropout2d)
    return nn.Sequential(layers)
