"""How much there is to compute, counted instead of timed."""

import torch
from torch import Tensor

from coset.weights.network import Network

HEAVY = 3e7
"""Floating-point operations that take about as long as the Python around a training step."""


def operations_per_example(network: Network, inputs: Tensor) -> float:
    """Floating-point operations of a forward pass, as torch counts them.

    Of an ``a × b`` matrix they are ``2 a b``; entry-wise functions are not counted.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.apply(network.weights, inputs[:1])
    return float(counter.get_total_flops())


def operations_per_step(network: Network, inputs: Tensor, *, members: int, batch: int) -> float:
    """Operations of a training step: a backward pass takes twice those of a forward pass."""
    return 3 * operations_per_example(network, inputs) * batch * members
