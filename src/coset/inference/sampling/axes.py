"""Weights of the first layer along the principal axes of the inputs.

Turning the inputs, ``x → Qᵀ x``, and the weights that meet them, ``W → W Q``, changes no output,
and a prior that is the same for all weights of a unit does not notice.  But the curvature of the
energy in ``W`` is, unit by unit, a weighted ``Σ x xᵀ``: along the principal axes of the inputs it
is close to diagonal, and a diagonal mass can undo it.  Along axes on which no input has a part only
the prior acts, and products with the data leave them out: of 1,000 handwritten digits with 784
pixels 194 such axes.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.inference.sampling.layered import LayeredLoss
from coset.inference.sampling.layers import Linear
from coset.inference.sampling.targets import FullBatch

_WIDEST = 4096
"""Inputs beyond which finding their axes would take minutes."""

_ROUNDING = 8
"""Parts of inputs along an axis that change no product, in units of rounding."""


@dataclass(frozen=True)
class InputAxes:
    """New coordinates for a part of flat vectors.

    Attributes:
        place: Where the weights of the first layer lie.
        axes: The principal axes as columns; orthogonal.
    """

    place: slice
    axes: Float[Tensor, "d d"]

    def turned(self, flat: Float[Tensor, "*m p"]) -> Float[Tensor, "*m p"]:
        """``W → W Q``.

        >>> InputAxes(slice(0, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])).turned(torch.arange(3.0))
        tensor([1., 0., 2.])
        """
        return self._product(flat, self.axes)

    def back(self, flat: Float[Tensor, "*m p"]) -> Float[Tensor, "*m p"]:
        """The inverse of :meth:`turned`."""
        return self._product(flat, self.axes.T)

    def _product(self, flat: Tensor, matrix: Tensor) -> Tensor:
        part = flat[..., self.place].unflatten(-1, (-1, len(matrix))) @ matrix
        rest = flat[..., : self.place.start], flat[..., self.place.stop :]
        return torch.cat([rest[0], part.flatten(-2), rest[1]], dim=-1)


def along_axes(target: FullBatch) -> tuple[FullBatch, InputAxes | None]:
    """The energy in the new coordinates, with these; unchanged where they are of no use.

    They need a network of layers, and a prior that is the same for all weights of a unit of the
    first.
    """
    loss = target.loss
    if loss is None or not 1 < loss.inputs.shape[1] <= _WIDEST:
        return target, None
    place = _first_weight(loss)
    precision = target.target.precision[place].unflatten(0, (-1, loss.inputs.shape[1]))
    if not bool((precision == precision[:, :1]).all()):
        return target, None
    inputs = loss.inputs.double()
    products = inputs.T @ inputs
    if not bool(products.isfinite().all()):  # too large to be squared
        return target, None
    _, axes = torch.linalg.eigh(products)
    along = _without_empty(inputs @ axes, rounding=torch.finfo(loss.inputs.dtype).eps)
    turned = replace(loss, inputs=along.to(loss.inputs))
    return replace(target, loss=turned), InputAxes(place, axes.to(loss.inputs))


def _without_empty(inputs: Float[Tensor, "n d"], *, rounding: float) -> Float[Tensor, "n r"]:
    """Inputs along their axes, ascending, without the first ones if no input has a part there.

    Args:
        inputs: The inputs, of which parts are known to ``d`` times their own rounding.
        rounding: That of the products they are used in.

    >>> _without_empty(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.5, 2.0]]), rounding=1e-7)
    tensor([[0.0000, 1.0000],
            [0.5000, 2.0000]])
    """
    sizes = inputs.norm(dim=0)
    least = _ROUNDING * max(rounding, len(sizes) * torch.finfo(inputs.dtype).eps)
    empty = sizes[:-1] <= least * sizes.max()
    return inputs[:, int(empty.long().cumprod(0).sum()) :]


def _first_weight(loss: LayeredLoss) -> slice:
    first = loss.layers.steps[0]
    assert isinstance(first, Linear)
    return loss.layout.slices[first.weight]
