"""Random points at which networks are compared."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.vocabulary import Weights

# Draws for a network that answered nothing at the first ones.  One that answers at one draw in
# eight (three layers of a single ReLU each) is silent at all of these with probability 2e-4.
_DRAWS = 64


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
    weights: Weights,
    positive: Collection[str],
    *,
    generator: torch.Generator,
    spread: float = 0.3,
) -> Weights:
    """Weights near the given ones with nothing special about them.

    Fresh norms have weights one and biases zero, which hides errors; so everything is jittered, by
    ``spread`` times the size of a tensor's entries.
    """
    drawn = {}
    for name, tensor in weights.items():
        # single precision is random enough, and takes a quarter of the time
        noise = torch.randn(tensor.shape, generator=generator).double()
        length = torch.linalg.vector_norm(tensor.double()) if tensor.numel() else torch.ones(())
        size = (length / max(1, tensor.numel()) ** 0.5).clamp(0.05, 10.0)
        value = noise.mul_(spread * float(size)).add_(tensor.cpu())
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


def further_points(
    weights: Weights,
    positive: Collection[str],
    inputs: Sequence[Tensor],
    *,
    generator: torch.Generator,
) -> Iterator[tuple[Weights, list[Tensor]]]:
    """Weights of any sign, and noise as inputs, for networks that are silent near the given ones.

    A ReLU is zero at half of all points: a network of few units answers nothing at some.
    """
    for _ in range(_DRAWS):
        point = general_position(weights, positive, generator=generator, spread=3.0)
        yield point, random_inputs(inputs, generator=generator)


def vanishes(outputs: Sequence[Tensor]) -> bool:
    """Whether outputs are zero throughout, so that a comparison with them says nothing."""
    numbers = [out for out in outputs if out.is_floating_point() and out.numel()]
    return bool(numbers) and len(numbers) == len(outputs) and not any(map(torch.any, numbers))


def silent() -> CosetError:
    """For networks whose outputs vanish at all draws."""
    return CosetError(
        "got a network whose outputs are all zero at random weights",
        "needed outputs that symmetries can be checked by",
        "give an example on which it answers something else",
    )
