"""Deep ensembles: the same training from several beginnings."""

from dataclasses import dataclass, field

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.members import member_seeds, report_of, starting_points
from coset.inference.memory import bytes_per_member, members_per_chunk
from coset.inference.training import join, train_stack
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
    """

    members: int = 5
    base: MaximumAPosteriori = field(default_factory=MaximumAPosteriori)
    memory: int = 2 * 1024**3

    def __post_init__(self) -> None:
        if self.members < 1:
            raise CosetError(f"got {self.members} members", "needed at least one")

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
        problem.check()
        recipe = self.base.recipe
        seeds = member_seeds(self.members, generator)
        starts = starting_points(problem, start, seeds)
        size = members_per_chunk(self.members, bytes_per_member(problem, recipe), self.memory)
        parts = []
        for first in range(0, self.members, size):
            rows = slice(first, first + size)
            chunk = {name: tensor[rows] for name, tensor in starts.items()}
            told = _shifted(progress, first, len(seeds[rows]), self.members)
            parts.append(train_stack(problem, chunk, recipe, seeds[rows], progress=told))
        trained = join(parts)
        return Samples(trained.weights, report=report_of(trained))


def _shifted(progress: Progress | None, done: int, current: int, members: int) -> Progress | None:
    """Reports of one chunk as fractions of the whole."""
    if progress is None or current == members:
        return progress

    def told(fraction: float, text: str) -> None:
        last = done + current
        progress((done + fraction * current) / members, f"members {done + 1}–{last}, {text}")

    return told
