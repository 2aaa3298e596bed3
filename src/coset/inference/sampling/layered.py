"""The loss of layered networks over all data, with its gradient."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.inference.sampling.layers import Layers, columns, layers_of
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
        first, *others = self._parts(len(positions))
        losses, gradient = self._evaluate(positions, *first)
        for part in others:
            more, piece = self._evaluate(positions, *part)
            losses, gradient = losses.add_(more), gradient.add_(piece)
        return losses, gradient

    def _parts(self, chains: int) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets with the examples last, a few at a time, seen by every chain."""
        if chains not in self._seen:
            self._seen[chains] = [
                (inputs.T.contiguous(), columns(few).expand(chains, *columns(few).shape))
                for inputs, few in zip(
                    self.inputs.split(self.rows), self.targets.split(self.rows), strict=True
                )
            ]
        return self._seen[chains]

    @property
    def layout(self) -> Layout:
        """The tensors of one chain."""
        return self.problem.network.layout

    @cached_property
    def _seen(self) -> dict[int, list[tuple[Tensor, Tensor]]]:
        return {}

    def _evaluate(
        self, positions: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        stack = self.layout.unflatten(positions.detach())
        with torch.enable_grad():
            leaves = {name: tensor.requires_grad_() for name, tensor in stack.items()}
            outputs = self.layers(leaves, inputs)
            losses = -self.problem.likelihood.log_prob(outputs, targets)
            found = torch.autograd.grad(
                losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return losses.detach(), torch.cat([piece.flatten(1) for piece in found], dim=1)
