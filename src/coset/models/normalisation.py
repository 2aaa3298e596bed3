"""Normalisations by channel: filter response norm, its thresholded unit, and the table of names."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import require_counts

Normalisation: TypeAlias = Callable[[int], nn.Module]
"""Builds the normalisation of a number of channels, as ``nn.BatchNorm2d`` does."""


class FilterResponseNorm(nn.Module):
    """Divide each channel of each image by its root mean square (Singh, Krishnan 2020, eq. 1).

    ``y = weight · x / √(mean(x²) + epsilon) + bias``, the mean over height and width: no batch
    statistics, so training and evaluation are the same function.

    >>> norm = FilterResponseNorm(1)
    >>> [round(value, 4) for value in norm(torch.tensor([[[[1.0, 7.0]]]])).flatten().tolist()]
    [0.2, 1.4]
    """

    def __init__(self, channels: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        require_counts(channels=channels)
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to multiplier one and bias zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n channels height width"]:
        """Normalise every channel of every image by itself."""
        mean_square = inputs.square().mean(dim=(2, 3), keepdim=True)
        normalised = inputs * torch.rsqrt(mean_square + self.epsilon)
        return self.weight[:, None, None] * normalised + self.bias[:, None, None]


class ThresholdedLinearUnit(nn.Module):
    """The larger of the input and a learnt threshold per channel (Singh, Krishnan 2020, eq. 3).

    >>> ThresholdedLinearUnit(1)(torch.tensor([[[[-1.0, 2.0]]]])).flatten().tolist()
    [0.0, 2.0]
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        require_counts(channels=channels)
        self.threshold = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to threshold zero, where the unit is a ReLU."""
        nn.init.zeros_(self.threshold)

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n channels height width"]:
        """Clamp every channel from below by its threshold."""
        return torch.maximum(inputs, self.threshold[:, None, None])


def thresholded_filter_response_norm(channels: int) -> nn.Module:
    """Filter response norm followed by its own activation; use it with ``activation=nn.Identity``.

    >>> sum(p.numel() for p in thresholded_filter_response_norm(16).parameters())
    48
    """
    return nn.Sequential(FilterResponseNorm(channels), ThresholdedLinearUnit(channels))


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm with eight groups, or the largest common divisor of eight and the channels.

    >>> group_norm(12).num_groups
    4
    """
    require_counts(channels=channels)
    return nn.GroupNorm(math.gcd(8, channels), channels)


NORMALISATIONS: Mapping[str, Normalisation] = {
    "batch": nn.BatchNorm2d,
    "filter_response": FilterResponseNorm,
    "thresholded_filter_response": thresholded_filter_response_norm,
    "group": group_norm,
    "none": nn.Identity,
}


def normalised_convolution(
    in_channels: int,
    out_channels: int,
    normalisation: Normalisation,
    *,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
) -> tuple[nn.Conv2d, nn.Module]:
    """Return a convolution that keeps the size (up to its stride), and the norm after it.

    The convolution has a bias only where no norm follows, which brings its own.

    >>> convolution, norm = normalised_convolution(3, 8, nn.Identity)
    >>> convolution.bias is None, norm
    (False, Identity())
    """
    norm = normalisation(out_channels)
    convolution = nn.Conv2d(
        in_channels,
        out_channels,
        kernel,
        stride=stride,
        padding=dilation * (kernel // 2),
        dilation=dilation,
        bias=isinstance(norm, nn.Identity),
    )
    return convolution, norm
