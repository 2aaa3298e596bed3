"""The attention of ``nn.MultiheadAttention``, as the linear maps that it is made of."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Projection = Callable[[Tensor], Tensor | None]
"""A linear map of rows ``(n, length, features)``; ``None`` where it cannot be followed."""

Mask = Float[Tensor, "..."] | Bool[Tensor, "..."]


def attend(
    parts: Sequence[Float[Tensor, "n length e"]],
    heads: int,
    last: Projection,
    masks: tuple[Mask | None, Mask | None],
) -> tuple[Float[Tensor, "n length e"], Float[Tensor, "n h length keys"]] | None:
    r"""``W_o [softmax(q kᵀ / √d) v]`` over all heads.

    Args:
        parts: ``q``, ``k`` and ``v``.
        heads: How many.
        last: The map ``W_o``.
        masks: Of pairs of places ``(length, keys)`` or ``(n · h, length, keys)``, and of keys
            ``(n, keys)``: true, or minus infinity, where not to look.
    """
    count, length, width = parts[0].shape
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
    scores = q @ k.mT / (width // heads) ** 0.5
    for mask, shape in zip(masks, _shapes(masks, scores.shape), strict=True):
        if mask is not None:
            scores = scores + _added(mask, scores.dtype).reshape(shape)
    shares = scores.softmax(-1)
    outputs = last((shares @ v).transpose(1, 2).reshape(count, length, -1))
    return None if outputs is None else (outputs, shares)


def _shapes(masks: Any, scores: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """How masks of pairs and of keys are laid beside scores ``(n, h, length, keys)``."""
    count, heads, length, keys = scores
    each = masks[0] is not None and masks[0].dim() == 3
    return (-1, heads, length, keys) if each else (1, 1, length, keys), (count, 1, 1, keys)


def _added(mask: Mask, dtype: torch.dtype) -> Tensor:
    """What is added to scores."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)
    return mask.to(dtype)
