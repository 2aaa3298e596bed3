"""Matching through the input covariance: weights compared by the outputs they cause.

Weights of a pixel that is always black cause nothing, yet in a posterior sample they are as large
as all others and vote on who is who.  For the layers that read the data the outputs of two units
differ by ``E |w x̃ - v x̃|² = (w - v) S (w - v)ᵀ`` with ``S = E x̃ x̃ᵀ`` and ``x̃`` the inputs with a
one for the bias.  So these weights are multiplied by ``S^½`` before they are compared, which
commutes with permutations and signs of the units.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from coset.alignment.by_weights import ByWeights
from coset.alignment.checks import answer, check_network, network_of
from coset.alignment.result import Outcome
from coset.errors import CosetError, told
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Inputs, Weights
from coset.weights.network import Network
from coset.weights.uses import Use, visit_uses

_ROWS = 20_000
"""Rows of a layer's inputs (examples and positions of pictures) that moments are taken from."""


@dataclass(frozen=True)
class Layer:
    """A layer that reads the data.

    Attributes:
        weight: Name of its weight, units along the first axis.
        bias: Name of its bias, if it has one.
        inputs: What it reads, one row for each output it makes.
    """

    weight: str
    bias: str | None
    inputs: Float[Tensor, "k f"]

    @cached_property
    def root(self) -> Float[Tensor, "g g"]:
        """``S^½`` of the inputs, with a one for the bias, in double precision."""
        rows = self.inputs.double()
        if self.bias is not None:
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
        return root

    def seen(self, weights: Weights) -> Weights:
        """Weight and bias after ``S^½``, in their own shapes."""
        weight = weights[self.weight]
        rows = weight.flatten(1).double()
        if self.bias is not None:
            rows = torch.cat([rows, weights[self.bias].double().unsqueeze(1)], 1)
        rows = (rows @ self.root.to(rows.device)).to(weight.dtype)
        own = weight[0].numel()
        found = {self.weight: rows[:, :own].reshape(weight.shape)}
        return found if self.bias is None else found | {self.bias: rows[:, own].contiguous()}


@dataclass(frozen=True)
class ByCovariance:
    """Matching by weights, those that read the data compared by the outputs they cause.

    Exact for linear layers and plain two-dimensional convolutions that read the data; all other
    tensors are compared as :class:`ByWeights` compares them.

    Attributes:
        module: The network.
        inputs: Data, with the examples along the first axis.
        by: How elements are then found.  Scales are kept: rescaled units cause other outputs
            before their nonlinearity, but the same after the next layer.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False))
    >>> inputs = torch.tensor([[1.0, 0.0]])  # the second input is always zero
    >>> weights = {"0.weight": torch.tensor([[3.0, 9.0], [1.0, 7.0]]), "2.weight": torch.ones(1, 2)}
    >>> ByCovariance(net, inputs).seen(weights)["0.weight"]
    tensor([[3., 0.],
            [1., 0.]])
    """

    module: nn.Module
    inputs: Inputs
    by: ByWeights = field(default_factory=lambda: ByWeights(scales="keep"))

    def __post_init__(self) -> None:
        if not isinstance(self.by, ByWeights):
            raise CosetError(f"got ByCovariance with by={told(self.by)}", "needed a ByWeights")
        if self.by.scales != "keep":
            raise CosetError(
                f"got ByCovariance with scales={self.by.scales!r}",
                "needed permutations and signs alone",
                'use ByWeights(scales="keep")',
            )

    @cached_property
    def _network(self) -> Network:
        return network_of(self.module, "ByCovariance")

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that read the data, with their inputs."""
        network = self._network
        own = _readers(network, network.weights, self.inputs)
        # what depends on the weights is not data
        other = {name: 1.5 * tensor + 0.1 for name, tensor in network.weights.items()}
        elsewhere = _readers(network, other, self.inputs)
        return tuple(
            layer
            for name, layer in own.items()
            if name in elsewhere and torch.equal(layer.inputs, elsewhere[name].inputs)
        )

    def seen(self, weights: Weights) -> Weights:
        """The weights as they are compared."""
        found = dict(weights)
        for layer in self.layers:
            found |= layer.seen(weights)
        return found

    def solve(
        self, group: SymmetryGroup, weights: Weights, to: Weights, *, generator: torch.Generator
    ) -> Outcome:
        """The element found for weights that were checked."""
        check_network(group, self._network, "ByCovariance")
        found = self.by.solve(group, self.seen(weights), self.seen(to), generator=generator)
        return Outcome(found.element, found.ties, found.sweeps)


def _readers(network: Network, weights: Weights, inputs: Inputs) -> dict[str, Layer]:
    """The layers of a pass by the name of their weight; those used twice are left out."""
    layers: dict[str, Layer] = {}
    uses = Counter[str]()

    def see(use: Use) -> None:
        rows_of, own = _ROWS_OF.get(use.function), len(use.names)
        if rows_of is None or own != 1 + (_argument(use, 2, "bias") is not None):
            return  # another function, or a layer that reads what is made of weights
        name, *bias = use.names
        uses[name] += 1
        rows = rows_of(*use.args, **use.given)
        if rows is not None:
            layers[name] = Layer(name, bias[0] if bias else None, rows[:: -(-len(rows) // _ROWS)])

    answer(lambda few: visit_uses(network.apply, weights, few, see), inputs, weights.values())
    return {name: layer for name, layer in layers.items() if uses[name] == 1}


def _argument(use: Use, place: int, name: str) -> Any:
    return use.args[place] if len(use.args) > place else use.given.get(name)


def _rows_of_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return input.reshape(-1, input.shape[-1])


def _rows_of_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """Patches; ``None`` where groups or a padding by name make them another matter."""
    if groups != 1 or isinstance(padding, str) or input.dim() != 4:
        return None
    few = input[: max(1, _ROWS // 64)]
    patches = functional.unfold(
        few, weight.shape[2:], dilation=dilation, padding=padding, stride=stride
    )
    return patches.transpose(1, 2).reshape(-1, weight[0].numel())


_ROWS_OF: Mapping[Any, Callable[..., Tensor | None]] = {
    functional.linear: _rows_of_linear,
    torch.conv2d: _rows_of_convolution,
}
"""Layers, and how the rows are had that they read."""
