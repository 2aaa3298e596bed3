"""Dropout masks folded into the weights that read what they drop.

``W (m ⊙ x) = (W diag m) x``: after folding, the network without dropout computes what it computed
with the masks.  This is the posterior over weights that dropout stands for (Gal and Ghahramani).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.errors import CosetError
from coset.vocabulary import Inputs, Weights
from coset.weights.calls import Arguments, Listening, Named, TorchFunction
from coset.weights.masks import PREFIX, ROWS, Dropouts, split_masks
from coset.weights.network import Network
from coset.weights.stacking import stack, unstack

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)

_PASSING: frozenset[Callable[..., Any]] = frozenset(
    {
        *(functional.relu, torch.relu, Tensor.relu, functional.leaky_relu),
        *(functional.max_pool1d, functional.max_pool2d, torch.max_pool1d, torch.max_pool2d),
        *(functional.avg_pool1d, functional.avg_pool2d, functional.adaptive_avg_pool2d),
        *(torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view),
    }
)
"""Where a mask may pass: ``f(m ⊙ x) = f(m) ⊙ f(x)`` for masks of whole channels, or of shapes."""

_SLACK = 1e-3
"""Share of the largest output by which folded networks may differ from masked ones."""


def fold_masks(network: Network, members: Weights, inputs: Inputs) -> Weights:
    """A stack whose masks have become part of its weights; it is checked to compute the same.

    Args:
        network: The network of all members.
        members: A stack with masks, or without any: then it is returned as it is.
        inputs: A few examples.
    """
    _, masks = split_masks(members)
    if not masks:
        return members
    if any(name.startswith(ROWS) for name in masks):
        raise CosetError(
            "got dropout with masks of their own for each example",
            "needed draws that are one setting of the weights each",
            "use MCDropout(per_example=False)",
        )
    folded = [_folded(network, member, inputs) for member in unstack(members)]
    for member, own in zip(unstack(members), folded, strict=True):
        wanted, found = network.apply(member, inputs), network.apply(own, inputs)
        if not bool((found - wanted).abs().max() <= _SLACK * wanted.abs().max()):
            raise _refusal("that something other than one linear layer or convolution reads")
    return stack(folded)


@torch.no_grad()
def _folded(network: Network, member: Weights, inputs: Inputs) -> Weights:
    proper, masks = split_masks(member)
    reading = _Reading(proper)
    reached = iter(range(len(masks)))

    def note(values: Tensor, rate: float, whole_channels: bool) -> Tensor:
        number = next(reached)
        copy = values.clone()  # another tensor than what was dropped from, which others may read
        reading.follow(copy, masks[f"{PREFIX}{number}"].expand_as(values), number)
        return copy

    with Listening(reading.hear), Dropouts(note):
        network.apply(proper, inputs)
    if len(reading.folded) < len(masks):
        raise _refusal("that no linear layer or convolution reads")
    return reading.weights


class _Reading:
    """Follows masked values to the layers that read them, and folds the masks in there."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.folded = dict(weights), set[int]()
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self._followed: dict[int, tuple[Tensor, Tensor, int]] = {}

    def follow(self, values: Tensor, mask: Tensor, number: int) -> None:
        """Remembers that ``values`` are to be multiplied by a mask; they are kept alive."""
        self._followed[id(values)] = values, mask, number

    def hear(self, function: TorchFunction, args: Arguments, given: Named, found: Any) -> None:
        """Looks at a function that may have read masked values, and at what it returned."""
        source = args[0] if args else given.get("input")
        if id(source) in self._followed:
            _, mask, number = self._followed[id(source)]
            if function in _PASSING:
                self.follow(found, function(mask, *args[1:], **given), number)
            elif function is functional.linear or function in _CONVOLUTIONS:
                weight = args[1] if len(args) > 1 else given["weight"]
                self._fold(weight, mask, number)

    def _fold(self, weight: Tensor, mask: Tensor, number: int) -> None:
        name, channels = self._names.get(id(weight)), weight.shape[1]
        if weight.dim() == 2:
            each = mask.reshape(-1, mask.shape[-1])[0]
        else:
            each = mask[0].reshape(mask.shape[1], -1)[:, 0]
        if name is None or len(each) != channels:  # grouped, or computed from other weights
            return
        self.weights[name] = self.weights[name] * each.view(1, -1, *[1] * (weight.dim() - 2))
        self.folded.add(number)


def _refusal(what: str) -> CosetError:
    return CosetError(
        f"got a dropout {what}, so its masks cannot become part of the weights",
        "needed draws that are one setting of the weights each",
        "let each dropout lead into a linear layer or a convolution, or use another inner method",
    )
