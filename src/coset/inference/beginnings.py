"""Where members of an ensemble and chains of a sampler begin, each with a seed of its own."""

from collections.abc import Sequence

import torch

from coset.bayes.problem import Problem
from coset.errors import require_counts
from coset.vocabulary import Weights
from coset.weights.stacking import check_fit, stack

_START = 0x2545F4914F6CDD1D  # sets the seeds of first weights apart from those of the data order


def member_seeds(members: int, generator: torch.Generator) -> list[int]:
    """One seed a member.

    >>> len(member_seeds(3, torch.Generator().manual_seed(0)))
    3
    """
    require_counts(members=members)
    return [int(seed) for seed in torch.randint(2**62, (members,), generator=generator)]


def starting_points(problem: Problem, start: Weights | None, seeds: Sequence[int]) -> Weights:
    """The first weights of all members, as a stack.

    Args:
        problem: Whose network is fitted.
        start: ``None``: fresh weights for each member.  The weights of one network: all members
            begin there.  A stack of as many members: each begins at its own.
        seeds: One a member.
    """
    network = problem.network
    if start is None:
        generators = [torch.Generator().manual_seed(seed ^ _START) for seed in seeds]
        return stack([network.initialise(generator) for generator in generators])
    axes = {name: len(getattr(start.get(name), "shape", ())) for name in network.weights}
    if any(axes[name] > tensor.dim() for name, tensor in network.weights.items()):
        shapes = {n: w.expand(len(seeds), *w.shape) for n, w in network.weights.items()}
        check_fit(start, shapes, what="a stack to start from", typed=True)
        return start
    check_fit(start, network.weights, what="weights to start from", typed=True)
    return {name: tensor.expand(len(seeds), *tensor.shape) for name, tensor in start.items()}
