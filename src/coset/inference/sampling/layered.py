"""The loss of layered networks over all data, with its gradient, recorded once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.inference.sampling.layers import Layers, columns, layers_of
from coset.inference.training.memory import Program
from coset.inference.training.recording import record
from coset.weights.layout import Layout

_VALUES, _LEAST_ROWS = 1 << 21, 256
"""Activations of one layer in a pass, so that they stay near the processor, and fewest examples."""


@dataclass(frozen=True)
class LayeredLoss:
    """Negative log-likelihood of all data and its gradient, for chains of such a network.

    Attributes:
        problem: What is sampled.
        layers: What its network does.
        inputs: All inputs, one a row; possibly along other axes than those of the problem.
        targets: All targets.
        rows: Examples in one pass.
    """

    problem: Problem
    layers: Layers
    inputs: Float[Tensor, "n d"]
    targets: Tensor
    rows: int

    @staticmethod
    def of(problem: Problem, chains: int) -> "LayeredLoss | None":
        """The loss of a problem, if its network is made of layers."""
        layers = layers_of(problem)
        if layers is None:
            return None
        widest = max(shape[0] for shape in problem.network.layout.shapes)
        rows = max(_LEAST_ROWS, _VALUES // (chains * widest))
        inputs, targets = problem.train.rows(torch.arange(problem.train.size))
        return LayeredLoss(problem, layers, inputs.flatten(1), targets, rows)

    def __call__(
        self, positions: Float[Tensor, "m p"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m p"]]:
        """Losses and gradients of all chains."""
        gradient, losses = torch.empty_like(positions), positions.new_zeros(len(positions))
        for number, part in enumerate(self._parts(positions)):
            more, *pieces = part.evaluate(positions, *part.data)
            losses = losses + more
            self._add(pieces, gradient, first=number == 0)
        return losses, gradient

    def pull(self, positions: Float[Tensor, "m p"], into: Float[Tensor, "m p"]) -> None:
        """Writes the gradients of all chains into memory that is there."""
        for number, part in enumerate(self._parts(positions)):
            self._add(part.differentiate(positions, *part.data), into, first=number == 0)

    def _add(self, pieces: Sequence[Tensor], into: Tensor, *, first: bool) -> None:
        if first:
            torch.cat([piece.flatten(1) for piece in pieces], dim=1, out=into)
            return
        whole = self.layout.unflatten(into)  # views
        for place, piece in zip(whole.values(), pieces, strict=True):
            place.add_(piece)

    def _parts(self, positions: Tensor) -> "list[_Part]":
        """Rows of the data with what is recorded for this many of them."""
        chains = len(positions)
        if chains in self._recorded:
            return self._recorded[chains]
        programs: dict[int, tuple[Program, Program]] = {}
        parts = []
        for inputs, few in zip(
            self.inputs.split(self.rows), self.targets.split(self.rows), strict=True
        ):
            targets = columns(few).expand(chains, *columns(few).shape).contiguous()
            # one copy for the products of values and of gradients: two would not both stay in cache
            data, size = (inputs.T.contiguous(), targets), len(few)
            if size not in programs:
                examples = (positions, *data)
                programs[size] = (
                    record(self._evaluate, examples, lasting=False, again=True),
                    record(self._differentiate, examples, lasting=False, again=True),
                )
            parts.append(_Part(data, *programs[size]))
        return self._recorded.setdefault(chains, parts)

    @property
    def layout(self) -> Layout:
        """The tensors of one chain."""
        return self.problem.network.layout

    @cached_property
    def _recorded(self) -> "dict[int, list[_Part]]":
        return {}

    def _evaluate(self, positions: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        stack = self.layout.unflatten(positions.detach())
        with torch.enable_grad():
            leaves = {name: tensor.requires_grad_() for name, tensor in stack.items()}
            outputs = self.layers(leaves, inputs)
            losses = -self.problem.likelihood.log_prob(outputs, targets)
            found = torch.autograd.grad(
                losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return losses.detach(), *found

    def _differentiate(
        self, positions: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, ...]:
        return self._evaluate(positions, inputs, targets)[1:]


@dataclass(frozen=True)
class _Part:
    """Some of the data, inputs and targets with the examples last; and what is recorded.

    Attributes:
        data: What the programs take after the positions.
        evaluate: Gives losses and the gradient of every tensor, until the next call.
        differentiate: Gives the gradients alone.
    """

    data: tuple[Tensor, ...]
    evaluate: Program
    differentiate: Program
