"""Noise of weights that differs from example to example, for gradients with less of it.

With independent Gaussian weights the outputs ``W x + b`` of one example are independent Gaussians
of mean ``μ_W x + μ_b`` and variance ``σ²_W x² + σ²_b``.  Drawing them afresh for every example
(local reparameterisation) gives the same expected loss as drawing weights once a batch.  Flipout
draws ``ΔW = σ ε`` once and gives example ``n`` the weights ``μ + ΔW ∘ r_n s_nᵀ`` with random signs
``r_n`` and ``s_n``: each example has weights of the right law, and one product serves all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.bayes.problem import Problem
from coset.vocabulary import Inputs
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.masks import dropout_off
from coset.weights.network import Network
from coset.weights.uses import Use, visit_uses

_TINY = 1e-16

_Draw = Callable[[Tensor, torch.Size, torch.Generator], Tensor]
"""Random numbers of a shape, in the type of a tensor."""

_CONVOLUTIONS: dict[Callable[..., Any], int] = {torch.conv1d: 3, torch.conv2d: 4, torch.conv3d: 5}
"""Convolutions, and the number of axes of a batch for them."""


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of some tensors, and where their noise comes from.

    Attributes:
        stds: Of weights and biases, by identity of the tensor of their means.
        generators: The only sources of randomness: one, or under ``vmap`` one a member.
    """

    stds: Mapping[int, Tensor]
    generators: Sequence[torch.Generator]

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a tensor."""
        return self._numbers(like, like.shape, _normal)

    def drawn(self, mean: Tensor | None) -> Tensor | None:
        """A perturbation of a tensor, one for the whole batch."""
        if mean is None:
            return None
        std = self.stds[id(mean)]
        return std * self.noise(std)

    def signs(self, values: Tensor, axis: int) -> Tensor:
        """A sign for every example and feature, the same at all positions."""
        shape = [1] * values.dim()
        shape[0], shape[axis] = values.shape[0], values.shape[axis]
        return self._numbers(values, torch.Size(shape), _sign)

    def _numbers(self, like: Tensor, shape: torch.Size, draw: _Draw) -> Tensor:
        found: Tensor = _Numbers.apply(like, shape, draw, tuple(self.generators))
        return found


class _Numbers(torch.autograd.Function):
    """Random numbers that belong to a member, not to the stack it happens to be in."""

    @staticmethod
    def forward(
        like: Tensor, shape: torch.Size, draw: _Draw, generators: Sequence[torch.Generator]
    ) -> Tensor:
        (generator,) = generators
        return draw(like, shape, generator)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None, None, None]:
        return None, None, None, None

    @staticmethod
    def vmap(  # torch calls it so
        info: Any,
        in_dims: tuple[int | None, ...],
        like: Tensor,
        shape: torch.Size,
        draw: _Draw,
        generators: Sequence[torch.Generator],
    ) -> tuple[Tensor, int]:
        return torch.stack([draw(like, shape, generator) for generator in generators]), 0


def _normal(like: Tensor, shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def _sign(like: Tensor, shape: torch.Size, generator: torch.Generator) -> Tensor:
    flips = torch.randint(2, shape, generator=generator, device=generator.device)
    return (2 * flips - 1).to(device=like.device, dtype=like.dtype)


class NoisyLayers(Calls):
    """While it is on, layers of known deviations return draws of their outputs.

    Args:
        deviations: Those of the layers that are replaced.
        draw: :func:`local_draw` or :func:`flipped_draw`.
    """

    def __init__(self, deviations: Deviations, draw: Callable[..., Any]) -> None:
        super().__init__()
        self._deviations, self._draw = deviations, draw

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Replaces these layers and lets every other function pass."""
        if function is functional.linear or function in _CONVOLUTIONS:
            weight = args[1] if len(args) > 1 else given["weight"]
            if id(weight) in self._deviations.stds:
                return self._draw(self._deviations, function, *args, **given)
        return function(*args, **given)


def local_draw(
    deviations: Deviations,
    function: Callable[..., Any],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Independent outputs of a linear layer."""
    mean: Tensor = function(input, weight, bias)
    own = None if bias is None else deviations.stds[id(bias)].square()
    variance = function(input.square(), deviations.stds[id(weight)].square(), own)
    return torch.addcmul(mean, (variance + _TINY).sqrt(), deviations.noise(mean))


def flipped_draw(
    deviations: Deviations,
    function: Callable[..., Any],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *settings: Any,
    **named: Any,
) -> Tensor:
    """Outputs of a layer whose weights have signs of their own for every example."""
    axis = 1 if function in _CONVOLUTIONS else -1  # of features
    mean: Tensor = function(input, weight, bias, *settings, **named)
    perturbed = function(
        input * deviations.signs(input, axis),
        deviations.drawn(weight),
        deviations.drawn(bias),
        *settings,
        **named,
    )
    return torch.addcmul(mean, perturbed, deviations.signs(mean, axis))


def noisy_layers(problem: Problem, estimator: str) -> frozenset[str]:
    """The parameters whose noise can differ from example to example, by kind of estimator."""
    if estimator == "shared":
        return frozenset()
    inputs, _ = problem.train.rows(torch.arange(2) % problem.train.size)
    find = flippable_layers if estimator == "flipout" else local_layers
    return find(problem.network, inputs)


def local_layers(network: Network, inputs: Inputs) -> frozenset[str]:
    """The parameters whose only use is one linear layer on one vector an example."""

    def on_vectors(use: Use) -> bool:
        return use.function is functional.linear and use.args[0].dim() == 2 and use.axis == 0

    return _used_once(network, inputs, on_vectors)


def flippable_layers(network: Network, inputs: Inputs) -> frozenset[str]:
    """The parameters whose only use is one linear layer or convolution, examples apart."""

    def by_example(use: Use) -> bool:
        if use.function is functional.linear:
            return use.args[0].dim() > 1 and use.axis == 0
        return use.function in _CONVOLUTIONS and use.axis == 0

    return _used_once(network, inputs, by_example)


def _used_once(network: Network, inputs: Inputs, asked: Callable[[Use], bool]) -> frozenset[str]:
    """The parameters that one layer of a kind reads, and nothing else."""
    layers: list[set[str]] = []
    other: set[str] = set()

    def see(use: Use) -> None:
        if asked(use):
            layers.append(set(use.names))
        elif getattr(use.function, "__name__", "") not in ("__get__", "__set__"):
            other.update(use.names)

    with dropout_off():
        visit_uses(network.apply_training, network.layout.restrict(network.weights), inputs, see)
    once, again = set[str](), set[str]()
    for layer in layers:
        again |= once & layer
        once |= layer
    other |= again  # a tensor that is used twice has one noise for both
    for _ in layers:  # weight and bias go together
        for layer in layers:
            other |= layer if layer & other else set()
    return frozenset(once - other)
