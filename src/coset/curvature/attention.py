"""Self-attention of ``nn.MultiheadAttention`` as the two linear maps that it is made of."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Project = Callable[[Tensor, Tensor, Tensor | None], Tensor | None]
"""A linear map of rows ``(n, length, features)`` by a weight and a bias."""

Mask = Float[Tensor, "..."] | Bool[Tensor, "..."]


def attend(
    project: Project,
    query: Float[Tensor, "length n e"],
    heads: int,
    weights: tuple[Tensor, Tensor | None],
    last: tuple[Tensor, Tensor | None],
    masks: tuple[Mask | None, Mask | None],
) -> tuple[Float[Tensor, "length n e"], Float[Tensor, "n h length length"]] | None:
    r"""``W_o [softmax(q kᵀ / √d) v]`` over all heads, with ``(q, k, v) = W_i x``.

    Args:
        project: How a linear map is taken; ``None`` from it is passed on.
        query: The inputs, which are keys and values too.
        heads: How many.
        weights: ``W_i`` and its bias.
        last: ``W_o`` and its bias.
        masks: Of pairs of places ``(length, length)`` or ``(n · h, length, length)``, and of keys
            ``(n, length)``: true, or minus infinity, where not to look.
    """
    rows = query.transpose(0, 1)
    count, length, width = rows.shape
    packed = project(rows, *weights)
    if packed is None:
        return None
    split = packed.reshape(count, length, 3, heads, width // heads)
    q, k, v = split.permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / (width // heads) ** 0.5
    for mask, shape in zip(masks, _shapes(masks, count, heads, length), strict=True):
        if mask is not None:
            scores = scores + _added(mask, scores.dtype).reshape(shape)
    shares = scores.softmax(-1)
    mixed = (shares @ v).transpose(1, 2).reshape(count, length, width)
    outputs = project(mixed, *last)
    return None if outputs is None else (outputs.transpose(0, 1), shares)


def _shapes(masks: Any, count: int, heads: int, length: int) -> tuple[tuple[int, ...], ...]:
    """How masks of pairs and of keys are laid beside scores ``(n, h, length, length)``."""
    pairs = (-1, heads, length, length) if masks[0] is not None and masks[0].dim() == 3 else None
    return pairs or (1, 1, length, length), (count, 1, 1, length)


def _added(mask: Mask, dtype: torch.dtype) -> Tensor:
    """What is added to scores."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)
    return mask.to(dtype)
