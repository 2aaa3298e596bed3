"""What a building block is: a function with parameters, made for a width by a random choice."""

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Made: TypeAlias = tuple[nn.Module, int] | None
Maker: TypeAlias = Callable[[Random, int], Made]
"""Makes a block for a width and says the width it leaves; None if the width does not suit it."""


class Block(nn.Module):
    """A function of itself and its input; tensors among the parts become parameters."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu,
    torch.relu,
    torch.tanh,
    torch.abs,
    torch.square,
    torch.sin,
    torch.sigmoid,
    nn.functional.silu,
    nn.functional.gelu,
    nn.functional.leaky_relu,
    nn.functional.elu,
    nn.functional.hardtanh,
    nn.functional.softsign,
    lambda x: x.clamp(min=0),
    lambda x: x.relu() ** 2,
    lambda x: -x,
    lambda x: x,
)


def activation(draw: Random) -> Callable[[Tensor], Tensor]:
    return draw.choice(ACTIVATIONS)


def width(draw: Random) -> int:
    return draw.choice((3, 4, 5, 6, 8, 9, 10, 12))


def divisor(draw: Random, size: int) -> int | None:
    """A divisor that is neither one nor the size."""
    found = [d for d in range(2, size) if size % d == 0]
    return draw.choice(found) if found else None


def linear(draw: Random, fan_in: int, fan_out: int) -> nn.Linear:
    return nn.Linear(fan_in, fan_out, bias=draw.random() < 0.7)


def weight(*shape: int, fan_in: int) -> Tensor:
    return torch.randn(*shape) / fan_in**0.5
