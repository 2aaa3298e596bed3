"""Random points at which networks are compared."""

from collections.abc import Collection, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.vocabulary import Weights


def require_finite(module: nn.Module) -> None:
    """Refuses weights at which networks cannot be compared, and names the tensor.

    Masks may be infinite: buffers and parameters that are not trained.
    """
    tensors = chain(module.named_parameters(), module.named_buffers())
    for name, tensor in tensors:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.isfinite().all():
            continue
        wrong = ~tensor.isfinite() if tensor.requires_grad else tensor.isnan()
        if count := int(wrong.sum()):
            raise CosetError(
                f"got a module with {count} numbers in {name!r} that are infinite or not numbers",
                "needed finite weights",
                "take a checkpoint from before training diverged",
            )


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
