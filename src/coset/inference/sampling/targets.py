"""What samplers see of a problem: energies and gradients of chains as flat vectors.

The energy of weights ``w`` is ``U(w) = -Σ log p(y | f(x; w)) + ½ Σ precision · w²``, the negative
log-joint without the prior's constant.  All chains are evaluated together under ``vmap``; a network
that it cannot follow is called chain by chain.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.sampling.layered import LayeredLoss
from coset.inference.training.gradients import Evaluate, Objective, choose
from coset.inference.training.noise import is_learnt
from coset.inference.training.planning import bytes_per_member
from coset.inference.training.recipe import Recipe
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.inputs import as_inputs, for_members, parts_of
from coset.weights.layout import Layout
from coset.weights.masks import dropout_off
from coset.weights.network import Network

_MEMORY = 1 << 30
"""Bytes that one pass may keep for its gradient."""


@dataclass(frozen=True)
class Evaluated:
    """Energies of all chains, their gradients, and the buffers after the pass."""

    energy: Float[Tensor, " m"]
    gradient: Float[Tensor, "m p"]
    buffers: Float[Tensor, "m q"]


@dataclass(frozen=True)
class Target:
    """The posterior of a problem as a function of flat vectors.

    Attributes:
        problem: What is sampled; its noise is known.
        objective: The network in the mode the sampler uses, with the likelihood.
        evaluate: All chains together or one by one.
    """

    problem: Problem
    objective: Objective
    evaluate: Evaluate

    @property
    def parameters(self) -> Layout:
        """The tensors that are sampled."""
        return self.problem.network.layout

    @cached_property
    def buffers(self) -> Layout:
        """The tensors that come along."""
        return Layout.of(self.problem.network.weights, self.problem.network.buffers)

    @cached_property
    def precision(self) -> Float[Tensor, " p"]:
        """Prior precision of each parameter."""
        like = next(iter(self.problem.network.weights.values()))
        return self.problem.prior.flat(self.parameters, like)

    @cached_property
    def _one_precision(self) -> float | None:
        """The prior precision, where it is the same for all parameters."""
        first = self.precision[0]
        return float(first) if bool((self.precision == first).all()) else None

    def with_prior(
        self,
        losses: Float[Tensor, " m"],
        gradient: Float[Tensor, "m p"],
        positions: Float[Tensor, "m p"],
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m p"]]:
        """Energies and gradients from those of the likelihood; writes into ``gradient``."""
        self.add_prior(gradient, positions)
        one = self._one_precision
        if one is None:
            return losses + torch.linalg.vecdot(self.precision * positions, positions) / 2, gradient
        squares = torch.linalg.vecdot(positions, positions)
        return torch.add(losses, squares, alpha=one / 2), gradient

    def add_prior(self, gradient: Float[Tensor, "m p"], positions: Float[Tensor, "m p"]) -> None:
        """Adds the prior's part to a gradient, in place."""
        one = self._one_precision
        if one is None:
            gradient.addcmul_(self.precision, positions)
        else:
            gradient.add_(positions, alpha=one)

    def split(self, stack: Weights) -> tuple[Float[Tensor, "m p"], Float[Tensor, "m q"]]:
        """Flat parameters and flat buffers of a stack."""
        positions = self.parameters.flatten(stack)
        if not self.buffers.names:
            return positions, positions.new_empty(len(positions), 0)
        return positions, self.buffers.flatten(stack)

    def join(self, positions: Float[Tensor, "*m p"], buffers: Float[Tensor, "*m q"]) -> Weights:
        """The inverse of :meth:`split`, for chains or whole histories of them."""
        joined = self.parameters.unflatten(positions)
        if self.buffers.names:
            joined |= self.buffers.unflatten(buffers)
        return joined

    def on(
        self,
        batches: Iterable[Batch],
        positions: Float[Tensor, "m p"],
        buffers: Float[Tensor, "m q"],
        *,
        scale: float,
    ) -> Evaluated:
        """Energy and gradient, with ``scale`` times the log-likelihood of stacked batches."""
        gradient = self.precision * positions
        energy = (gradient * positions).sum(1) / 2
        for inputs, targets in batches:
            values = (positions, buffers, *parts_of(inputs), targets)
            losses, pull, buffers = self._evaluate(scale, *values)
            energy, gradient = energy + losses, gradient + pull
        return Evaluated(energy, gradient, buffers)

    def _evaluate(
        self, scale: float, positions: Tensor, buffers: Tensor, *data: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        *parts, targets = data
        batch = as_inputs(parts), targets
        stack = self.join(positions, buffers)
        weight = scale * targets.shape[1]
        factors = positions.new_full((len(positions),), weight)
        generators = [torch.Generator() for _ in range(len(positions))]  # dropout is off
        found = self.evaluate(self.objective, stack, batch, factors, generators)
        after = stack | found.buffers
        return (
            weight * found.losses,
            self.parameters.flatten(found.gradients),
            self.buffers.flatten(after) if self.buffers.names else buffers.clone(),
        )


@dataclass(frozen=True)
class FullBatch:
    """The exact energy: every evaluation passes over all data.

    Attributes:
        target: The posterior.
        rows: Examples in one pass.
        loss: A faster way to the same numbers, for networks of linear layers.
    """

    target: Target
    rows: int
    loss: LayeredLoss | None = None

    @staticmethod
    def of(problem: Problem, chains: Weights) -> "FullBatch":
        """The target of ``problem`` in evaluation mode, for as many chains as the stack holds."""
        mode = _evaluation_mode(problem.network)
        target = _target(problem, chains, mode)
        count = len(next(iter(chains.values())))
        one, two = (bytes_per_member(problem, Recipe(batch_size=size)) for size in (1, 2))
        rows = max(1, _MEMORY // max(1, (two - one) * count))
        return FullBatch(target, min(rows, problem.train.size), LayeredLoss.of(problem, count))

    def __call__(self, positions: Float[Tensor, "m p"], buffers: Float[Tensor, "m q"]) -> Evaluated:
        """Energy and gradient of each chain."""
        if self.loss is not None:
            losses, gradient = self.loss(positions)
            return Evaluated(*self.target.with_prior(losses, gradient, positions), buffers)
        return self.target.on(self._data(len(positions)), positions, buffers, scale=1.0)

    def _data(self, chains: int) -> list[Batch]:
        """All data, seen by every chain, in chunks."""
        if chains not in self._seen:
            train = self.target.problem.train
            parts = [train.rows(chunk) for chunk in torch.arange(train.size).split(self.rows)]
            self._seen[chains] = [
                (for_members(inputs, chains), targets.expand(chains, *targets.shape))
                for inputs, targets in parts
            ]
        return self._seen[chains]

    @cached_property
    def _seen(self) -> dict[int, list[Batch]]:
        return {}


@dataclass(frozen=True)
class MiniBatch:
    """An unbiased estimate of the energy from a batch of the data, another for each chain.

    Epochs go through the data without repetition, in orders that follow from the seed, so that the
    batch of a step is a function of the step alone.
    """

    target: Target
    batch_size: int
    seed: int

    @staticmethod
    def of(problem: Problem, chains: Weights, batch_size: int, seed: int) -> "MiniBatch":
        """The target of ``problem``; in training mode where there are batch-norm statistics."""
        network = problem.network
        mode = _without_dropout(network) if network.buffers else _evaluation_mode(network)
        size = min(batch_size, problem.train.size)
        return MiniBatch(_target(problem, chains, mode), size, seed)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return -(-self.target.problem.train.size // self.batch_size)

    def __call__(
        self, step: int, positions: Float[Tensor, "m p"], buffers: Float[Tensor, "m q"]
    ) -> Evaluated:
        """Estimated energy and gradient of each chain."""
        train = self.target.problem.train
        index = self.index(step, len(positions))
        scale = train.size / index.shape[1]
        return self.target.on([train.rows(index)], positions, buffers, scale=scale)

    def index(self, step: int, chains: int) -> Tensor:
        """The rows of each chain's batch."""
        epoch, number = divmod(step, self.steps)
        size = self.target.problem.train.size
        if self.steps == 1:
            return torch.arange(size).expand(chains, -1)
        if self._orders.get("epoch") != epoch:
            generator = torch.Generator().manual_seed((self.seed + epoch) % 2**63)
            orders = [torch.randperm(size, generator=generator) for _ in range(chains)]
            self._orders.update(epoch=epoch, orders=torch.stack(orders))
        chunks: tuple[Tensor, ...] = self._orders["orders"].tensor_split(self.steps, dim=1)
        return chunks[number]

    @cached_property
    def _orders(self) -> dict[str, Any]:
        return {}


def settle(problem: Problem, generator: torch.Generator) -> tuple[Problem, Likelihood | None]:
    """A problem of known noise: noise to be learnt is that of a trained network.

    Returns the problem and the learnt likelihood, or nothing where there was none to learn.
    """
    problem.check()
    if not is_learnt(problem.likelihood):
        return problem, None
    likelihood = MaximumAPosteriori().fit(problem, generator=generator).report.likelihood
    assert likelihood is not None
    return problem.with_likelihood(likelihood), likelihood


def require_finite(energy: Tensor, gradient: Tensor, *, where: str) -> None:
    """Refuses energies and gradients that are not finite."""
    if bool(energy.isfinite().all()) and bool(gradient.isfinite().all()):
        return
    finite = energy.isfinite() & gradient.isfinite().all(-1)
    chain = int((~finite).nonzero()[0])
    raise CosetError(
        f"got an energy or gradient that is not finite {where}, in chain {chain}",
        "needed finite numbers",
        "lower the step size, start from trained weights, or look for such numbers in the data",
    )


def _target(problem: Problem, chains: Weights, network: Network) -> Target:
    objective = Objective(network, problem.likelihood.log_prob)
    count = len(next(iter(chains.values())))
    few = torch.arange(min(2, problem.train.size)).expand(count, -1)
    evaluate = choose(objective, chains, problem.train.rows(few))
    return Target(problem, objective, evaluate)


def _evaluation_mode(network: Network) -> Network:
    """The network whose training pass is its evaluation pass: no dropout, fixed statistics."""

    def apply(weights: Weights, inputs: Inputs) -> tuple[Tensor, Weights]:
        return network.apply(weights, inputs), {}

    return replace(network, apply_training=apply)


def _without_dropout(network: Network) -> Network:
    """The network whose training pass updates batch-norm statistics but drops nothing."""

    def apply(weights: Weights, inputs: Inputs) -> tuple[Tensor, Weights]:
        with dropout_off():
            return network.apply_training(weights, inputs)

    return replace(network, apply_training=apply)
