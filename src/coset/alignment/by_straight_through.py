"""Matching by the loss half-way, with a straight-through gradient (Ainsworth et al. 2023)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coset.alignment.barrier import Loss, default_loss, evaluate_at
from coset.alignment.by_weights import ByWeights, begin_at
from coset.alignment.checks import check_network, network_of
from coset.alignment.interpolation import interpolate
from coset.alignment.result import Outcome
from coset.bayes.batches import Batches, Data, as_batches
from coset.errors import CosetError
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Batch, Weights
from coset.weights.network import Network


@dataclass(frozen=True)
class ByStraightThrough:
    """Looks for the element with the lowest loss half-way between ``to`` and the aligned weights.

    Free weights ``u`` start at ``to``.  At every step the weights are matched to ``u``, the loss is
    taken at the midpoint ``(to + g · weights) / 2``, and its gradient moves ``u`` as if the match
    were the identity.  Every new element is judged on ``judged`` batches, and the best one is
    returned: never a worse one than that of matching by weights, where it starts.

    Attributes:
        module: The network.
        data: Training data.
        steps: Gradient steps, one matching each.
        learning_rate: Of gradient descent with momentum 0.9.
        batch_size: Examples a step.
        judged: Batches on which new elements are compared.
        loss: Mean loss from outputs and targets; ``None`` as in :func:`coset.barrier`.
    """

    module: nn.Module
    data: Data
    steps: int = 100
    learning_rate: float = 0.01
    batch_size: int = 256
    judged: int = 8
    loss: Loss | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.judged < 1 or self.learning_rate <= 0:
            raise CosetError(
                f"got steps={self.steps}, judged={self.judged}, learning_rate={self.learning_rate}",
                "needed at least one step and batch, and a positive rate",
            )

    def solve(
        self, group: SymmetryGroup, weights: Weights, to: Weights, *, generator: torch.Generator
    ) -> Outcome:
        """The element found for weights that were checked."""
        network = network_of(self.module, "ByStraightThrough")
        check_network(group, network, "ByStraightThrough")
        batches = as_batches(self.data, batch_size=self.batch_size, module=self.module)
        order = torch.randperm(batches.size, generator=generator)
        held = batches.rows(order[: self.judged * self.batch_size])
        start = ByWeights().solve(group, weights, to, generator=generator)
        best = now = start.element
        lowest = self._judge(network, group, weights, to, now, held)
        names = [name for name in network.layout.names if name in weights]
        free = {name: to[name].clone() for name in names}
        speed = {name: torch.zeros_like(tensor) for name, tensor in free.items()}
        for _ in range(self.steps):
            aligned = group.act(now, weights)
            gradient = self._gradient(network, to, aligned, names, batches, generator)
            for name in names:
                speed[name] = 0.9 * speed[name] + gradient[name]
                free[name] = free[name] - self.learning_rate * speed[name]
            ascent = begin_at(group, weights, {**to, **free}, now)
            ascent.sweep(list(ascent.plans), most=10)
            if not _same(ascent.element, now):
                now = ascent.element
                value = self._judge(network, group, weights, to, now, held)
                if value < lowest:
                    best, lowest = now, value
        return replace(start, element=best, aligned=None)

    def _gradient(
        self,
        network: Network,
        to: Weights,
        aligned: Weights,
        names: list[str],
        batches: Batches,
        generator: torch.Generator,
    ) -> Weights:
        """The gradient of the midpoint's loss, passed straight through the matching."""
        rows = torch.randint(batches.size, (self.batch_size,), generator=generator)
        inputs, targets = batches.rows(rows)
        middle = interpolate(to, aligned, 0.5)
        leaves = {name: middle[name].requires_grad_() for name in names}
        with torch.enable_grad():
            outputs = network.apply({**middle, **leaves}, inputs)
            value = (self.loss or default_loss)(outputs, targets)
        parts: tuple[Tensor, ...] = torch.autograd.grad(value, list(leaves.values()))
        return {name: part / 2 for name, part in zip(names, parts, strict=True)}

    def _judge(
        self,
        network: Network,
        group: SymmetryGroup,
        weights: Weights,
        to: Weights,
        element: Element,
        held: Batch,
    ) -> float:
        middle = interpolate(to, group.act(element, weights), 0.5)
        return evaluate_at(network, middle, held, self.loss)[0]


def _same(one: Element, other: Element) -> bool:
    return all(torch.equal(t, other.permutations[n]) for n, t in one.permutations.items()) and all(
        torch.equal(t, other.scales[n]) for n, t in one.scales.items()
    )
