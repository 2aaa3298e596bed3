"""How a network is trained, apart from where it starts."""

from dataclasses import dataclass, field, replace
from math import ceil

from coset.bayes.batches import Batches, Data, as_batches
from coset.errors import CosetError, require_counts
from coset.inference.training.optimisers import Adam, Optimiser
from coset.inference.training.schedules import Cosine, Schedule
from coset.inference.training.snapshots import Fork, Snapshots
from coset.vocabulary import Weights
from coset.weights.network import Network

_STEPS = 2000
_EPOCHS = 10


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run.

    Attributes:
        optimiser: :class:`SGD` or :class:`Adam`.
        schedule: What the learning rate is multiplied by as training goes on.
        epochs: Passes over the data.  ``None``: as many as give 2,000 steps, and at least 10.
        batch_size: Examples a step at most; an epoch is cut into batches of nearly equal size.
        clip: Largest norm of the gradient of the likelihood, one member at a time.
        validation: Held-out data that choose the epoch whose weights are kept.
        patience: Epochs without a better validation loss after which a member stops.
        snapshots: Epochs after which weights are kept.
        fork: Steps that all members take as one network before they part.
    """

    optimiser: Optimiser = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=Cosine)
    epochs: int | None = None
    batch_size: int = 64
    clip: float | None = None
    validation: "Data | None" = None
    patience: int = 10
    snapshots: Snapshots | None = None
    fork: Fork | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("epochs", self.epochs),
            ("batch_size", self.batch_size),
            ("patience", self.patience),
        ):
            if value is not None:
                require_counts(**{name: value})
        if self.clip is not None and not self.clip > 0:
            raise CosetError(f"got clip={self.clip}", "needed a positive norm, or None")
        if self.fork is not None and self.validation is not None:
            raise CosetError(
                "got a shared beginning and validation data",
                "needed one of them: members must not stop before they part",
            )

    def batches(self, size: int) -> int:
        """Steps in an epoch over ``size`` examples.

        >>> Recipe(batch_size=64).batches(65)
        2
        """
        return ceil(size / self.batch_size)

    def passes(self, size: int) -> int:
        """Epochs of a training on ``size`` examples.

        >>> Recipe(batch_size=10).passes(100), Recipe(epochs=3).passes(100)
        (200, 3)
        """
        return self.epochs or max(ceil(_STEPS / self.batches(size)), _EPOCHS)

    def check(self, size: int) -> None:
        """Refuses snapshots and a fork that a training on ``size`` examples does not have."""
        passes = self.passes(size)
        if self.snapshots is not None:
            self.snapshots.check(passes)
        if self.fork is not None and self.fork.step >= passes * self.batches(size):
            raise CosetError(
                f"got members that part after step {self.fork.step}",
                f"needed fewer than the {passes * self.batches(size)} steps of their training",
            )

    def held_out(self, network: Network) -> Batches | None:
        """The validation data as batches of a network."""
        if self.validation is None:
            return None
        return as_batches(self.validation, module=network.module)


def forked(recipe: Recipe, starts: Weights, steps: int, seed: int) -> tuple[Recipe, Weights]:
    """A training whose members are one network for some steps, and its first weights.

    Args:
        recipe: How members are trained.
        starts: Their first weights, as a stack: all begin with those of the first.
        steps: When they part.
        seed: Of the order of the data and of dropout until then.
    """
    shared = {name: tensor[:1].expand_as(tensor) for name, tensor in starts.items()}
    return replace(recipe, fork=Fork(steps, seed)), shared
