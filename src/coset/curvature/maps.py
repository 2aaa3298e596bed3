"""Linear maps inside a network, each as a sum of outer products.

The gradient of anything in the weights of a linear map is ``Σ_r u_r v_rᵀ`` over the positions ``r``
where the weights are used (pixels, tokens): ``u`` from the gradient of the outputs, ``v`` from the
inputs, or the other way round.  Every function here returns such pairs with axes ``n b r o`` and
``n b r i``: examples, blocks (groups of a convolution, channels of a norm), positions, and the two
axes of the block's matrix of weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coset.curvature.moments import patch_moment
from coset.curvature.patches import patches, with_ones

Pair = tuple[Float[Tensor, "n b r o"], Float[Tensor, "n b r i"]]


@dataclass(frozen=True)
class LinearMap:
    """One use of some weights.

    Attributes:
        names: The tensors, one block of the curvature together.
        left: From a gradient of the map's outputs to ``u``.
        right: The same for ``v``.
        join: From tensors in the shapes of the weights to the block's matrices ``b o i``.
        moment: ``Σ v vᵀ`` over examples and positions, where it can be had without ``v``.
    """

    names: tuple[str, ...]
    left: Callable[[Tensor], Float[Tensor, "n b r o"]]
    right: Callable[[Tensor], Float[Tensor, "n b r i"]]
    join: Callable[[Sequence[Tensor]], Float[Tensor, "b o i"]]
    moment: Callable[[], Float[Tensor, "b i i"]] | None = None

    def pair(self, gradient: Tensor) -> Pair:
        """``u`` and ``v`` for a gradient of the map's outputs."""
        return self.left(gradient), self.right(gradient)


def outer(left: Float[Tensor, "n b r o"], right: Float[Tensor, "n b r i"]) -> Tensor:
    """``Σ_r u_r v_rᵀ`` for each example: its gradient in the block's weights.

    >>> outer(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 3)).flatten()
    tensor([2., 2., 2.])
    """
    return torch.matmul(left.mT, right)


def linear(
    names: tuple[str | None, str | None], inputs: Tensor, weight: Tensor, *, joint: bool
) -> list[LinearMap]:
    """``y = W x + b``: the gradient in ``y`` times ``[x, 1]``."""
    rows = inputs.reshape(len(inputs), 1, -1, inputs.shape[-1])
    return _affine(
        names,
        lambda gradient: gradient.reshape(len(gradient), 1, -1, gradient.shape[-1]),
        lambda: rows,
        (1, len(weight)),
        joint,
    )


def convolution(
    names: tuple[str | None, str | None],
    inputs: Tensor,
    weight: Tensor,
    groups: int,
    *,
    joint: bool,
    **geometry: Any,
) -> list[LinearMap]:
    """A linear map of patches, shared by all positions."""
    rows, kernel = len(weight) // groups, weight.shape[2:]

    def moment() -> Tensor:
        both = joint and None not in names
        return patch_moment(inputs, kernel, groups, ones=both, **geometry)

    return _affine(
        names,
        lambda gradient: gradient.reshape(len(gradient), groups, rows, -1).mT,
        lambda: patches(inputs, kernel, groups, **geometry),
        (groups, rows),
        joint,
        moment,
    )


def transposed(
    names: tuple[str | None, str | None],
    inputs: Tensor,
    weight: Tensor,
    groups: int,
    **geometry: Any,
) -> list[LinearMap]:
    """A transposed convolution: inputs on the left, patches of the gradient on the right."""
    rows, positions = len(weight) // groups, prod(inputs.shape[2:])
    left = inputs.reshape(len(inputs), groups, rows, -1).mT

    def right(gradient: Tensor) -> Tensor:
        found = patches(gradient, weight.shape[2:], groups, **geometry)
        return found[:, :, :positions]

    found = []
    if names[0] is not None:
        found.append(
            LinearMap(
                (names[0],),
                lambda gradient: left,
                right,
                lambda tensors: _channels_behind(tensors[0]).reshape(groups, rows, -1),
            )
        )
    if names[1] is not None:
        found.append(_constant(names[1], lambda gradient: gradient.flatten(2).mT.unsqueeze(1)))
    return found


def normalised(
    names: tuple[str | None, str | None],
    standard: Callable[[], Tensor],
    channel: Callable[[Tensor], Tensor],
    *,
    joint: bool,
) -> list[LinearMap]:
    """``y = γ x̂ + β`` for each channel: one block of two weights a channel, or two of one.

    Args:
        names: Of ``γ`` and ``β``.
        standard: Gives the standardised inputs ``x̂``.
        channel: Brings a tensor to the axes ``n channels positions``.
        joint: Whether they share a block.
    """
    if not joint and None not in names:
        alone = (names[0], None), (None, names[1])
        return [use for one in alone for use in normalised(one, standard, channel, joint=True)]
    kept = tuple(name for name in names if name is not None)
    found: dict[str, Tensor] = {}

    def right(gradient: Tensor) -> Tensor:  # the same for every output, so computed once
        if "rows" not in found:
            columns = channel(standard()).mT  # channels behind, as convolutions have them
            ones = torch.ones_like(columns)
            parts = [p for n, p in zip(names, (columns, ones), strict=True) if n is not None]
            found["rows"] = torch.stack(parts, dim=2).permute(0, 3, 1, 2)
        return found["rows"]

    return [
        LinearMap(
            kept,
            lambda gradient: channel(gradient).unsqueeze(-1),
            right,
            lambda tensors: torch.stack([t.flatten() for t in tensors], dim=-1).unsqueeze(1),
        )
    ]


def embedding(name: str, index: Tensor, weight: Tensor, padding: int | None) -> list[LinearMap]:
    """Rows of a table: a linear map of one-hot vectors."""
    rows = index.long().reshape(len(index), 1, -1)
    hot = functional.one_hot(rows, len(weight)).to(weight.dtype)
    if padding is not None:
        hot[..., padding] = 0

    return [
        LinearMap(
            (name,),
            lambda gradient: hot,
            lambda gradient: gradient.reshape(len(gradient), 1, -1, gradient.shape[-1]),
            lambda tensors: tensors[0].unsqueeze(0),
        )
    ]


def _affine(
    names: tuple[str | None, str | None],
    gradient: Callable[[Tensor], Tensor],
    read: Callable[[], Tensor],
    shape: tuple[int, int],
    joint: bool,
    moment: Callable[[], Tensor] | None = None,
) -> list[LinearMap]:
    """Weights and bias as one block, or as two."""
    weight, bias = names
    found = []
    kept: dict[str, Tensor] = {}

    def right() -> Tensor:  # the same for every output, so computed once
        if "rows" not in kept:
            kept["rows"] = with_ones(read()) if joint and bias is not None else read()
        return kept["rows"]

    if weight is not None:
        both = joint and bias is not None
        found.append(
            LinearMap(
                (weight, bias) if both and bias is not None else (weight,),
                gradient,
                lambda g: right(),
                lambda tensors: torch.cat(
                    [_channels_behind(t).reshape(*shape, -1) for t in tensors], dim=-1
                ),
                moment,
            )
        )
    if bias is not None and (weight is None or not joint):
        found.append(_constant(bias, gradient, shape))
    return found


def _channels_behind(weight: Tensor) -> Tensor:
    """The weights of a convolution in the order of its patches: pixel by pixel."""
    return weight.movedim(1, -1) if weight.dim() > 2 else weight


def _constant(
    name: str, gradient: Callable[[Tensor], Tensor], shape: tuple[int, ...] = (1, -1)
) -> LinearMap:
    """A bias by itself: a weight on the constant one."""

    def right(g: Tensor) -> Tensor:
        left = gradient(g)
        return left.new_ones((*left.shape[:-1], 1))

    return LinearMap((name,), gradient, right, lambda tensors: tensors[0].reshape(*shape, 1))
