"""Attention by formulas that have derivatives of both modes, in place of fused kernels.

Torch's own switches for it hold for the whole process, so that other threads would compute by other
formulas for a while, or for ever; this one holds for the thread.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.weights.calls import Arguments, Calls, Named, TorchFunction


class PlainAttention(Calls):
    """Takes fused attention apart inside ``with``, in this thread.

    While such a mode is on, torch leaves the fast path of its attention layers by itself.

    >>> query = torch.zeros(1, 2, 4, requires_grad=True)
    >>> with PlainAttention():
    ...     outputs = functional.scaled_dot_product_attention(query, query, query)
    >>> type(outputs.grad_fn).__name__  # a product of matrices
    'UnsafeViewBackward0'
    """

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Runs the function, or the formula."""
        if function is functional.scaled_dot_product_attention:
            return _attention(*args, **given)
        if function is functional.multi_head_attention_forward and not given.get("need_weights"):
            return function(*args, **{**given, "need_weights": True})[0], None
        return function(*args, **given)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *rest: Any,
    **given: Any,
) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    names = ("dropout_p", "is_causal")
    given |= dict(zip(names, rest, strict=False))
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, **given
    )
    return found[0]
