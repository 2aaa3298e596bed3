"""Total variation of images, and what it is expected to be under a Gaussian, in closed form."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

_FLOOR = 1e-12


def total_variation(image: Float[Tensor, "*k height width"]) -> Float[Tensor, "*k"]:
    """The sum of the absolute differences of pixels side by side and one above the other.

    >>> total_variation(torch.tensor([[0.0, 1.0], [0.0, 3.0]]))
    tensor(6.)
    """
    across = image.diff(dim=-1).abs().sum((-1, -2))
    return across + image.diff(dim=-2).abs().sum((-1, -2))


def edges(size: int) -> Int[Tensor, "edges 2"]:
    """All pairs of neighbouring pixels.

    >>> edges(2).tolist()
    [[0, 1], [2, 3], [0, 2], [1, 3]]
    """
    pixels = torch.arange(size**2).reshape(size, size)
    across = torch.stack([pixels[:, :-1].flatten(), pixels[:, 1:].flatten()], 1)
    down = torch.stack([pixels[:-1].flatten(), pixels[1:].flatten()], 1)
    return torch.cat([across, down])


def expected_absolute(
    mean: Float[Tensor, " e"], variance: Float[Tensor, " e"]
) -> Float[Tensor, " e"]:
    """``E|D|`` of a Gaussian: ``s √(2/π) exp(-m²/2s²) + m erf(m / (s √2))``.

    >>> round(float(expected_absolute(torch.zeros(1), torch.ones(1))), 4)  # √(2/π)
    0.7979
    """
    deviation = variance.clamp_min(_FLOOR**2).sqrt()
    ratio = mean / deviation
    spread = deviation * math.sqrt(2 / math.pi) * (-ratio.square() / 2).exp()
    found: Tensor = spread + mean * torch.erf(ratio / math.sqrt(2))
    return found


def expected_absolute_slope(
    mean: Float[Tensor, " e"],
    variance: Float[Tensor, " e"],
    change: Float[Tensor, " e"],
) -> Float[Tensor, " e"]:
    """The derivative of ``E|D|`` when the variance changes: ``√(2/π) exp(-m²/2s²) ds²/(2s)``.

    >>> one = torch.ones(1)
    >>> round(float(expected_absolute_slope(0 * one, one, one)), 4)  # √(2/π) / 2
    0.3989
    """
    safe = variance.clamp_min(_FLOOR**2)
    height = math.sqrt(2 / math.pi) * (-mean.square() / (2 * safe)).exp()
    return height * change / (2 * safe.sqrt())
