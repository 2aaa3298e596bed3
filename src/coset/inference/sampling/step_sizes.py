"""Step sizes of samplers without an accept step, from the largest curvature of the energy."""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.inference.sampling.targets import FullBatch

_ROUNDS = 12
_REACH = 1e-3


def largest_curvature(
    target: FullBatch,
    positions: Float[Tensor, "m p"],
    buffers: Float[Tensor, "m q"],
    *,
    generator: torch.Generator,
    setting: str = "step_size",
) -> float:
    """The largest eigenvalue (by size) of the energy's Hessian, over all chains.

    Power iteration with central differences of gradients, ``H v ≈ (∇U(w + εv) - ∇U(w - εv)) / 2ε``:
    two gradients a round, exact for a quadratic energy.  An error advises to give the ``setting``.
    """
    direction = torch.randn(
        positions.shape, dtype=positions.dtype, device=positions.device, generator=generator
    )
    value = positions.new_zeros(len(positions))
    for _ in range(_ROUNDS):
        direction = direction / direction.norm(dim=1, keepdim=True)
        reach = _REACH * (1 + positions.norm(dim=1, keepdim=True))
        ahead = target(positions + reach * direction, buffers).gradient
        behind = target(positions - reach * direction, buffers).gradient
        direction = (ahead - behind) / (2 * reach)
        value = direction.norm(dim=1)
    largest = float(value.max())
    if not 0 < largest < float("inf"):
        raise CosetError(
            f"got an energy with a curvature of {largest} at the current weights",
            "needed a finite positive one to choose a step by",
            f"give {setting}, or start from trained weights",
        )
    return largest
