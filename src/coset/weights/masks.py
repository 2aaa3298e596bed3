"""Dropout lifted into the weights: masks are tensors like the others.

A network with its dropouts lifted reads, beside its weights, one mask for each dropout of a pass,
``dropout:0``, ``dropout:1``, … in the order in which they are reached.  Fixed masks make a pass a
function of the weights alone, so that one draw of them is one function.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.errors import CosetError
from coset.vocabulary import Inputs, Weights
from coset.weights.calls import Arguments, Calls, Named, TorchFunction

PREFIX, ROWS = "dropout:", "dropout rows:"
"""Names of masks, and of the numbers from which each row of a batch has its own."""

_AXES: dict[Callable[..., Any], int | None] = {
    functional.dropout: None,
    functional.dropout1d: 3,
    functional.dropout2d: 4,
    functional.dropout3d: 5,
}
"""Dropouts and, for those of whole channels, the number of axes of a batch."""


@dataclass(frozen=True)
class DropoutSite:
    """One dropout of a pass.

    Attributes:
        rate: Probability of dropping.
        shape: Shape of a mask; the data axis and the axes a channel shares have size one.
    """

    rate: float
    shape: tuple[int, ...]


class Dropouts(Calls):
    """Puts a function of our own, of rate and inputs, in the place of every dropout of a pass.

    Dropouts are replaced in training and in evaluation mode alike, unless their rate is zero.
    """

    def __init__(self, replacement: Callable[[Tensor, float, bool], Tensor]) -> None:
        super().__init__()
        self._replacement = replacement

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Replaces dropouts and lets every other function pass."""
        if function in _AXES:
            return self._replace(function, *args, **given)
        return function(*args, **given)

    def _replace(
        self,
        function: Callable[..., Any],
        inputs: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if p == 0:
            return inputs
        whole_channels = _AXES[function] is not None and inputs.dim() == _AXES[function]
        return self._replacement(inputs, p, whole_channels)


def dropout_off() -> Dropouts:
    """Drops nothing, in training mode neither.

    >>> with dropout_off():
    ...     functional.dropout(torch.ones(3), 0.9, training=True)
    tensor([1., 1., 1.])
    """
    return Dropouts(lambda inputs, rate, whole_channels: inputs)


def with_masks(masks: Mapping[str, Tensor]) -> "Dropouts | nullcontext[None]":
    """The mode in which dropouts multiply by these masks, in order; without masks, none."""
    if not masks:
        return nullcontext()
    reached = count()

    def multiply(inputs: Tensor, rate: float, whole_channels: bool) -> Tensor:
        number = next(reached)
        if f"{ROWS}{number}" in masks:
            return _row_by_row(inputs, rate, masks[f"{ROWS}{number}"])
        if f"{PREFIX}{number}" not in masks:
            raise CosetError(
                f"got a pass with more than {number} dropouts",
                "needed one mask for each",
                "predict on inputs like those that were fitted",
            )
        mask = masks[f"{PREFIX}{number}"]
        if mask.dim() != inputs.dim() or any(
            size not in (1, own) for size, own in zip(mask.shape, inputs.shape, strict=True)
        ):
            raise CosetError(
                f"got {tuple(inputs.shape)} at dropout {number}",
                f"needed a shape that its mask of shape {tuple(mask.shape)} fits",
                "predict on inputs of the size that was fitted",
            )
        return inputs * mask

    return Dropouts(multiply)


def _row_by_row(inputs: Tensor, rate: float, numbers: Tensor) -> Tensor:
    """Drops by masks that differ from row to row; rows are independent in pairs."""
    rows = torch.arange(inputs.shape[0], device=inputs.device)
    kept = _turned(numbers, rows.view(-1, *[1] * (inputs.dim() - 1))) >= rate
    return inputs * kept / (1 - rate) if rate < 1 else inputs * 0


def _turned(numbers: Tensor, rows: Tensor | int) -> Tensor:
    """``frac(u + i a)``: exact, because ``u`` and ``a`` have 24 digits and doubles have 53."""
    first, turn = numbers.double().unbind(0)
    return (first + rows * turn).frac()


def from_row(stack: Weights, start: int) -> Weights:
    """A stack for a batch that begins with a later row, whose masks are its own."""
    later = {}
    for name, numbers in stack.items():
        if start and name.startswith(ROWS):
            first = _turned(numbers.movedim(1, 0), start).to(numbers.dtype)
            later[name] = torch.stack([first, numbers[:, 1]], dim=1)
    return {**stack, **later}


def split_masks(weights: Weights) -> tuple[Weights, Weights]:
    """The weights proper, and the masks among them.

    >>> split_masks({"w": torch.ones(1), "dropout:0": torch.ones(1)})
    ({'w': tensor([1.])}, {'dropout:0': tensor([1.])})
    """
    masks = {name: tensor for name, tensor in weights.items() if name.startswith((PREFIX, ROWS))}
    return {name: tensor for name, tensor in weights.items() if name not in masks}, masks


def dropout_sites(
    apply: Callable[[Inputs], Tensor], inputs: Inputs, more: Inputs
) -> tuple[DropoutSite, ...]:
    """The dropouts of a pass, found by two passes over different numbers of data.

    The axis whose size follows the number of data is the data axis, along which a mask is shared.
    """
    with torch.no_grad():
        surveys = [_survey(apply, batch) for batch in (inputs, more)]
    sites = []
    for (rate, whole_channels, first), (_, _, second) in zip(*surveys, strict=True):
        shape = [1 if a != b else a for a, b in zip(first, second, strict=True)]
        if whole_channels:
            shape[2:] = [1] * len(shape[2:])
        sites.append(DropoutSite(rate, tuple(shape)))
    return tuple(sites)


def _survey(
    apply: Callable[[Inputs], Tensor], inputs: Inputs
) -> list[tuple[float, bool, tuple[int, ...]]]:
    """Rate and shape of every dropout of a pass."""
    seen = []

    def note(values: Tensor, rate: float, whole_channels: bool) -> Tensor:
        seen.append((float(rate), whole_channels, tuple(values.shape)))
        return values

    with Dropouts(note):
        apply(inputs)
    return seen
