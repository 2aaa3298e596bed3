"""Local reparameterisation: drawing the outputs of a linear layer instead of its weights.

With independent Gaussian weights the outputs ``W x + b`` of one example are independent Gaussians
of mean ``μ_W x + μ_b`` and variance ``σ²_W x² + σ²_b``.  Drawing them afresh for every example
gives the same expected loss as drawing weights, and gradients with less noise.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coset.weights.masks import dropout_off
from coset.weights.network import Network

_TINY = 1e-16


class LocalNoise(TorchFunctionMode):
    """While it is on, linear layers of known variance return draws of their outputs.

    Args:
        variances: Variance of weights and biases, by identity of the tensor of their means.
        generator: Where the noise comes from.
    """

    def __init__(self, variances: Mapping[int, Tensor], generator: torch.Generator) -> None:
        super().__init__()
        self._variances, self._generator = variances, generator

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replaces linear layers and lets every other function pass."""
        given = kwargs or {}
        if function is functional.linear:
            return self._linear(*args, **given)
        return function(*args, **given)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        mean = functional.linear(input, weight, bias)
        if id(weight) not in self._variances:
            return mean
        own = None if bias is None else self._variances[id(bias)]
        variance = functional.linear(input.square(), self._variances[id(weight)], own)
        noise = torch.randn(
            mean.shape, dtype=mean.dtype, device=mean.device, generator=self._generator
        )
        return mean + (variance + _TINY).sqrt() * noise


class _Uses(TorchFunctionMode):
    """Notes which tensors are read by linear layers on vectors, and which by anything else."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names
        self.layers: list[set[str]] = []
        self.other: set[str] = set()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Looks at the arguments of every function and lets it pass."""
        given = kwargs or {}
        read = [
            self._names[id(part)] for part in _tensors((args, given)) if id(part) in self._names
        ]
        if function is functional.linear and args and args[0].dim() == 2:
            self.layers.append(set(read))
        elif getattr(function, "__name__", "") not in ("__get__", "__set__"):
            self.other |= set(read)
        return function(*args, **given)


def local_layers(network: Network, inputs: Tensor) -> frozenset[str]:
    """The parameters whose only use is one linear layer on one vector an example."""
    given = {name: network.weights[name].clone() for name in network.layout.names}
    uses = _Uses({id(tensor): name for name, tensor in given.items()})
    with torch.no_grad(), dropout_off(), uses:
        network.apply_training(given, inputs)
    once, again, other = set[str](), set[str](), set(uses.other)
    for layer in uses.layers:
        again |= once & layer
        once |= layer
    other |= again  # a tensor that is used twice has one noise for both
    for _ in uses.layers:  # weight and bias go together
        for layer in uses.layers:
            other |= layer if layer & other else set()
    return frozenset(once - other)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [found for part in value.values() for found in _tensors(part)]
    if isinstance(value, (tuple, list)):
        return [found for part in value for found in _tensors(part)]
    return []
