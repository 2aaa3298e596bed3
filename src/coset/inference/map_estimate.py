"""Maximum a posteriori: the one setting of the weights with the highest posterior density."""

from dataclasses import dataclass, field

import torch

from coset.bayes.batches import Data
from coset.bayes.problem import Problem
from coset.errors import CosetError, require_kinds
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.run_record import Checkpoint
from coset.inference.training.learnt import Learner, Learnt, teller
from coset.inference.training.loop import train_stack
from coset.inference.training.optimisers import Adam, Optimiser
from coset.inference.training.recipe import Recipe
from coset.inference.training.schedules import Cosine, Schedule
from coset.inference.training.snapshots import Snapshots
from coset.inference.training.state import of_member, report_of
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
        precision: :class:`Learnt`: the prior's precisions are found while the network trains, by
            its marginal likelihood.  ``None``: the prior stays as it is given.
        snapshots: Epochs after which weights are kept, in ``posterior.snapshots``; the members of
            an ensemble whose base this is have theirs as a stack.
    """

    optimiser: Optimiser = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=Cosine)
    epochs: int | None = None
    batch_size: int = 64
    clip: float | None = None
    validation: "Data | None" = None
    patience: int = 10
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    precision: Learnt | None = None
    snapshots: Snapshots | None = None

    def __post_init__(self) -> None:
        require_kinds(self)
        self._settings()  # refuses what cannot be trained with
        if self.precision is not None and self.checkpoint is not None:
            raise CosetError(
                "got learnt precisions and a checkpoint",
                "needed one of them: a record does not hold a prior that changes",
                "leave out checkpoint=…",
            )

    @property
    def recipe(self) -> Recipe:
        """The settings as the training loop reads them, for methods that train several."""
        if self.precision is not None:
            raise CosetError(
                "got a training with learnt precisions as the base of another method",
                "needed one whose prior stays",
                "learn them by a training of its own first, and give its prior to fit(prior=…)",
            )
        return self._settings()

    def _settings(self) -> Recipe:
        return Recipe(
            self.optimiser,
            self.schedule,
            self.epochs,
            self.batch_size,
            self.clip,
            self.validation,
            self.patience,
            self.snapshots,
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
        recipe = self._settings()
        learner = None
        if self.precision is not None:
            tell = teller(progress, recipe.passes(problem.train.size))
            learner = Learner(self.precision, problem, self.optimiser, tell)
        trained = train_stack(
            problem,
            starts,
            recipe,
            [seed],
            progress=progress,
            on_epoch=None if learner is None else learner.after_epoch,
            checkpoint=self.checkpoint,
        )
        weights = {name: tensor[0] for name, tensor in trained.weights.items()}
        report = of_member(report_of(trained, problem.likelihood), 0)
        return PointMass(weights, report if learner is None else learner.report(trained, report))


def require_training(base: object, method: str) -> None:
    """Refuses what cannot be the training of a method."""
    if not isinstance(base, MaximumAPosteriori):
        given = f"the class {base.__name__}" if isinstance(base, type) else f"{base!r:.60}"
        raise CosetError(
            f"got {given} as the base of {method}",
            "needed a training",
            "give MaximumAPosteriori(…); for several posteriors use MultiMode(inner, modes)",
        )
