"""Straight lines between networks, and means of networks."""

from collections.abc import Sequence

import torch

from coset.errors import CosetError
from coset.vocabulary import Weights
from coset.weights.stacking import check_fit, members_of


def interpolate(a: Weights, b: Weights, t: float) -> Weights:
    """The point ``(1 - t) a + t b`` of the line from ``a`` to ``b``.

    >>> interpolate({"w": torch.zeros(2)}, {"w": torch.ones(2)}, 0.25)
    {'w': tensor([0.2500, 0.2500])}
    """
    check_fit(b, a, what="the second weights")
    return {
        name: torch.lerp(tensor, b[name].to(tensor.dtype), t)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in a.items()
    }


def average(members: Weights | Sequence[Weights]) -> Weights:
    """The mean of networks of one architecture; align them first (:func:`coset.match_many`).

    Args:
        members: A stack, or a list of weights.

    >>> average([{"w": torch.zeros(1)}, {"w": torch.ones(1)}])
    {'w': tensor([0.5000])}
    """
    if isinstance(members, dict):
        members_of(members)
        return {
            name: tensor.mean(0) if tensor.is_floating_point() else tensor[0].clone()
            for name, tensor in members.items()
        }
    if not members:
        raise CosetError("got no weights to average", "needed at least one network")
    for index, member in enumerate(members[1:], start=1):
        check_fit(member, members[0], what=f"member {index}")
    return {
        name: sum(member[name] for member in members[1:]) / len(members) + first / len(members)
        if first.is_floating_point()
        else first.clone()
        for name, first in members[0].items()
    }
