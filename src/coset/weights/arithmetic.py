"""Tensor arithmetic lifted to weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from coset.vocabulary import Weights


def map_weights(function: Callable[..., Tensor], first: Weights, *others: Weights) -> Weights:
    """Applies a function tensor by tensor; every argument has the names of the first.

    >>> map_weights(torch.add, {"w": torch.ones(1)}, {"w": torch.ones(1)})
    {'w': tensor([2.])}
    """
    return {name: function(first[name], *(other[name] for other in others)) for name in first}


def noise_like(weights: Weights, *, generator: torch.Generator) -> Weights:
    """Independent standard normal noise in the shapes of ``weights``."""
    return {
        name: torch.randn(
            tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator
        )
        for name, tensor in weights.items()
    }


def squared_norm(weights: Weights) -> Tensor:
    """The sum of all squared entries.

    >>> squared_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    tensor(25.)
    """
    return torch.stack([tensor.square().sum() for tensor in weights.values()]).sum()
