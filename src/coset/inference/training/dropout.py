"""Dropout masks that belong to a member, not to the stack it happens to be trained in."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.weights.calls import Arguments, Calls, Named, TorchFunction

_CHANNEL_DROPOUTS: dict[Callable[..., Any], int] = {
    functional.dropout1d: 3,
    functional.dropout2d: 4,
    functional.dropout3d: 5,
}
"""Dropouts of whole channels, and the number of axes of a batch for them."""


class MemberDropout(Calls):
    """Draws the masks of ``functional.dropout`` from one generator a member.

    Under :func:`torch.func.vmap` the members' masks would come from one stream, so that a member
    would depend on how many others are trained beside it.  While this mode is on, each member
    has its own stream and gets the same masks in every stack, and alone.

    >>> mode = MemberDropout([torch.Generator().manual_seed(0)])
    >>> with mode:
    ...     dropped = functional.dropout(torch.ones(1000), 0.5)
    >>> sorted(set(dropped.tolist()))
    [0.0, 2.0]
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self._generators = tuple(generators)

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Replaces dropouts and lets every other function pass."""
        if function is functional.dropout or function in _CHANNEL_DROPOUTS:
            return self._dropout(function, *args, **given)
        return function(*args, **given)

    def _dropout(
        self,
        function: Callable[..., Any],
        inputs: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if not training or p == 0 or inputs.dim() != _CHANNEL_DROPOUTS.get(function, inputs.dim()):
            return function(inputs, p, training, inplace)
        axes = inputs.dim() if function is functional.dropout else 2
        return inputs * _Mask.apply(inputs, p, axes, self._generators)


class _Mask(torch.autograd.Function):
    """A mask of zeros and ``1 / (1 - p)``, constant along the axes after the first ``axes``."""

    @staticmethod
    def forward(
        inputs: Tensor, p: float, axes: int, generators: Sequence[torch.Generator]
    ) -> Tensor:
        (generator,) = generators
        return _draw(inputs, inputs.shape, p, axes, generator)

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
        inputs: Tensor,
        p: float,
        axes: int,
        generators: Sequence[torch.Generator],
    ) -> tuple[Tensor, int]:
        shape = list(inputs.shape)
        if in_dims[0] is not None:
            del shape[in_dims[0]]
        drawn = [_draw(inputs, torch.Size(shape), p, axes, generator) for generator in generators]
        return torch.stack(drawn), 0


def _draw(
    like: Tensor, shape: torch.Size, p: float, axes: int, generator: torch.Generator
) -> Tensor:
    lead = shape[:axes] + torch.Size([1] * (len(shape) - axes))
    # single precision on the generator's device: the same masks for every dtype and device
    uniform = torch.rand(lead, generator=generator, dtype=torch.float32)
    kept = (uniform >= p).to(device=like.device, dtype=like.dtype)
    return kept if p == 1 else kept / (1 - p)
