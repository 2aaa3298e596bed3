"""Weights kept along a training, and members that begin together and part later."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from coset.errors import CosetError, require_counts
from coset.vocabulary import Weights
from coset.weights.stacking import unstack


@dataclass(frozen=True, init=False)
class Snapshots:
    """Epochs after which a training keeps the weights; 0 stands for those it begins with.

    They come in ``posterior.snapshots``, a dictionary by epoch: one network's weights, or a stack
    where the method trains several.  A member that stopped early has the weights it ended with.

    Attributes:
        epochs: Which, in order.

    >>> Snapshots(range(0, 10, 5))
    Snapshots(epochs=(0, 5))
    """

    epochs: tuple[int, ...]

    def __init__(self, epochs: Iterable[int]) -> None:
        if not isinstance(epochs, Iterable):
            raise CosetError(f"got epochs={epochs!r}", "needed several", f"write ({epochs!r},)")
        found = tuple(epochs)
        require_counts(0, **{f"epochs[{place}]": epoch for place, epoch in enumerate(found)})
        object.__setattr__(self, "epochs", tuple(sorted({int(epoch) for epoch in found})))

    def check(self, last: int) -> None:
        """Refuses epochs that a training does not have."""
        if self.epochs and self.epochs[-1] > last:
            raise CosetError(
                f"got snapshots after epoch {self.epochs[-1]}",
                f"needed epochs from 0 to {last}, which training has",
            )


@dataclass(frozen=True)
class Fork:
    """A training that all members begin together.

    Attributes:
        step: Steps that are taken by one network; then each member goes on in its own order of the
            data, with its own dropout.
        seed: Of the order and the dropout until then.
    """

    step: int
    seed: int


@dataclass(frozen=True)
class Kept:
    """Weights after an epoch, and which members they are of."""

    numbers: tuple[int, ...]
    weights: Weights

    def complete(self, ended: Mapping[int, Weights]) -> Weights:
        """A stack of all members: those not kept have the weights they ended with.

        Args:
            ended: The last weights of each member, as a stack of one.
        """
        rows = dict(zip(self.numbers, unstack(self.weights), strict=True))
        found = [
            rows[number] if number in rows else unstack(ended[number])[0]
            for number in sorted(ended)
        ]
        return {name: torch.stack([each[name] for each in found]) for name in found[0]}
