"""How members are shared out over stacks and threads, before anything large is made.

Nothing here looks at a clock: the plan is a function of the problem and the number of threads, so
that equal seeds give equal results.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset.bayes.problem import Problem
from coset.inference.training.dropout import MemberDropout
from coset.inference.training.recipe import Recipe
from coset.inference.training.work import HEAVY, operations_per_step
from coset.weights.inputs import parts_of
from coset.weights.memory import kept_for_gradients
from coset.weights.randomness import own_randomness

_EXAMPLES = 2


@dataclass(frozen=True)
class Plan:
    """Stacks of at most ``size`` members, ``workers`` of them at a time."""

    size: int
    workers: int


def plan(problem: Problem, recipe: Recipe, members: int, *, memory: int) -> Plan:
    """Shares out members so that stacks trained at the same time fit the memory.

    Args:
        problem: What to fit.
        recipe: How to train.
        members: How many.
        memory: Bytes for all stacks that train at the same time.
    """
    workers = _workers(problem, recipe, members)
    size = members_per_chunk(members, bytes_per_member(problem, recipe), memory // workers)
    return Plan(min(size, -(-members // workers)), workers)


def _workers(problem: Problem, recipe: Recipe, members: int) -> int:
    """Threads that have enough to do: heavy steps, on the processor, without shared randomness."""
    on_processor = all(w.device.type == "cpu" for w in problem.network.weights.values())
    if members == 1 or not on_processor:
        return 1
    inputs, _ = problem.train.rows(torch.zeros(1, dtype=torch.long))
    batch = min(recipe.batch_size, problem.train.size)
    step = operations_per_step(problem.network, inputs, members=members, batch=batch)
    most = min(torch.get_num_threads(), members, int(step / HEAVY))
    return 1 if most <= 1 or _draws(problem) else most


def _draws(problem: Problem) -> bool:
    """Whether a training pass draws by itself: then a member depends on those beside it."""
    inputs, _ = problem.train.rows(torch.arange(min(_EXAMPLES, problem.train.size)))
    with own_randomness(0) as own, MemberDropout([torch.Generator()]), torch.no_grad():
        problem.network.apply_training(problem.network.weights, inputs)
        return own.draws > 0


def bytes_per_member(problem: Problem, recipe: Recipe) -> int:
    """An estimate of the bytes a member of a stack needs during a training step.

    Parameters are counted once for the weights, for the gradient, for each slot of the optimiser
    and for the best weights of early stopping.  What the backward pass keeps is measured on a
    forward pass of two examples and scaled to a batch, and counted twice: gradients of values
    have the size of the values.
    """
    network, train = problem.network, problem.train
    parameters = sum(_bytes(network.weights[name]) for name in network.layout.names)
    buffers = sum(_bytes(network.weights[name]) for name in network.buffers)
    copies = 2 + recipe.optimiser.slots + (recipe.validation is not None)
    batch = min(recipe.batch_size, train.size)
    inputs, targets = train.rows(torch.arange(min(_EXAMPLES, train.size)))
    kept = kept_for_gradients(network, inputs)
    data = sum(map(_bytes, (*parts_of(inputs), targets)))
    per_example = (2 * kept + data) / len(targets)
    return int(copies * parameters + 3 * buffers + batch * per_example)


def members_per_chunk(members: int, each: int, budget: int) -> int:
    """As many members as fit the budget, in chunks of nearly equal size, and at least one.

    >>> members_per_chunk(10, each=3, budget=13)  # four fit: chunks of 4, 4 and 2 become 4, 3, 3
    4
    >>> members_per_chunk(9, each=3, budget=25)  # eight fit: rather 5 and 4 than 8 and 1
    5
    """
    most = max(budget // max(each, 1), 1)
    chunks = -(-members // most)
    return -(-members // chunks)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
