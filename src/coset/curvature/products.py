"""Products with the Jacobian of a network on some inputs, for many vectors at once.

Forward-mode derivatives of all vectors go side by side under ``vmap``; backward-mode ones share one
forward pass.  Inputs and vectors are taken in chunks that keep activations within a budget, so
nothing of the size of the Jacobian is ever formed.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap

from coset.curvature.plain_attention import PlainAttention
from coset.errors import CosetError
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import map_parts, split_rows
from coset.weights.layout import Layout
from coset.weights.memory import activations
from coset.weights.network import Network
from coset.weights.stacking import unstack

_ACTIVATIONS = 1 << 28
"""Bytes of activations and their derivatives that are alive at a time."""

_SIDE_BY_SIDE = 10_000
"""Weights up to which backward products of many vectors are faster under vmap than in turn."""

FORWARD_MODE = threading.RLock()
"""Torch keeps one count of forward-mode derivatives for all threads, which therefore take turns."""


@dataclass(frozen=True)
class Linearisation:
    """A network at fixed weights, as a linear function of a change of some of them.

    Attributes:
        network: The network.
        weights: Where it is linearised.
        layout: The weights that change.
        memory: Bytes of activations that may be alive at a time.

    >>> from torch import nn
    >>> from coset.weights.network import functionalise
    >>> network = functionalise(nn.Linear(2, 1, bias=False))
    >>> line = Linearisation(network, network.weights, network.layout)
    >>> line.push(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 10.0]])).item()
    43.0
    """

    network: Network
    weights: Weights
    layout: Layout
    memory: int = _ACTIVATIONS

    def push(self, inputs: Inputs, directions: Float[Tensor, "k p"]) -> Float[Tensor, "k n ..."]:
        """``J v``: how the outputs change along each direction in the weights."""
        rows, columns = self._plan(inputs, len(directions))
        parts = [
            torch.cat([self._push(chunk, some) for chunk in split_rows(inputs, rows)], dim=1)
            for some in directions.split(columns)
        ]
        return torch.cat(parts)

    def run_and_push(self, inputs: Inputs, direction: Float[Tensor, " p"]) -> tuple[Tensor, Tensor]:
        """The outputs and ``J v``, in one pass."""
        tangents = self._without_padding(self.layout.unflatten(direction.unsqueeze(0)))
        along = {name: tangent[0] for name, tangent in tangents.items()}
        given = self.layout.restrict(self.weights)
        rows, _ = self._plan(inputs, 1)
        with torch.no_grad(), PlainAttention(), FORWARD_MODE:
            try:
                pairs = [jvp(self._on(c), (given,), (along,)) for c in split_rows(inputs, rows)]
            except RuntimeError as error:
                raise self._refusal(error) from error
        outputs, changes = zip(*pairs, strict=True)
        return torch.cat(outputs), torch.cat(changes)

    def pull(self, inputs: Inputs, cotangents: Float[Tensor, "k n ..."]) -> Float[Tensor, "k p"]:
        """``Jᵀ u``: the gradient in the weights for each direction in the outputs."""
        rows, _ = self._plan(inputs, len(cotangents))
        total = cotangents.new_zeros(len(cotangents), self.layout.size)
        some = cotangents.split(rows, dim=1)
        for chunk, part in zip(split_rows(inputs, rows), some, strict=True):
            self._pull(chunk, part, total)
        return total

    def _push(self, inputs: Inputs, directions: Float[Tensor, "k p"]) -> Tensor:
        given = self.layout.restrict(self.weights)

        def along(direction: Weights) -> Tensor:
            changed: Tensor = jvp(self._on(inputs), (given,), (direction,))[1]
            return changed

        tangents = self._without_padding(self.layout.unflatten(directions))
        with torch.no_grad(), PlainAttention(), FORWARD_MODE:
            try:
                return vmap(along)(tangents)
            except RuntimeError:  # control flow that depends on values, say: one after the other
                each = unstack(tangents)
            try:
                return torch.stack([along(direction) for direction in each])
            except RuntimeError as error:
                raise self._refusal(error) from error

    def _without_padding(self, tangents: Weights) -> Weights:
        """Rows of padding get no gradient backwards, so they must not count forwards either."""
        module = self.network.module
        for name, child in () if module is None else module.named_modules():
            weight = f"{name}.weight" if name else "weight"
            padding = child.padding_idx if isinstance(child, nn.Embedding) else None
            if padding is not None and weight in tangents:
                masked = tangents[weight].clone()
                masked[:, padding] = 0
                tangents = {**tangents, weight: masked}
        return tangents

    def _pull(self, inputs: Inputs, cotangents: Tensor, total: Float[Tensor, "k p"]) -> None:
        with torch.no_grad(), PlainAttention():
            try:
                found = vjp(self._on(inputs), self.layout.restrict(self.weights))
                outputs, pull = found[0], found[1]
                cotangents = cotangents.reshape(len(cotangents), *outputs.shape)
                if self.layout.size <= _SIDE_BY_SIDE:
                    total += self.layout.flatten(vmap(pull)(cotangents)[0])
                    return
                for number, cotangent in enumerate(cotangents):
                    total[number] += self.layout.flatten(pull(cotangent)[0])
            except RuntimeError as error:
                raise self._refusal(error) from error

    def _on(self, inputs: Inputs) -> Callable[[Weights], Tensor]:
        # torch's derivative of group norm cannot read pictures whose channels are last in memory
        plain = map_parts(torch.Tensor.contiguous, inputs)
        return lambda given: self.network.apply({**self.weights, **given}, plain)

    def row_bytes(self, inputs: Inputs, count: int) -> int:
        """Bytes of activations and derivatives of one row for so many vectors."""
        if not self._sizes:
            seen = activations(self.network, self.weights, next(split_rows(inputs, 1)))
            self._sizes.extend((2 * seen.total, 4 * max(1, seen.largest)))
        graph, vector = self._sizes
        return graph + count * vector

    def _plan(self, inputs: Inputs, count: int) -> tuple[int, int]:
        """Rows of data and vectors of one chunk."""
        fixed = self.row_bytes(inputs, 0)
        columns = max(1, min(count, (self.memory - fixed) // self._sizes[1]))
        return max(1, self.memory // self.row_bytes(inputs, columns)), columns

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of a row's graph and of a row's derivative, once a row has been seen."""
        return []

    def _refusal(self, error: Exception) -> CosetError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return CosetError(
            f"got a network that cannot be differentiated in its weights ({reason:.200})",
            "needed operations with forward- and backward-mode derivatives",
            "use KFAC() or LastLayer(), or write that operation with differentiable ones",
        )
