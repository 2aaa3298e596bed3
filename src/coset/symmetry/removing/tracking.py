"""How the canonical order of units changes while a network is trained."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.printing import brief
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonical_form
from coset.vocabulary import Weights


@dataclass(frozen=True)
class OrderTrack:
    """The ranks of the units of one factor over ``t`` checks, for weights or ``m`` members.

    Attributes:
        ranks: ``(t, [m,] *within, size)``: place of each unit in the canonical order of its copy.
        changed: ``(t − 1, [m])``: fraction of units whose rank is not that of the check before.
        transpositions: ``(t, [m])``: how many swaps lead from the first order to this one.
        final: ``([m])``: first step from which on the order is that of the last check.
    """

    ranks: Tensor
    changed: Tensor
    transpositions: Tensor
    final: Tensor

    __repr__ = brief


def track_order(
    group: SymmetryGroup, checkpoints: Sequence[Weights], *, steps: Sequence[int] | None = None
) -> dict[str, OrderTrack]:
    """Follows the canonical order of every permutation factor along training.

    Args:
        group: The symmetries of the network.
        checkpoints: Weights, or stacks of the same members, in the order of training.
        steps: The step of each checkpoint; by default 0, 1, 2, …

    Returns:
        For every factor, how its units change places.

    Raises:
        CosetError: If there is no checkpoint, or the steps do not fit.

    >>> from torch import nn
    >>> from coset import discover, weights_of
    >>> net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> group = discover(net, torch.zeros(1, 1))
    >>> first = {**weights_of(net), "0.weight": torch.tensor([[3.0], [2.0], [1.0]])}
    >>> later = {**first, "0.weight": torch.tensor([[2.0], [3.0], [1.0]])}
    >>> track = track_order(group, [first, later, later], steps=[0, 100, 200])["0"]
    >>> [round(float(x), 3) for x in track.changed], track.transpositions.tolist()
    ([0.667, 0.0], [0, 1, 1])
    >>> int(track.final)
    100
    """
    if not checkpoints:
        raise CosetError("got no checkpoints", "needed weights along training")
    times = torch.tensor(list(range(len(checkpoints)) if steps is None else steps))
    if len(times) != len(checkpoints):
        raise CosetError(
            f"got {len(times)} steps for {len(checkpoints)} checkpoints", "needed one for each"
        )
    single = any(checkpoints[0][name].dim() == len(s) for name, s in group.shapes.items())
    elements = [group.inverse(canonical_form(group, weights).element) for weights in checkpoints]
    tracks = {}
    for factor in group.permutations:
        ranks = torch.stack([element.permutations[factor.name] for element in elements])
        track = _track(ranks, times)
        tracks[factor.name] = _of_one(track) if single else track
    return tracks


def _track(ranks: Tensor, times: Tensor) -> OrderTrack:
    flat = ranks.reshape(*ranks.shape[:2], -1, ranks.shape[-1])
    changed = (flat[1:] != flat[:-1]).double().mean((-1, -2))
    # the unit with rank k at first has rank relative[k] now
    relative = flat.gather(-1, flat[0].argsort(-1).expand_as(flat))
    swaps = relative.shape[-1] - _cycles(relative)
    settled = (flat == flat[-1]).flatten(-2).all(-1).flip(0).long().cumprod(0).sum(0)
    return OrderTrack(ranks, changed, swaps.sum(-1), times[len(times) - settled])


def _of_one(track: OrderTrack) -> OrderTrack:
    return OrderTrack(
        track.ranks[:, 0], track.changed[:, 0], track.transpositions[:, 0], track.final[0]
    )


def _cycles(permutations: Tensor) -> Tensor:
    """Number of cycles: each counts once, at its smallest index."""
    index = torch.arange(permutations.shape[-1]).expand_as(permutations)
    smallest, jump = index, permutations
    # doubling: after k rounds each index knows the smallest of the next 2^k of its cycle
    for _ in range(max(1, permutations.shape[-1] - 1).bit_length()):
        smallest = torch.minimum(smallest, smallest.gather(-1, jump))
        jump = jump.gather(-1, jump)
    return (smallest == index).sum(-1)
