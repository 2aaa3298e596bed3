"""Early stopping: the best weights of each member, and how long ago they were found."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.vocabulary import Weights


@dataclass(frozen=True)
class Best:
    """The best each member of a stack has been.

    Attributes:
        losses: Lowest validation loss of each member.
        weights: The weights that reached it, as a stack.
        stale: Epochs since then.
    """

    losses: Float[Tensor, " m"]
    weights: Weights
    stale: Int[Tensor, " m"]

    @staticmethod
    def first(losses: Float[Tensor, " m"], weights: Weights) -> "Best":
        """The first is the best so far."""
        copies = {name: tensor.clone() for name, tensor in weights.items()}
        return Best(losses, copies, torch.zeros(len(losses), dtype=torch.long))

    def updated(self, losses: Float[Tensor, " m"], weights: Weights) -> "Best":
        """Takes over the members that have become better.

        >>> best = Best.first(torch.tensor([1.0, 1.0]), {"w": torch.zeros(2, 1)})
        >>> best = best.updated(torch.tensor([0.5, 2.0]), {"w": torch.ones(2, 1)})
        >>> best.weights["w"].flatten().tolist(), best.stale.tolist()
        ([1.0, 0.0], [0, 1])
        """
        better = losses < self.losses
        return Best(
            torch.where(better, losses, self.losses),
            {name: _mix(better, weights[name], old) for name, old in self.weights.items()},
            torch.where(better.to(self.stale.device), 0, self.stale + 1),
        )

    def select(self, index: Int[Tensor, " k"]) -> "Best":
        """The best of some members."""
        chosen = {name: tensor[index] for name, tensor in self.weights.items()}
        return Best(self.losses[index], chosen, self.stale[index])


def _mix(better: Bool[Tensor, " m"], new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better.view(-1, *[1] * (new.dim() - 1)), new, old)
