"""How much there is to compute, counted instead of timed."""

from typing import Any

import torch
from torch.nn import functional

from coset.vocabulary import Inputs
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.inputs import take_rows
from coset.weights.network import Network

HEAVY = 3e7
"""Floating-point operations that take about as long as the Python around a training step."""

_LAYERS = {functional.linear, torch.conv1d, torch.conv2d, torch.conv3d}


class _Count(Calls):
    """Adds up ``2 · outputs · weights an output`` over linear layers and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: int = 0

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Counts and calls."""
        outputs = function(*args, **given)
        if function in _LAYERS:
            weight = args[1] if len(args) > 1 else given["weight"]
            self.operations += 2 * outputs.numel() * weight[0].numel()
        return outputs


def operations_per_example(network: Network, inputs: Inputs) -> int:
    """Floating-point operations of linear layers and convolutions in a forward pass.

    Of an ``a × b`` matrix they are ``2 a b``.  What else a network does is not counted: the number
    decides how to compute, not what.
    """
    count = _Count()
    with count, torch.no_grad():
        network.apply(network.weights, take_rows(inputs, slice(1)))
    return count.operations


def operations_per_step(network: Network, inputs: Inputs, *, members: int, batch: int) -> int:
    """Operations of a training step: a backward pass takes twice those of a forward pass."""
    return 3 * operations_per_example(network, inputs) * batch * members
