"""The loss of layered networks over all data, with its gradient, recorded once."""

from dataclasses import dataclass
from functools import cached_property, partial

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
        inputs: All inputs, one a row; possibly along other axes than those of the problem, of
            which the first may be left out if no input has a part along them.
        targets: All targets.
        rows: Examples in one pass.
    """

    problem: Problem
    layers: Layers
    inputs: Float[Tensor, "n r"]
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
        assert isinstance(inputs, Tensor), "a chain of layers begins with one"
        return LayeredLoss(problem, layers, inputs.flatten(1), targets, rows)

    def __call__(
        self, positions: Float[Tensor, "m p"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m p"]]:
        """Losses and gradients of all chains."""
        first, *others = self._parts(positions)
        losses, gradient = (found.clone() for found in first.evaluate(positions, *first.data))
        for part in others:
            more, piece = part.evaluate(positions, *part.data)
            losses, gradient = losses.add_(more), gradient.add_(piece)
        return losses, gradient

    def pull(
        self, positions: Float[Tensor, "m p"], into: Float[Tensor, "m p"]
    ) -> Float[Tensor, "m p"]:
        """The gradients of all chains, good until the next call; may use the memory of ``into``."""
        first, *others = self._parts(positions)
        (gradient,) = first.differentiate(positions, *first.data)
        if others:  # which write where the first has written
            gradient = into.copy_(gradient)
        for part in others:
            gradient.add_(*part.differentiate(positions, *part.data))
        return gradient

    def _parts(self, positions: Tensor) -> "list[_Part]":
        """Rows of the data with what is recorded for this many of them."""
        chains = len(positions)
        if chains in self._recorded:
            return self._recorded[chains]
        programs: dict[int, tuple[Program, Program]] = {}
        parts = []
        steady = 2 if len(self.inputs) <= self.rows else 0  # several parts take turns
        for inputs, few in zip(
            self.inputs.split(self.rows), self.targets.split(self.rows), strict=True
        ):
            targets = columns(few).expand(chains, *columns(few).shape).contiguous()
            # one copy for the products of values and of gradients: two would not both stay in cache
            data, size = (inputs.T.contiguous(), targets), len(few)
            if size not in programs:
                examples = (positions, *data)
                keep = partial(record, examples=examples, lasting=False, again=True, steady=steady)
                programs[size] = keep(self._evaluate), keep(self._differentiate)
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
        return losses.detach(), torch.cat([piece.flatten(1) for piece in found], dim=1)

    def _differentiate(
        self, positions: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, ...]:
        return self._evaluate(positions, inputs, targets)[1:]


@dataclass(frozen=True)
class _Part:
    """Some of the data, inputs and targets with the examples last; and what is recorded.

    Attributes:
        data: What the programs take after the positions.
        evaluate: Gives losses and flat gradients, until the next call.
        differentiate: Gives the gradients alone.
    """

    data: tuple[Tensor, ...]
    evaluate: Program
    differentiate: Program
