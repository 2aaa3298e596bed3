"""Training steps of a stack, recorded once and then replayed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from coset.inference.training.dropout import MemberDropout
from coset.inference.training.gradients import Evaluate, Evaluation, Objective, one_by_one
from coset.inference.training.memory import Program
from coset.inference.training.recording import record
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.inputs import as_inputs, parts_of
from coset.weights.network import Network
from coset.weights.stacking import members_of

_LONG = 100
"""Steps of a training that repay the time of recording one, which is a tenth of a second."""


@dataclass(frozen=True)
class Recorded:
    """A way to evaluate stacks without Python and in memory that is kept from step to step.

    Gradients are good until the next evaluation.

    Attributes:
        evaluate: What is recorded.
        members: Of the stacks that are; smaller ones, left by members that have stopped, are
            evaluated as they would be without us.
    """

    evaluate: Evaluate
    members: int

    def __call__(
        self,
        objective: Objective,
        weights: Weights,
        batch: Batch,
        scale: Float[Tensor, " m"],
        generators: Sequence[torch.Generator],
    ) -> Evaluation:
        """Evaluates each member on its own batch."""
        if members_of(weights) != self.members:
            return self.evaluate(objective, weights, batch, scale, generators)
        data = (*parts_of(batch[0]), batch[1])
        values = (*data, scale, *weights.values())
        key = tuple(value.shape for value in data)
        if key not in self._programs:
            program = partial(self._program, objective, tuple(weights))
            self._programs[key] = record(program, values, lasting=False)
        losses, *gradients = self._programs[key](*values)
        names = objective.network.layout.names
        return Evaluation(losses.clone(), dict(zip(names, gradients, strict=True)), {})

    def _program(
        self, objective: Objective, names: tuple[str, ...], *values: Tensor
    ) -> tuple[Tensor, ...]:
        *parts, targets, scale = values[: -len(names)]
        weights = dict(zip(names, values[-len(names) :], strict=True))
        unused = [torch.Generator() for _ in range(self.members)]
        found = self.evaluate(objective, weights, (as_inputs(parts), targets), scale, unused)
        return found.losses, *(found.gradients[name] for name in objective.network.layout.names)

    @cached_property
    def _programs(self) -> dict[tuple[torch.Size, ...], Program]:
        return {}


def recorded(
    evaluate: Evaluate, network: Network, inputs: Inputs, *, members: int, steps: int
) -> Evaluate:
    """The same, recorded, where that is worth the time and changes nothing.

    Not for stacks of one and networks that ``vmap`` cannot follow (they might look at their own
    numbers), nor for networks with buffers or randomness.

    Args:
        evaluate: How stacks are evaluated.
        network: The network of all members.
        inputs: A few examples.
        members: Members of the stack.
        steps: Steps of the whole training.
    """
    if evaluate is one_by_one or steps < _LONG or network.buffers or _is_random(network, inputs):
        return evaluate
    return Recorded(evaluate, members)


def _is_random(network: Network, inputs: Inputs) -> bool:
    """Whether a step draws random numbers, of torch, of Python or of NumPy."""
    masks = torch.Generator()

    def states() -> tuple[object, ...]:
        of_torch = masks.get_state().tolist(), torch.get_rng_state().tolist()
        of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002  # what a network may still use
        return *of_torch, random.getstate(), str(of_numpy)

    with torch.random.fork_rng(devices=[]), MemberDropout([masks]), torch.no_grad():
        before = states()
        network.apply_training(network.weights, inputs)
        return before != states()
