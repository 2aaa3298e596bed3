"""What samplers see of a problem: energies and gradients of chains as flat vectors.

The energy of weights ``w`` is ``U(w) = -Σ log p(y | f(x; w)) + ½ Σ precision · w²``, the negative
log-joint without the prior's constant, which would only cost digits.  All chains are evaluated
together under ``vmap``; a network that it cannot follow is called chain by chain.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.linalg.large_products import linear, mkl_is_slow
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.inputs import take_rows
from coset.weights.layout import Layout
from coset.weights.masks import dropout_off
from coset.weights.memory import kept_for_gradients
from coset.weights.network import Network
from coset.weights.stacking import members_of, unstack

_MEMORY = 1 << 30
"""Bytes that one pass may keep for its gradient."""

Pass = Callable[[Weights, Inputs], tuple[Tensor, Weights]]
"""From all weights and inputs to outputs and the buffers after the pass."""


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
        apply: A pass through the network in the mode that the sampler uses.
        together: Whether ``vmap`` can follow it.
    """

    problem: Problem
    apply: Pass
    together: bool

    @staticmethod
    def of(problem: Problem, chains: Weights, apply: Pass) -> "Target":
        """The target of a problem, for as many chains as the stack holds."""
        if members_of(chains) == 1:
            return Target(problem, apply, together=False)
        target = Target(problem, apply, together=True)
        few = {name: tensor[:2] for name, tensor in chains.items()}
        batch = problem.train.rows(torch.arange(min(2, problem.train.size)).expand(2, -1))
        try:
            target.log_likelihoods(few, batch, own=True)
        except Exception:  # whatever vmap cannot do: the plain way decides whether it is an error
            return Target(problem, apply, together=False)
        return target

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
        own: bool,
    ) -> Evaluated:
        """Energy and gradient, with ``scale`` times the log-likelihood of the batches.

        Args:
            batches: Examples and targets.
            positions: Parameters of all chains.
            buffers: Their buffers.
            scale: What the log-likelihood counts for.
            own: Whether each chain has a batch of its own, along a first axis, or all the same.
        """
        gradient = self.precision * positions
        energy = torch.linalg.vecdot(gradient, positions) / 2
        for batch in batches:
            stack = self.join(positions, buffers)
            with torch.enable_grad():
                leaves = {n: stack[n].detach().requires_grad_() for n in self.parameters.names}
                fits, after = self.log_likelihoods(stack | leaves, batch, own=own)
                pulls = torch.autograd.grad(
                    fits.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True
                )
            energy = energy.sub(fits.detach(), alpha=scale)
            gradient.sub_(torch.cat([pull.flatten(1) for pull in pulls], dim=1), alpha=scale)
            if after:
                moved = {name: tensor.detach() for name, tensor in after.items()}
                buffers = self.buffers.flatten(stack | moved)
        return Evaluated(energy, gradient, buffers)

    def log_likelihoods(
        self, stack: Weights, batch: Batch, *, own: bool
    ) -> tuple[Float[Tensor, " m"], Weights]:
        """The log-likelihood of a batch under each chain, and the buffers after the pass."""
        inputs, targets = batch
        with _LargeProducts() if mkl_is_slow() else nullcontext():
            outputs, after = self._passes(stack, inputs, own=own)
        labels = targets if own else targets.expand(len(outputs), *targets.shape)
        # likelihoods work example by example, so that chains can share their first axis
        each = self.problem.likelihood.log_prob(outputs.flatten(0, 1), labels.flatten(0, 1))
        return each.view(labels.shape[:2]).sum(1), after

    def _passes(self, stack: Weights, inputs: Inputs, *, own: bool) -> tuple[Tensor, Weights]:
        if self.together:
            axes = (0, 0 if own else None)
            together: Pass = vmap(self.apply, in_dims=axes, randomness="different")
            return together(stack, inputs)
        rows = [take_rows(inputs, k) if own else inputs for k in range(members_of(stack))]
        passes = [self.apply(*each) for each in zip(unstack(stack), rows, strict=True)]
        after = {n: torch.stack([each[n] for _, each in passes]) for n in passes[0][1]}
        return torch.stack([each for each, _ in passes]), after


class _LargeProducts(Calls):
    """Takes the products of linear layers by the faster library."""

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Whatever else is called stays as it is."""
        return (linear if function is torch.nn.functional.linear else function)(*args, **given)


@dataclass(frozen=True)
class FullBatch:
    """The exact energy: every evaluation passes over all data.

    Attributes:
        target: The posterior.
        batches: All data, as many at a time as the memory is enough for.
    """

    target: Target
    batches: tuple[Batch, ...]

    @staticmethod
    def of(problem: Problem, chains: Weights, *, rows: int | None = None) -> "FullBatch":
        """The target of ``problem`` in evaluation mode, for as many chains as the stack holds.

        Args:
            problem: Its noise is known.
            chains: A stack.
            rows: Examples in one pass; ``None``: as the memory allows.
        """
        train, network = problem.train, problem.network
        if rows is None:
            few = torch.arange(min(2, train.size))
            each = 2 * kept_for_gradients(network, train.rows(few)[0]) // len(few)
            rows = max(1, _MEMORY // max(1, each * members_of(chains)))
        parts = torch.arange(train.size).split(min(rows, train.size))
        target = Target.of(problem, chains, _evaluation_pass(network))
        return FullBatch(target, tuple(train.rows(part) for part in parts))

    def __call__(self, positions: Float[Tensor, "m p"], buffers: Float[Tensor, "m q"]) -> Evaluated:
        """Energy and gradient of each chain."""
        return self.target.on(self.batches, positions, buffers, scale=1.0, own=False)


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
        apply = _without_dropout(network) if network.buffers else _evaluation_pass(network)
        size = min(batch_size, problem.train.size)
        return MiniBatch(Target.of(problem, chains, apply), size, seed)

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
        return self.target.on([train.rows(index)], positions, buffers, scale=scale, own=True)

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


def _evaluation_pass(network: Network) -> Pass:
    """Evaluation mode: no dropout, fixed statistics."""
    return lambda weights, inputs: (network.apply(weights, inputs), {})


def _without_dropout(network: Network) -> Pass:
    """A training pass, which updates batch-norm statistics, that drops nothing."""

    def apply(weights: Weights, inputs: Inputs) -> tuple[Tensor, Weights]:
        with dropout_off():
            return network.apply_training(weights, inputs)

    return apply
