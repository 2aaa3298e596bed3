"""Depths as targets: logarithms, holes, and the depths that predictions of logarithms stand for."""

import warnings
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError

_FARTHEST = 1000.0
"""A median above it is no scene in metres."""


def log_depth(
    depths: Float[Tensor, "n h w"], *, zeros: Literal["refuse", "missing"] = "refuse"
) -> Float[Tensor, "n 1 h w"]:
    """Logarithms of depths in metres, as targets with one channel; NaN stays NaN.

    Give the likelihood ``missing="nan"`` where there are holes.

    Args:
        depths: Positive, NaN where nothing was measured.
        zeros: ``"missing"``: zeros are holes too, as sensors write them.

    Raises:
        CosetError: Depths that are zero or negative, or none at all.

    >>> log_depth(torch.tensor([[[1.0, 0.0]]]), zeros="missing")
    tensor([[[[0., nan]]]])
    """
    if zeros not in ("refuse", "missing"):
        raise CosetError(f"got zeros={zeros!r}", "needed 'refuse' or 'missing'", "choose one")
    if depths.ndim != 3 or not depths.is_floating_point():
        raise CosetError(
            f"got depths of shape {tuple(depths.shape)} and type {depths.dtype}",
            "needed floating-point numbers (n, h, w)",
            "use depths[:, 0].float() where they have a channel of their own",
        )
    if zeros == "missing":
        depths = depths.masked_fill(depths == 0, torch.nan)
    known = depths[~depths.isnan()]
    if not known.numel():
        raise CosetError(
            "every depth is missing", "needed some that are known", "check the readings"
        )
    if float(known.amin()) <= 0 or not bool(known.isfinite().all()):
        holes = int((known == 0).sum())
        raise CosetError(
            f"got depths from {float(known.amin()):.4g} to {float(known.amax()):.4g}, "
            f"{holes} of them zero",
            "needed positive, finite numbers",
            "pass zeros='missing' if zero means that nothing was measured",
        )
    middle = float(known.median())
    if middle > _FARTHEST:
        warnings.warn(
            f"half of the depths are above {middle:.0f}: in millimetres? divide them by 1000 for "
            "metres",
            stacklevel=2,
        )
    return depths.log().unsqueeze(1)


def depth_interval(
    mean: Float[Tensor, "n 1 h w"], variance: Float[Tensor, "n 1 h w"], *, level: float = 0.9
) -> tuple[Float[Tensor, "n h w"], Float[Tensor, "n h w"], Float[Tensor, "n h w"]]:
    """Lower end, median and upper end of depths whose logarithms have these moments.

    ``exp(μ - z σ)``, ``exp μ``, ``exp(μ + z σ)``: the central interval that should hold ``level``
    of the depths.

    >>> low, middle, high = depth_interval(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    >>> round(float(high), 3)  # exp 1.645
    5.18
    """
    if not 0 < level < 1:
        raise CosetError(f"got level={level}", "needed a number between 0 and 1", "give 0.9")
    half = 2**0.5 * torch.erfinv(torch.tensor(level, dtype=torch.float64))
    mean, width = mean[:, 0], float(half) * variance[:, 0].sqrt()
    return (mean - width).exp(), mean.exp(), (mean + width).exp()
