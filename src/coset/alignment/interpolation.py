"""Straight lines between networks, and means of networks."""

from collections.abc import Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.vocabulary import Weights
from coset.weights.refusals import as_weights
from coset.weights.stacking import check_fit, members_of


def interpolate(a: Weights, b: Weights, t: float) -> Weights:
    """The point ``(1 - t) a + t b`` of the line from ``a`` to ``b``.

    >>> interpolate({"w": torch.zeros(2)}, {"w": torch.ones(2)}, 0.25)
    {'w': tensor([0.2500, 0.2500])}
    """
    as_weights(a, "the first weights")
    as_weights(b, "the second weights")
    check_fit(b, a, what="the second weights")
    single = isinstance(t, int | float) or (isinstance(t, Tensor) and t.numel() == 1)
    if not single or not isfinite(t):
        raise CosetError(f"got t={t!r}", "needed a finite number: 0 is a, 1 is b")
    return {
        name: _between(tensor, b[name].to(tensor.dtype), t)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in a.items()
    }


def _between(a: Tensor, b: Tensor, t: float) -> Tensor:
    """The point of the line; equal infinities, those of masks, stay."""
    return torch.where(a.isinf() & (a == b), a, torch.lerp(a, b, t))


def average(members: Weights | Sequence[Weights]) -> Weights:
    """The mean of networks of one architecture; align them first (:func:`coset.match_many`).

    Args:
        members: A stack, or a list of weights.

    >>> average([{"w": torch.zeros(1)}, {"w": torch.ones(1)}])
    {'w': tensor([0.5000])}
    """
    if isinstance(members, Mapping):
        members_of(as_weights(members, "the stack"))
        return {
            name: tensor.mean(0) if tensor.is_floating_point() else tensor[0].clone()
            for name, tensor in members.items()
        }
    if not isinstance(members, Sequence):
        raise CosetError(
            f"got {type(members).__name__} to average", "needed a stack or a list of weights"
        )
    if not members:
        raise CosetError("got no weights to average", "needed at least one network")
    for index, member in enumerate(members):
        as_weights(member, f"member {index}")
        check_fit(member, members[0], what=f"member {index}")
    return {
        name: _mean([member[name] for member in members])
        if first.is_floating_point()
        else first.clone()
        for name, first in members[0].items()
    }


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor at a time: many networks would not fit in memory twice."""
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total = total + tensor
    return (total / len(tensors)).to(tensors[0].dtype)
