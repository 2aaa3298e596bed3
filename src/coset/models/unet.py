"""U-Nets: from pictures to pictures of the same size (Ronneberger, Fischer, Brox 2015)."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, require_lists
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


UPSAMPLINGS: Mapping[str, Upsampling] = {
    "transposed": transposed_upsampling,
    "interpolated": interpolated_upsampling,
}


class UNet(nn.Module):
    """Encoders with pooling between them, decoders that also read the encoder of their size."""

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        upsamplings: Sequence[nn.Module],
        decoders: Sequence[nn.Module],
        output: nn.Conv2d,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        # Odd sides round up here and are cropped on the way back, so every size is kept.
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.upsamplings = nn.ModuleList(upsamplings)
        self.decoders = nn.ModuleList(decoders)
        self.output = output

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n c height width"]:
        """Return outputs for every pixel."""
        hidden = self.encoders[0](inputs)
        skips = []
        for encode in self.encoders[1:]:
            skips.append(hidden)
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
) -> UNet:
    """Return a U-Net with one level for each width; height and width of the pictures are kept.

    Args:
        in_channels: Channels of the pictures.
        classes: Outputs for every pixel.
        widths: Channels of each level, the finest first.
        normalisation: A name from the table of normalisations, or a factory as ``nn.BatchNorm2d``.
        activation: A name from the table of activations, or a factory as ``nn.SiLU``.
        upsampling: ``"transposed"``, ``"interpolated"`` or your own.

    >>> sum(p.numel() for p in unet(widths=(2,)).parameters())  # 18+4, 36+4, 2+1
    65
    """
    require_lists(widths=widths)
    require_counts(in_channels=in_channels, classes=classes, levels=len(widths))
    norm = choose("normalisation", normalisation, NORMALISATIONS)
    build = choose("activation", activation, ACTIVATIONS)
    enlarge = choose("upsampling", upsampling, UPSAMPLINGS)
    upward = list(pairwise(reversed(widths)))
    return UNet(
        [_double(before, after, norm, build) for before, after in pairwise((in_channels, *widths))],
        [enlarge(before, after) for before, after in upward],
        [_double(2 * after, after, norm, build) for _, after in upward],
        nn.Conv2d(widths[0], classes, 1),
    )


def _double(before: int, after: int, norm: Normalisation, build: Activation) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, channels in enumerate((before, after), start=1):
        layers[f"conv{index}"], layers[f"norm{index}"] = normalised_convolution(
            channels, after, norm
        )
        layers[f"activation{index}"] = build()
    return nn.Sequential(layers)
