"""How much memory training a member takes, measured before anything large is made."""

import torch
from torch import Tensor

from coset.bayes.problem import Problem
from coset.inference.recipe import Recipe

_EXAMPLES = 2


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
    kept = _kept_for_backward(problem, inputs)
    per_example = (2 * kept + _bytes(inputs) + _bytes(targets)) / len(targets)
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


def _kept_for_backward(problem: Problem, inputs: Tensor) -> int:
    """Bytes that autograd keeps for the backward pass, without the weights themselves."""
    network = problem.network
    leaves = {
        name: network.weights[name].detach().requires_grad_() for name in network.layout.names
    }
    own = {tensor.untyped_storage().data_ptr() for tensor in leaves.values()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.random.fork_rng(devices=[]), hooks:  # dropout must not move torch's own generator
        network.apply_training({**network.weights, **leaves}, inputs)
    return sum(kept.values())


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
