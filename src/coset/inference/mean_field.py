"""Mean-field variational inference: Bayes by backprop (Blundell et al. 2015)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError, require_kinds
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.map_estimate import MaximumAPosteriori, require_training
from coset.inference.run_fingerprint import described
from coset.inference.run_record import Checkpoint, part_of, refuse_two_checkpoints
from coset.inference.training.loop import train_stack, training_record
from coset.inference.training.optimisers import Adam, Optimiser
from coset.inference.training.recipe import Recipe
from coset.inference.training.schedules import Cosine, Schedule
from coset.inference.training.state import of_member, report_of
from coset.inference.variational import Estimator, Run
from coset.posterior.families import FitReport
from coset.posterior.low_rank import LowRankGaussian
from coset.progress import within
from coset.vocabulary import Progress, Weights
from coset.weights.randomness import own_randomness


@dataclass(frozen=True)
class MeanField:
    """An independent Gaussian for every weight, the closest to the posterior.

    Minimises ``-E_q Σ log p(y | f(x; w)) + T · KL(q ‖ p)`` over means and standard deviations, with
    ``KL = ½ Σ (λσ² + λμ² - 1 - log λσ²)`` for the prior precision ``λ``.

    Attributes:
        temperature: ``T``, the weight of the KL term; below one the posterior is cold.
        initial_std: Standard deviation of every weight at the start.
        base: A training of the means before (an empirical-Bayes start); ``None``: none.
        optimiser: Of means and logarithms of standard deviations.
        schedule: Of the learning rate.
        epochs: Passes over the data.  ``None``: as many as give 2,000 steps, and at least 10.
        batch_size: Examples a step at most.
        estimator: Where a step's noise is drawn; all give the same gradients on average.
            ``"local"``: in the outputs of linear layers on one vector an example (local
            reparameterisation, Kingma et al. 2015).  ``"flipout"``: in the weights of linear
            layers and convolutions, with signs of its own for every example (Wen et al. 2018).
            ``"shared"``: in the weights, one draw for the whole batch, as both do for all
            other tensors.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    temperature: float = 1.0
    initial_std: float = 0.05
    base: MaximumAPosteriori | None = None
    optimiser: Optimiser = field(default_factory=lambda: Adam(1e-2))
    schedule: Schedule = field(default_factory=Cosine)
    epochs: int | None = None
    batch_size: int = 64
    estimator: Estimator = "local"
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.base is not None:
            require_training(self.base, "MeanField")
        require_kinds(self)
        refuse_two_checkpoints("MeanField", self.base)
        if not 0 <= self.temperature < math.inf or not 0 < self.initial_std < math.inf:
            raise CosetError(
                f"got a temperature of {self.temperature} and an initial standard deviation of "
                f"{self.initial_std}",
                "needed a temperature of zero or more and a positive standard deviation",
            )
        _ = self.recipe  # refuses what cannot be trained with

    @property
    def recipe(self) -> Recipe:
        """The settings of the training."""
        return Recipe(self.optimiser, self.schedule, self.epochs, self.batch_size)

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> LowRankGaussian:
        """Fits means, from ``start`` or fresh weights, and standard deviations.

        Raises:
            CosetError: If data or weights do not fit the network, if a prior precision is zero, or
                if the loss stops being finite.
        """
        (only,) = self._fit(problem, start, [generator], progress)
        return only

    def fit_many(
        self,
        problem: Problem,
        modes: int,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> tuple[LowRankGaussian, ...]:
        """Several posteriors from different beginnings, trained side by side as one stack."""
        seeds = member_seeds(modes, generator)
        own = [torch.Generator().manual_seed(seed) for seed in seeds]
        return self._fit(problem, start, own, progress)

    def _fit(
        self,
        problem: Problem,
        start: Weights | None,
        generators: Sequence[torch.Generator],
        progress: Progress | None,
    ) -> tuple[LowRankGaussian, ...]:
        """One posterior a generator, each as if it were alone."""
        problem.check()
        precisions = _precisions(problem)
        before = FitReport()
        if self.base is not None:
            seeds = [member_seeds(1, generator)[0] for generator in generators]
            trained = train_stack(
                problem,
                starting_points(problem, start, seeds),
                self.base.recipe,
                seeds,
                progress=within(progress, 0.0, 0.5, "training"),
                checkpoint=part_of(self.checkpoint, "base"),
            )
            start, before = trained.weights, report_of(trained, problem.likelihood)
            progress = within(progress, 0.5, 1.0, "mean field")
        seeds = [member_seeds(1, generator)[0] for generator in generators]
        starts = starting_points(problem, start, seeds)
        kind = described(replace(self, base=None))  # the base has a record of its own
        record = training_record(self.checkpoint, kind, problem, self.recipe, seeds, starts)
        with own_randomness(seeds[0]):
            run = Run(self, problem, precisions, starts, generators, record)
            run.train(progress)
            found = run.posteriors()
        kept = [of_member(before, row).snapshots for row in range(len(found))]
        return tuple(
            replace(each, report=replace(each.report, snapshots=snapshots))
            for each, snapshots in zip(found, kept, strict=True)
        )


def _precisions(problem: Problem) -> Weights:
    found = {}
    for name in problem.network.layout.names:
        tensor = problem.network.weights[name]
        found[name] = problem.prior.of(name, tensor).expand(tensor.shape)
        if not bool((found[name] > 0).all()):
            raise CosetError(
                f"got a prior precision of zero for {name!r}",
                "needed a proper prior, whose divergence is finite",
                "give a positive precision",
            )
    return found
