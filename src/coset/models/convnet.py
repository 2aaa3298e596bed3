"""Small convolutional networks without skips."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, dropout_of, require_lists
from coset.models.normalisation import NORMALISATIONS, Normalisation, normalised_convolution


class GlobalAverage(nn.Module):
    """The mean of every channel over height and width.

    >>> import torch
    >>> GlobalAverage()(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2.]])
    """

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n channels"]:
        """Average the pixels away."""
        return inputs.mean(dim=(2, 3))


def convnet(
    *,
    in_channels: int = 1,
    widths: Sequence[int] = (16, 32, 64),
    classes: int = 10,
    kernel: int = 3,
    normalisation: str | Normalisation = "none",
    activation: str | Activation = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return convolutions of stride two, a global average and a linear layer.

    Pictures of any size fit.  Convolution i from a to b channels has ``(kernel² · a + 1) · b``
    parameters without normalisation.

    Args:
        in_channels: Channels of the pictures.
        widths: Channels after each convolution.
        classes: Outputs.
        kernel: Side of the convolutions.
        normalisation: A name from the table of normalisations, or a factory as ``nn.BatchNorm2d``.
        activation: A name from the table of activations, or a factory as ``nn.SiLU``.
        dropout: Rate of channel dropout after each activation.

    >>> sum(p.numel() for p in convnet().parameters())
    23946
    """
    require_lists(widths=widths)
    require_counts(in_channels=in_channels, classes=classes, kernel=kernel)
    norm = choose("normalisation", normalisation, NORMALISATIONS)
    build = choose("activation", activation, ACTIVATIONS)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for depth, (before, after) in enumerate(pairwise((in_channels, *widths)), start=1):
        layers[f"conv{depth}"], layers[f"norm{depth}"] = normalised_convolution(
            before, after, norm, kernel=kernel, stride=2
        )
        layers[f"activation{depth}"] = build()
        layers[f"dropout{depth}"] = dropout_of(dropout, nn.Dropout2d)
    layers["average"] = GlobalAverage()
    layers["linear"] = nn.Linear((in_channels, *widths)[-1], classes)
    return nn.Sequential(layers)
