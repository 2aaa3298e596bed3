"""Deep ensembles: the same training from several beginnings."""

from dataclasses import dataclass, field

import torch

from coset.bayes.problem import Problem
from coset.errors import require_counts, require_kinds
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.map_estimate import MaximumAPosteriori, require_training
from coset.inference.run_record import Checkpoint, refuse_two_checkpoints
from coset.inference.training.loop import check_data
from coset.inference.training.parallel import train_stacks
from coset.inference.training.planning import plan
from coset.inference.training.recipe import forked
from coset.inference.training.state import report_of
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights


@dataclass(frozen=True)
class DeepEnsemble:
    """Several networks, trained alike from different weights and in different orders.

    Members train side by side as one stack, as many at a time as the memory allows.  Each has its
    own data order, dropout and batch-norm statistics, so it becomes what it would become alone.

    Attributes:
        members: How many.
        base: How each is trained.
        memory: Bytes that a stack may take while it is trained.
        together: Steps that all members take as one network, before each goes on in its own order
            of the data: a fork.  0: members share nothing.
        checkpoint: Where a long run is written down, to be taken up again.  Stacks of members
            that had finished are only read.
    """

    members: int = 5
    base: MaximumAPosteriori = field(default_factory=MaximumAPosteriori)
    memory: int = 2 * 1024**3
    together: int = 0
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_counts(members=self.members, memory=self.memory)
        require_counts(0, together=self.together)
        require_training(self.base, "DeepEnsemble")
        require_kinds(self)
        refuse_two_checkpoints("DeepEnsemble", self.base)

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Samples:
        """Trains all members.

        Args:
            problem: What to fit.
            start: The first weights: of one network, where all members begin, or a stack with
                the beginning of each.  ``None``: fresh weights for each.
            generator: For fresh weights, the orders of the data, and dropout.
            progress: Told a few times a second how far training is.

        Raises:
            CosetError: If data or weights do not fit the network, or a loss stops being finite.
        """
        recipe = self.base.recipe
        check_data(problem, recipe)
        seeds = member_seeds(self.members, generator)
        starts = starting_points(problem, start, seeds)
        if self.together:
            recipe, starts = forked(recipe, starts, self.together, seeds[0])
        shared = plan(problem, recipe, self.members, memory=self.memory)
        trained = train_stacks(
            problem, starts, recipe, seeds, shared, progress=progress, checkpoint=self.checkpoint
        )
        return Samples(trained.weights, report=report_of(trained, problem.likelihood))
