"""The last step of networks that estimate depth: mean and log-variance of the logarithm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import CosetError, require_kind

_SPAN = 4.0
"""How far a log-variance may be from that of all depths: standard deviations up to e² times."""


class DepthHead(nn.Module):
    """From two numbers a pixel to mean and log-variance of log-depth, without weights of its own.

    ``μ = mean + deviation · a`` and ``log σ² = 2 log deviation + 4 tanh(b / 4)``, so that a fresh
    network begins near what is known without a picture, and no draw of its weights claims a
    variance that is zero or infinite in the numbers of a computer.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(
        self, inputs: Float[Tensor, "n 2 height width"]
    ) -> Float[Tensor, "n 2 height width"]:
        """Return means, then log-variances, as ``HeteroscedasticGaussian`` reads them."""
        first, second = inputs.chunk(2, dim=1)
        log_variance = 2 * math.log(self.deviation) + _SPAN * torch.tanh(second / _SPAN)
        return torch.cat([self.mean + self.deviation * first, log_variance], dim=1)

    def extra_repr(self) -> str:
        """Where it begins."""
        return f"mean={self.mean:g}, deviation={self.deviation:g}"


def depth_head(mean: float = 0.0, deviation: float = 1.0) -> DepthHead:
    """Return the head that goes behind a network of two outputs a pixel.

    ``nn.Sequential(unet(in_channels=3, classes=2), depth_head(1.9, 0.8))`` with the likelihood
    ``HeteroscedasticGaussian`` and targets from :func:`coset.data.log_depth`.

    Args:
        mean: Of the logarithms of the training depths.
        deviation: Their standard deviation.

    >>> depth_head(2.0, 0.5)(torch.zeros(1, 2, 1, 1)).flatten().tolist()  # 2, 2 log ½
    [2.0, -1.386...]
    """
    require_kind(float, mean=mean, deviation=deviation)
    if not (math.isfinite(mean) and 0 < deviation < math.inf):
        raise CosetError(
            f"got mean={mean}, deviation={deviation}",
            "needed a finite number and a positive one",
            "take those of the logarithms of the training depths, without holes",
        )
    return DepthHead(float(mean), float(deviation))
