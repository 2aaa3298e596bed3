"""Monte Carlo dropout (Gal and Ghahramani 2016), with masks lifted into the weights."""

from dataclasses import dataclass, field

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError, require_kinds
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.map_estimate import MaximumAPosteriori, require_training
from coset.inference.run_record import Checkpoint, refuse_two_checkpoints
from coset.inference.training.loop import train_stack
from coset.inference.training.state import of_member, report_of
from coset.posterior.random_masks import RandomMasks
from coset.vocabulary import Progress, Weights
from coset.weights.masks import DropoutSite, dropout_sites
from coset.weights.stacking import unstack


@dataclass(frozen=True)
class MCDropout:
    """Trains with dropout and keeps dropping when it predicts.

    A draw fixes one mask for every dropout, shared by all inputs, so that one draw is one function:
    members of a prediction can be compared across inputs, and joint predictions make sense.

    Attributes:
        base: How the network is trained.
        per_example: Whether every row of a batch has masks of its own, as in the classic form.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    base: MaximumAPosteriori = field(default_factory=MaximumAPosteriori)
    per_example: bool = False
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_training(self.base, "MCDropout")
        require_kinds(self)
        refuse_two_checkpoints("MCDropout", self.base)

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> RandomMasks:
        """Trains from ``start``, or from fresh weights.

        Raises:
            CosetError: If the network has no dropout, or training fails.
        """
        (only,) = self.fit_many(problem, 1, start=start, generator=generator, progress=progress)
        return only

    def fit_many(
        self,
        problem: Problem,
        modes: int,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> tuple[RandomMasks, ...]:
        """Several posteriors from different beginnings, trained side by side as one stack."""
        problem.check()
        sites = self.sites(problem)
        seeds = member_seeds(modes, generator)
        starts = starting_points(problem, start, seeds)
        recipe = self.base.recipe
        trained = train_stack(
            problem, starts, recipe, seeds, progress=progress, checkpoint=self.checkpoint
        )
        report = report_of(trained, problem.likelihood)
        return tuple(
            RandomMasks(member, sites, self.per_example, of_member(report, row))
            for row, member in enumerate(unstack(trained.weights))
        )

    def sites(self, problem: Problem) -> tuple[DropoutSite, ...]:
        """Rate and shape of each dropout of the network.

        Raises:
            CosetError: If there is none, or masks cannot be drawn as asked for.
        """
        network, train = problem.network, problem.train
        few, more = (train.rows(torch.arange(rows) % train.size)[0] for rows in (2, 3))
        sites = dropout_sites(lambda inputs: network.apply(network.weights, inputs), few, more)
        if not sites:
            raise CosetError(
                "got a network without dropout",
                "needed a dropout layer with a rate above zero",
                "add nn.Dropout to the network, or choose another method",
            )
        if self.per_example and any(site.shape[0] != 1 for site in sites):
            raise CosetError(
                "got a dropout whose first axis is not that of the data",
                "needed the data along the first axis for masks of their own",
                "use per_example=False",
            )
        return sites
