"""Losses and gradients of all members of a stack, together or one by one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from coset.inference.training.dropout import MemberDropout
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.inputs import map_parts, take_rows
from coset.weights.network import Network
from coset.weights.randomness import draws_so_far, own_state, set_own_state
from coset.weights.stacking import members_of, stack, unstack


@dataclass
class Draws:
    """Whether a network has been seen drawing random numbers."""

    seen: bool = False


@dataclass(frozen=True)
class Objective:
    """What a training step lowers: the mean negative log-likelihood of a batch.

    Attributes:
        network: The network of all members.
        log_prob: The log-likelihood of each example, ``(n,)``, from outputs and targets.
        draws: Whether the network has drawn random numbers yet.
    """

    network: Network
    log_prob: Callable[[Tensor, Tensor], Tensor]
    draws: Draws = field(default_factory=Draws)

    def losses(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " m"]:
        """The mean over each member's batch, from ``(m, b, c, …)`` and ``(m, b, …)``."""
        # likelihoods work example by example, so members can share their data axis
        each = self.log_prob(outputs.flatten(0, 1), targets.flatten(0, 1))
        return -each.view(targets.shape[:2]).mean(1)


@dataclass(frozen=True)
class Evaluation:
    """One training pass over one batch a member.

    Attributes:
        losses: Mean loss of each member.
        gradients: Stacked gradients, by name of the parameter.
        buffers: Stacked buffers after the pass (batch-norm statistics).
    """

    losses: Float[Tensor, " m"]
    gradients: Weights
    buffers: Weights


class Evaluate(Protocol):
    """A way to evaluate a stack; all ways give the same numbers up to rounding."""

    def __call__(
        self,
        objective: Objective,
        weights: Weights,
        batch: Batch,
        scale: Float[Tensor, " m"],
        generators: Sequence[torch.Generator],
    ) -> Evaluation:
        """Evaluates each member on its own batch; gradients are those of ``scale · loss``."""
        ...


def together(
    objective: Objective,
    weights: Weights,
    batch: Batch,
    scale: Float[Tensor, " m"],
    generators: Sequence[torch.Generator],
) -> Evaluation:
    """All members in one vectorised pass.

    Members share no tensor, so the gradient of the sum of their losses holds the gradient of each.
    Only the forward pass goes through ``vmap``; the backward pass is plain autograd on stacks.
    """
    inputs, targets = batch
    leaves = _leaves(objective.network, weights)
    forward = vmap(objective.network.apply_training, randomness="different")
    with MemberDropout(generators):
        outputs, buffers = forward({**weights, **leaves}, inputs)
    losses = objective.losses(outputs, targets)
    return _differentiate(losses, scale, leaves, buffers)


def one_by_one(
    objective: Objective,
    weights: Weights,
    batch: Batch,
    scale: Float[Tensor, " m"],
    generators: Sequence[torch.Generator],
) -> Evaluation:
    """The members in turn: for networks that ``vmap`` cannot follow, and for stacks of one."""
    inputs, targets = batch
    parts = []
    for index, member in enumerate(unstack(weights)):
        leaves = _leaves(objective.network, member)
        own = slice(index, index + 1)
        outputs, after = _training_pass(
            objective, {**member, **leaves}, take_rows(inputs, index), generators[own]
        )
        loss = objective.losses(outputs.unsqueeze(0), targets[own])
        parts.append(_differentiate(loss, scale[own], leaves, after))
    return Evaluation(
        torch.cat([part.losses for part in parts]),
        _side_by_side([part.gradients for part in parts]),
        _side_by_side([part.buffers for part in parts]),
    )


def _training_pass(
    objective: Objective, weights: Weights, inputs: Inputs, generators: Sequence[torch.Generator]
) -> tuple[Tensor, Weights]:
    """One member's pass.  A network that draws nothing is spared the wait for masks of dropout.

    That waiting costs as much as a small layer.  So it begins with the first pass that draws, which
    is made again, with masks of the member's own.
    """
    draws, apply = objective.draws, objective.network.apply_training
    count = draws_so_far()
    if not draws.seen and count is not None:
        before = own_state()
        found = apply(weights, inputs)
        if draws_so_far() == count:
            return found
        set_own_state(before)
        draws.seen = True
    with MemberDropout(generators):
        return apply(weights, inputs)


def choose(objective: Objective, weights: Weights, batch: Batch) -> Evaluate:
    """How to evaluate these stacks: together where ``vmap`` can follow the network.

    Args:
        objective: What is trained.
        weights: The first weights of all members.
        batch: Two or more examples a member to try it on, or all there are.
    """
    if members_of(weights) == 1:
        return one_by_one
    inputs, targets = batch
    few = {name: tensor[:2] for name, tensor in weights.items()}
    generators = [torch.Generator().manual_seed(index) for index in range(2)]
    scale = next(iter(weights.values())).new_ones(2)
    try:
        together(objective, few, (map_parts(_corner, inputs), _corner(targets)), scale, generators)
    except Exception:  # whatever vmap cannot do: the plain way decides whether it is an error
        return one_by_one
    return together


def evaluation_losses(
    objective: Objective, weights: Weights, data: Iterable[Batch], *, vectorised: bool
) -> Float[Tensor, " m"]:
    """Mean loss of each member in evaluation mode, over all of ``data``."""
    apply = objective.network.apply
    total, count = torch.zeros(()), 0
    with torch.no_grad():
        for inputs, targets in data:
            if vectorised:
                outputs = vmap(apply, in_dims=(0, None), randomness="different")(weights, inputs)
            else:
                outputs = torch.stack([apply(member, inputs) for member in unstack(weights)])
            shared = targets.expand(len(outputs), *targets.shape)
            total = total + objective.losses(outputs, shared) * len(targets)
            count += len(targets)
    return total / count


def _corner(values: Tensor) -> Tensor:
    """Two members and two examples."""
    return values[:2, :2]


def _side_by_side(members: Sequence[Weights]) -> Weights:
    """A stack of members; a single one is not copied."""
    if len(members) == 1:
        return {name: tensor.unsqueeze(0) for name, tensor in members[0].items()}
    return stack(members)


def _leaves(network: Network, weights: Weights) -> Weights:
    """The parameters as leaves of a new graph, sharing memory with ``weights``."""
    return {name: weights[name].detach().requires_grad_() for name in network.layout.names}


def _differentiate(
    losses: Float[Tensor, " m"], scale: Float[Tensor, " m"], leaves: Weights, buffers: Weights
) -> Evaluation:
    gradients = torch.autograd.grad(
        (losses * scale).sum(), list(leaves.values()), materialize_grads=True, allow_unused=True
    )
    return Evaluation(
        losses.detach(),
        dict(zip(leaves, gradients, strict=True)),
        {name: tensor.detach() for name, tensor in buffers.items()},
    )
