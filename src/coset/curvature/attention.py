"""The attention of ``nn.MultiheadAttention``, as the linear maps that it is made of."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from coset.curvature.direct import meet
from coset.curvature.layers import read_linear
from coset.curvature.maps import LinearMap, linear
from coset.curvature.watch import Origin, Watch

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


def read_attention(watch: Watch, function: Any, *args: Any, **named: Any) -> Any:
    """Attention as its projections; keys and values that are added to the data's are foreign."""
    given = inspect.signature(function).bind(*args, **named)
    given.apply_defaults()
    a = given.arguments
    extra = ("bias_k", "bias_v", "static_k", "static_v")
    random = a["training"] and a["dropout_p"] > 0
    apart = any(a[k].dim() != 3 or watch.axis(a[k]) != 1 for k in ("query", "key", "value"))
    odd = apart or random or a["add_zero_attn"]
    parts = None if odd or any(a[k] is not None for k in extra) else _projected(watch, a)
    if parts is None:
        return None
    found = attend(
        parts,
        a["num_heads"],
        lambda rows: read_linear(
            watch, functional.linear, rows, a["out_proj_weight"], a["out_proj_bias"]
        ),
        (a["attn_mask"], a["key_padding_mask"]),
    )
    if found is None:
        return None
    outputs, shares = found
    mean = shares.mean(1) if a["average_attn_weights"] else shares
    return outputs.transpose(0, 1), mean if a["need_weights"] else None


def _projected(watch: Watch, a: Mapping[str, Any]) -> Sequence[Tensor] | None:
    """Queries, keys and values, by one product where they are made from the same rows."""
    rows = [a[name].transpose(0, 1) for name in ("query", "key", "value")]
    weight, bias = a["in_proj_weight"], a["in_proj_bias"]
    if a["query"] is a["key"] and a["key"] is a["value"] and weight is not None:
        packed = read_linear(watch, functional.linear, rows[0], weight, bias)
        return None if packed is None else packed.chunk(3, dim=-1)
    found: list[Tensor] = []
    for number, (name, part) in enumerate(zip("qkv", rows, strict=True)):
        if weight is None:
            own = read_linear(watch, functional.linear, part, a[f"{name}_proj_weight"], None)
            if own is not None and bias is not None:
                piece = bias.chunk(3)[number]
                own = meet(watch, torch.add, own, _piece(watch, bias, piece, number))
        else:
            own = _third(watch, part, (weight, bias), number)
        if own is None:
            return None
        found.append(own)
    return found


def _piece(watch: Watch, bias: Tensor, piece: Tensor, number: int) -> Tensor:
    """A third of a bias, as a tensor of known origin."""
    name = watch.name_of(bias)
    if name is None:
        return piece
    return watch.remember(piece, Origin(name, lambda whole: whole.chunk(3)[number]))


def _third(
    watch: Watch, input: Tensor, layer: tuple[Tensor, Tensor | None], number: int
) -> Tensor | None:
    """A third of the outputs of a linear layer: the gradient of the others is zero."""
    if not watch.fits(input):
        return None
    weight, bias = layer
    width = len(weight) // 3
    names = watch.name_of(weight), watch.name_of(bias)
    beside = (number * width, (2 - number) * width)

    def among_zeros(use: LinearMap) -> LinearMap:
        return replace(use, left=lambda gradient: use.left(functional.pad(gradient, beside)))

    found = linear(names, input.detach(), weight, joint=watch.joint(names))
    own = bias if bias is None else bias.chunk(3)[number]
    outputs = functional.linear(input, weight.chunk(3)[number], own)
    return watch.note(outputs, [among_zeros(use) for use in found])
