"""Dilated networks: from pictures to pictures at full size throughout (Yu and Koltun 2016)."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from coset.errors import CosetError, require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, dropout_of, require_lists
from coset.models.normalisation import NORMALISATIONS, Normalisation, normalised_convolution


def dilated(
    *,
    in_channels: int = 1,
    classes: int = 1,
    width: int = 16,
    dilations: Sequence[int] = (1, 1, 2, 4, 8, 1),
    normalisation: str | Normalisation = "group",
    activation: str | Activation = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return 3×3 convolutions that reach further and further, without pooling.

    With ``normalisation="none"`` an output sees no further than ``sum(dilations)`` pixels.

    Args:
        in_channels: Channels of the pictures.
        classes: Outputs for every pixel.
        width: Channels of every layer.
        dilations: Distance between the taps of each layer.
        normalisation: A name from the table of normalisations, or a factory as ``nn.BatchNorm2d``.
        activation: A name from the table of activations, or a factory as ``nn.SiLU``.
        dropout: Rate at which whole channels are dropped behind every layer.

    >>> sum(p.numel() for p in dilated(width=2, dilations=(1, 2)).parameters())  # 18+4, 36+4, 2+1
    65
    """
    require_lists(dilations=dilations)
    require_counts(in_channels=in_channels, classes=classes, width=width)
    if not dilations:
        raise CosetError("got no dilations", "needed one a layer", "such as dilations=(1, 2, 4)")
    norm = choose("normalisation", normalisation, NORMALISATIONS)
    build = choose("activation", activation, ACTIVATIONS)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, reach in enumerate(dilations, start=1):
        before = in_channels if number == 1 else width
        layers[f"conv{number}"], layers[f"norm{number}"] = normalised_convolution(
            before, width, norm, dilation=reach
        )
        layers[f"activation{number}"] = build()
        layers[f"dropout{number}"] = dropout_of(dropout, nn.Dropout2d)
    layers["output"] = nn.Conv2d(width, classes, 1)
    return nn.Sequential(layers)
