"""Diversity of the members of a posterior: how much they disagree, and where."""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.metrics.checks import (
    check_floating,
    check_probabilities,
    check_shape,
    check_simplex,
    working,
)

BLOCK = 1 << 17
"""Entries worked on at a time: half a megabyte in float32, so that a block stays in cache."""


def entropy(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """The entropy of each input's prediction in nats: −Σ_k p_k log p_k, with 0 log 0 = 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()  # log 2 and zero
    [0.693..., 0.0]
    """
    check_probabilities("probabilities", probabilities)
    return entropy_unchecked(probabilities)


def entropy_unchecked(probabilities: Float[Tensor, "*axes c"]) -> Float[Tensor, "*axes"]:
    """The entropy over the last axis, of probabilities that were checked before."""
    values = working(probabilities)
    # torch.special.entr costs thirteen times this product: it is not vectorised.
    tiny = torch.finfo(values.dtype).tiny
    return (0 - (values.clamp_min(tiny).log() * values).sum(-1)).to(probabilities.dtype)


def mutual_information(members: Float[Tensor, "m n c"]) -> Float[Tensor, " n"]:
    """How much the members disagree on each input, in nats, at least zero and at most log m.

    H(1/m Σ_i p_i) − 1/m Σ_i H(p_i): the mutual information between the prediction and the choice of
    the member, which is the Jensen–Shannon divergence of the members.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()  # log 2
    [0.693...]
    """
    check_floating("members", members)
    check_shape("members", members, ("m", "n", "c"))
    count, _, classes = members.shape
    rows = max(1, BLOCK // (count * classes))
    blocks = []
    for block in members.split(rows, dim=1):
        # Checked here, not in a pass of its own: the block is in cache for what follows.
        check_simplex("members", block.detach())
        blocks.append(_mutual_information_block(block))
    return torch.cat(blocks)


def _mutual_information_block(members: Float[Tensor, "m n c"]) -> Float[Tensor, " n"]:
    values = working(members)
    mean = values.mean(0)
    difference = entropy_unchecked(mean) - entropy_unchecked(values).mean(0)
    return difference.clamp_min(0).to(members.dtype)
