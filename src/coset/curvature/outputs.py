"""Small things between the outputs of a network and its likelihood."""

from jaxtyping import Float
from torch import Tensor


def through_root(
    root: Tensor, rows: Float[Tensor, "nc k"], outputs: Tensor, *, transpose: bool
) -> Float[Tensor, "nr k"]:
    """``Rᵀ`` or ``R`` times rows that are ordered as the flat outputs ``n c pixels``.

    >>> import torch
    >>> root = torch.tensor([[[3.0, 4.0], [0.0, 2.0]]])  # one example with two outputs
    >>> through_root(root, torch.ones(2, 1), torch.zeros(1, 2), transpose=True).flatten()
    tensor([3., 6.])
    """
    count, pixels = len(outputs), tuple(outputs.shape[2:])
    last = outputs.shape[1] if transpose else root.shape[-1]
    blocks = rows.reshape(count, last, *pixels, -1).movedim(1, -2)  # n pixels c k
    product = (root.mT if transpose else root) @ blocks
    return product.movedim(-2, 1).reshape(-1, rows.shape[1])
