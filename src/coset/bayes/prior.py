"""Gaussian priors on weights, with as many precisions as one wants."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError, told
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout

Precision = float | Tensor


@dataclass(frozen=True)
class GaussianPrior:
    """Independent zero-mean Gaussians: ``log p(w) = Σ log N(w; 0, 1/precision)``.

    Attributes:
        precision: One number for all weights; or a dictionary with, for each tensor, a number or
            a tensor that broadcasts to it (shape ``(rows, 1, 1, 1)``: one precision per filter).

    >>> prior = GaussianPrior(4.0)
    >>> prior.log_prob({"w": torch.zeros(2)}).exp()  # (sqrt(4 / 2π))²
    tensor(0.6366)
    """

    precision: Precision | Mapping[str, Precision] = 1.0

    __repr__ = brief

    def __post_init__(self) -> None:
        given = self.precision
        values = given.values() if isinstance(given, Mapping) else [given]
        for value in values:
            if not _are_precisions(value):
                raise CosetError(
                    f"got a prior precision of {told(value)}",
                    "needed finite numbers, zero or larger",
                )

    def of(self, name: str, tensor: Tensor) -> Tensor:
        """The precision of one named tensor, ready to broadcast against it."""
        if isinstance(self.precision, Mapping):
            if name not in self.precision:
                raise CosetError(
                    f"got a prior without a precision for {name!r}",
                    "needed one for every tensor",
                    f"it has {', '.join(list(self.precision)[:6])}",
                )
            value = self.precision[name]
        else:
            value = self.precision
        precision = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
        try:
            precision.expand(tensor.shape)
        except RuntimeError:
            raise CosetError(
                f"got precisions of shape {tuple(precision.shape)} for {name!r}",
                f"needed a shape that broadcasts to {tuple(tensor.shape)}",
            ) from None
        return precision

    def flat(self, layout: Layout, like: Tensor) -> Float[Tensor, " p"]:
        """One precision a parameter, in the order, dtype and device of a flat vector."""
        parts = [
            self.of(name, like.new_empty(shape)).expand(shape).reshape(-1)
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        return torch.cat(parts)

    def penalty(self, weights: Weights) -> Tensor:
        """``½ Σ precision · w²``: the negative log-density without its constant."""
        return (
            torch.stack([(self.of(name, w) * w.square()).sum() for name, w in weights.items()])
            .sum()
            .div(2)
        )

    def log_prob(self, weights: Weights) -> Tensor:
        """The log-density of the parameters given (buffers must be left out)."""
        constants = torch.stack(
            [
                (self.of(name, w).expand(w.shape).log() - math.log(2 * math.pi)).sum()
                for name, w in weights.items()
            ]
        )
        return constants.sum() / 2 - self.penalty(weights)


def _are_precisions(value: Precision) -> bool:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # no numbers
        return False
    return bool((tensor >= 0).all()) and bool(tensor.isfinite().all())
