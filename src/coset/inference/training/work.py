"""How much there is to compute, counted instead of timed."""

from typing import Any

import torch
from torch.nn import functional

from coset.vocabulary import Inputs
from coset.weights.calls import Arguments, Listening, Named, TorchFunction
from coset.weights.inputs import take_rows
from coset.weights.network import Network

HEAVY = 3e7
"""Floating-point operations that take about as long as the Python around a training step."""

_LAYERS = {functional.linear, torch.conv1d, torch.conv2d, torch.conv3d}


def operations_per_example(network: Network, inputs: Inputs) -> int:
    """Floating-point operations of linear layers and convolutions in a forward pass.

    Of an ``a × b`` matrix they are ``2 a b``, of a convolution ``2 · outputs · weights an output``.
    What else a network does is not counted: the number
    decides how to compute, not what.
    """
    operations: list[int] = []

    def count(function: TorchFunction, args: Arguments, given: Named, outputs: Any) -> None:
        if function in _LAYERS:
            weight = args[1] if len(args) > 1 else given["weight"]
            operations.append(2 * outputs.numel() * weight[0].numel())

    with Listening(count), torch.no_grad():
        network.apply(network.weights, take_rows(inputs, slice(1)))
    return sum(operations)


def operations_per_step(network: Network, inputs: Inputs, *, members: int, batch: int) -> int:
    """Operations of a training step: a backward pass takes twice those of a forward pass."""
    return 3 * operations_per_example(network, inputs) * batch * members
