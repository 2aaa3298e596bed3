"""Optimisers as values.

Every update works entry by entry, so one optimiser on stacked tensors is one optimiser a member.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from coset.errors import CosetError, require_kinds

Groups = Sequence[dict[str, Any]]


class Optimiser(Protocol):
    """How gradients change weights."""

    @property
    def learning_rate(self) -> float:
        """The rate that a schedule multiplies."""
        ...

    @property
    def slots(self) -> int:
        """Tensors kept for each parameter, for the estimate of memory."""
        ...

    def build(self, groups: Groups, *, fused: bool) -> torch.optim.Optimizer:
        """The torch optimiser of parameter groups, each with its ``weight_decay``."""
        ...


@dataclass(frozen=True)
class SGD:
    """Gradient steps with momentum: ``v ← momentum · v + g``, ``w ← w - rate · v``.

    Attributes:
        learning_rate: The rate at the top of the schedule.
        momentum: Share of the last step that is kept.
        nesterov: Whether the gradient is taken at the point where the momentum leads.

    >>> weight = torch.tensor([1.0], requires_grad=True)
    >>> optimiser = SGD(0.5, momentum=0.0).build([{"params": [weight]}], fused=False)
    >>> weight.grad = torch.tensor([1.0])
    >>> optimiser.step()
    >>> weight.detach()
    tensor([0.5000])
    """

    learning_rate: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        require_kinds(self)
        _require_rate(self.learning_rate)
        if not 0 <= self.momentum < 1 or (self.nesterov and self.momentum == 0):
            raise CosetError(
                f"got a momentum of {self.momentum}",
                "needed at least 0 and less than 1, and more than 0 with nesterov",
            )

    @property
    def slots(self) -> int:
        """The momentum."""
        return 1 if self.momentum else 0

    def build(self, groups: Groups, *, fused: bool) -> torch.optim.Optimizer:
        """The torch optimiser."""
        return torch.optim.SGD(
            groups,
            lr=self.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            fused=fused,
        )


@dataclass(frozen=True)
class Adam:
    """Steps of the size of the rate: running mean of ``g`` over root of running mean of ``g²``.

    The prior's pull is part of ``g`` (weight decay is not decoupled), because the fixed point must
    be the maximum of the posterior.

    Attributes:
        learning_rate: The rate at the top of the schedule.
        betas: Memory of the two running means.
        epsilon: Added to the root.

    >>> weight = torch.tensor([1.0], requires_grad=True)
    >>> optimiser = Adam(0.25).build([{"params": [weight]}], fused=False)
    >>> weight.grad = torch.tensor([7.0])
    >>> optimiser.step()  # the first step has the size of the rate, whatever the gradient
    >>> weight.detach()
    tensor([0.7500])
    """

    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require_kinds(self)
        _require_rate(self.learning_rate)
        if not all(0 <= beta < 1 for beta in self.betas) or not self.epsilon > 0:
            raise CosetError(
                f"got betas {self.betas} and epsilon {self.epsilon}",
                "needed betas of at least 0 and less than 1, and a positive epsilon",
            )

    @property
    def slots(self) -> int:
        """Both running means."""
        return 2

    def build(self, groups: Groups, *, fused: bool) -> torch.optim.Optimizer:
        """The torch optimiser."""
        return torch.optim.Adam(
            groups, lr=self.learning_rate, betas=self.betas, eps=self.epsilon, fused=fused
        )


def _require_rate(rate: float) -> None:
    if not 0 < rate < float("inf"):
        raise CosetError(f"got a learning rate of {rate}", "needed a positive number")


_IMPLEMENTATIONS: tuple[Optimiser, ...] = (SGD(), Adam())
