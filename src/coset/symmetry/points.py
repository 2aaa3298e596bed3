"""Random points at which networks are compared."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from coset.vocabulary import Weights


def general_position(
    weights: Weights, positive: Collection[str], *, generator: torch.Generator
) -> Weights:
    """Weights near the given ones with nothing special about them.

    Fresh norms have weights one and biases zero, which hides errors; so everything is jittered.
    """
    drawn = {}
    for name, tensor in weights.items():
        noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        size = tensor.double().square().mean().sqrt().clamp(0.05, 10.0) if tensor.numel() else 1.0
        value = tensor.double() + 0.3 * size * noise
        drawn[name] = value.abs() + 0.1 if name in positive else value
    return drawn


def random_inputs(inputs: Sequence[Tensor], *, generator: torch.Generator) -> list[Tensor]:
    """Noise in place of floating inputs; others (token numbers) stay as they are."""
    return [
        torch.randn(x.shape, dtype=torch.float64, generator=generator)
        if x.is_floating_point()
        else x
        for x in inputs
    ]
