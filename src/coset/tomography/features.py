"""The network as a linear function of its filters: derivatives of pixels and of readings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp, vmap

from coset.curvature.products import FORWARD_MODE
from coset.tomography.deep_image_prior import Fitted
from coset.tomography.taps import TAPS
from coset.weights import Network

_TOGETHER = 49
"""Derivatives of so many outputs are found side by side."""


@dataclass(frozen=True)
class Block:
    """Filters that share a variance, and a length if they have 3 × 3 taps.

    Attributes:
        name: Where in the network.
        tensors: Names of its weights.
        taps: 9 or 1.
    """

    name: str
    tensors: tuple[str, ...]
    taps: int


def blocks_of(network: Network) -> tuple[Block, ...]:
    """The 3 × 3 convolutions of each part of a network together, other weights by themselves.

    Biases, norms and other vectors are held fixed.

    >>> from coset.tomography.deep_image_prior import image_network
    >>> from coset.weights import functionalise
    >>> [block.taps for block in blocks_of(functionalise(image_network(28)))]
    [9, 9, 9, 1, 1, 9, 9, 1]
    """
    found: dict[tuple[str, int], list[str]] = {}
    for name in network.layout.names:
        shape = network.weights[name].shape
        if len(shape) >= 2:
            taps = TAPS if tuple(shape[2:]) == (3, 3) else 1
            found.setdefault((name.rsplit(".", 2)[0], taps), []).append(name)
    return tuple(Block(name, tuple(names), taps) for (name, taps), names in found.items())


def whole_of(network: Network) -> tuple[Block]:
    """All weights of :func:`blocks_of` as one block, each by itself.

    >>> from coset.tomography.deep_image_prior import image_network
    >>> from coset.weights import functionalise
    >>> [block.taps for block in whole_of(functionalise(image_network(28)))]
    [1]
    """
    names = tuple(name for name in network.layout.names if network.weights[name].ndim >= 2)
    return (Block("all weights", names, 1),)


@dataclass(frozen=True)
class Features:
    """Derivatives of the image at the fitted weights.

    Attributes:
        fitted: The network and its weights.
        blocks: The weights that are uncertain.
        units: What each weight is measured in, block by block; ``None``: in itself.
    """

    fitted: Fitted
    blocks: tuple[Block, ...]
    units: tuple[Float[Tensor, "filters taps"], ...] | None = None

    @property
    def count(self) -> int:
        """How many weights are uncertain."""
        weights = self.fitted.weights
        return sum(weights[name].numel() for block in self.blocks for name in block.tensors)

    def weights(self) -> list[Float[Tensor, "filters taps"]]:
        """The fitted weights of each block."""
        found = [self._joined(block, self.fitted.weights)[0] for block in self.blocks]
        if self.units is None:
            return found
        return [each / unit.to(each) for each, unit in zip(found, self.units, strict=True)]

    def measured(self, rows: Sequence[Float[Tensor, "k filters taps"]]) -> "Features":
        """Each weight in units of ``1 / √(mean square of its column)``: equally felt by all rows.

        Args:
            rows: Derivatives of what should feel them, in the weights themselves.
        """
        roots = [each.double().square().mean(0).sqrt() for each in rows]
        most = max(float(each.max()) for each in roots)
        units = tuple(each.clamp_min(1e-6 * most).reciprocal() for each in roots)
        return replace(self, units=units)

    def in_units(
        self, rows: Sequence[Float[Tensor, "k filters taps"]]
    ) -> list[Float[Tensor, "k filters taps"]]:
        """Derivatives by weights as derivatives by weights in their units."""
        if self.units is None:
            return list(rows)
        return [each * unit.to(each) for each, unit in zip(rows, self.units, strict=True)]

    def rows(self, cotangents: Float[Tensor, "k pixels"]) -> list[Float[Tensor, "k filters taps"]]:
        """``uᵀ J`` of each linear form of pixels, block by block."""
        parts = list(self.chunks(cotangents))
        return [torch.cat([part[i] for part in parts]) for i in range(len(self.blocks))]

    def chunks(
        self, cotangents: Float[Tensor, "k pixels"]
    ) -> Iterator[list[Float[Tensor, "j filters taps"]]]:
        """:meth:`rows`, a few at a time."""
        fitted = self.fitted
        size = fitted.inputs.shape[-1]
        names = [name for block in self.blocks for name in block.tensors]
        chosen = {name: fitted.weights[name] for name in names}
        pull = vjp(lambda part: fitted.network.apply(part | self._rest, fitted.inputs), chosen)[1]
        for chunk in cotangents.to(fitted.inputs).split(_TOGETHER):
            found = vmap(lambda u: pull(u.reshape(1, 1, size, size))[0])(chunk)
            yield self.in_units([self._joined(block, found, len(chunk)) for block in self.blocks])

    def push(
        self, directions: Sequence[Float[Tensor, "k filters taps"]]
    ) -> Float[Tensor, "k pixels"]:
        """``J θ`` for each change of the weights, given block by block."""
        fitted = self.fitted
        names = [name for block in self.blocks for name in block.tensors]
        chosen = {name: fitted.weights[name] for name in names}

        def changed(*parts: Tensor) -> Tensor:
            tangent = self._parted(parts)
            apply = lambda part: fitted.network.apply(part | self._rest, fitted.inputs)  # noqa: E731
            change: Tensor = jvp(apply, (chosen,), (tangent,))[1]
            return change.flatten()

        parts = [each.to(fitted.inputs).split(_TOGETHER) for each in self.in_units(directions)]
        with FORWARD_MODE:
            return torch.cat([vmap(changed)(*chunk) for chunk in zip(*parts, strict=True)])

    def _parted(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """The weights of each tensor from those of each block."""
        found = {}
        for block, part in zip(self.blocks, parts, strict=True):
            shapes = [self.fitted.weights[name].shape for name in block.tensors]
            sizes = [shape.numel() // block.taps for shape in shapes]
            for name, shape, piece in zip(block.tensors, shapes, part.split(sizes), strict=True):
                found[name] = piece.reshape(shape)
        return found

    @property
    def _rest(self) -> dict[str, Tensor]:
        uncertain = {name for block in self.blocks for name in block.tensors}
        return {name: w for name, w in self.fitted.weights.items() if name not in uncertain}

    def _joined(self, block: Block, weights: dict[str, Tensor], count: int = 1) -> Tensor:
        parts = [weights[name].reshape(count, -1, block.taps) for name in block.tensors]
        return torch.cat(parts, dim=1)
