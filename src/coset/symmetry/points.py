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
        # single precision is random enough, and takes a quarter of the time
        noise = torch.randn(tensor.shape, generator=generator).double()
        length = torch.linalg.vector_norm(tensor.double()) if tensor.numel() else torch.ones(())
        size = (length / max(1, tensor.numel()) ** 0.5).clamp(0.05, 10.0)
        value = noise.mul_(0.3 * float(size)).add_(tensor.cpu())
        drawn[name] = value.abs_().add_(0.1) if name in positive else value
    return drawn


def random_inputs(inputs: Sequence[Tensor], *, generator: torch.Generator) -> list[Tensor]:
    """Noise in place of floating inputs; others (token numbers) stay as they are."""
    return [
        torch.randn(x.shape, dtype=torch.float64, generator=generator)
        if x.is_floating_point()
        else x
        for x in inputs
    ]
