"""Maximum a posteriori: the one setting of the weights with the highest posterior density."""

from dataclasses import dataclass, field

import torch

from coset.bayes.batches import Data
from coset.bayes.problem import Problem
from coset.inference.checkpoint import Checkpoint
from coset.inference.training.loop import train_stack
from coset.inference.training.members import member_seeds, report_of, starting_points
from coset.inference.training.optimisers import Adam, Optimiser
from coset.inference.training.recipe import Recipe
from coset.inference.training.schedules import Cosine, Schedule
from coset.posterior.families import PointMass
from coset.vocabulary import Progress, Weights


@dataclass(frozen=True)
class MaximumAPosteriori:
    """Trains the network; the prior is the weight decay.

    Minimises ``-Σ log p(y | f(x; w)) / b + penalty(w) / n`` over batches of ``b`` of the ``n``
    examples, with ``penalty(w) = ½ Σ precision · w²``.  A ``GaussianNoise()`` of unknown size is
    re-estimated from the residuals after each epoch.

    Attributes:
        optimiser: :class:`SGD` or :class:`Adam`.
        schedule: :class:`Cosine`, :class:`Steps`, :class:`OneCycle` or :class:`Constant`.
        epochs: Passes over the data.  ``None``: as many as give 2,000 steps, and at least 10.
        batch_size: Examples a step at most; an epoch is cut into batches of nearly equal size.
        clip: Largest norm of the gradient of the likelihood; longer ones are shrunk to it.
        validation: Held-out data.  The weights of the epoch with the lowest loss on them are
            returned, and learnt noise is measured on them.
        patience: Epochs without a lower validation loss after which training stops.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    optimiser: Optimiser = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=Cosine)
    epochs: int | None = None
    batch_size: int = 64
    clip: float | None = None
    validation: "Data | None" = None
    patience: int = 10
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _ = self.recipe  # refuses what cannot be trained with

    @property
    def recipe(self) -> Recipe:
        """The settings as the training loop reads them."""
        return Recipe(
            self.optimiser,
            self.schedule,
            self.epochs,
            self.batch_size,
            self.clip,
            self.validation,
            self.patience,
        )

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> PointMass:
        """Trains from ``start``, or from fresh weights.

        Args:
            problem: What to fit.
            start: The first weights, all tensors of the network.
            generator: For fresh weights, the order of the data, and dropout.
            progress: Told a few times a second how far training is.

        Raises:
            CosetError: If data or weights do not fit the network, or the loss stops being finite.
        """
        (seed,) = member_seeds(1, generator)
        starts = starting_points(problem, start, [seed])
        trained = train_stack(
            problem, starts, self.recipe, [seed], progress=progress, checkpoint=self.checkpoint
        )
        weights = {name: tensor[0] for name, tensor in trained.weights.items()}
        return PointMass(weights, report_of(trained))
