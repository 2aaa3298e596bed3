"""Parameters that meet the data by themselves: positions that are learnt, class tokens, scales.

Each example gets its own copy of such a parameter, whose gradient is then the example's own.  What
a network does with a parameter before it meets data (a slice, a view, any function of it alone) is
followed, and taken back by its derivative.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from coset.curvature.maps import LinearMap, linear
from coset.curvature.watch import Origin, Watch

_WHOLE, _WIDEST = 1 << 10, 1 << 24
"""Entries up to which a parameter is one block, and of all blocks along its last axis."""

_BROADCASTING = {
    "add", "add_", "sub", "sub_", "__rsub__", "rsub", "mul", "mul_", "multiply", "div", "div_",
    "true_divide", "__rdiv__", "pow", "maximum", "minimum", "where", "addcmul", "lerp",
}  # fmt: skip
"""Functions of entries that stand in the same place."""

_PRODUCTS = {"matmul", "__matmul__", "mm"}

_COPYING = {"expand", "expand_as", "repeat", "tile", "broadcast_to"}


def meet(watch: Watch, function: Any, *args: Any, **given: Any) -> Any:
    """Runs a function that reads parameters in a way of its own; ``None`` where it is not known."""
    label = getattr(function, "__name__", "")
    tensors = [value for value in (*args, *given.values()) if isinstance(value, Tensor)]
    if not any(watch.is_data(tensor) for tensor in tensors):
        return _without_data(watch, function, label, args, given)
    if any(watch.origin(value) is not None for value in given.values()):
        return None
    if label in _PRODUCTS:
        return _product(watch, function, *args)
    return _side_by_side(watch, function, args, given) if label in _BROADCASTING else None


def _without_data(
    watch: Watch, function: Any, label: str, args: tuple[Any, ...], given: dict[str, Any]
) -> Any:
    """A function of one parameter alone: how its result was made is remembered."""
    places = [k for k, value in enumerate(args) if watch.origin(value) is not None]
    if len(places) != 1 or any(isinstance(value, (tuple, list)) for value in args[:1]):
        return None
    place = places[0]
    origin = watch.origin(args[place])
    assert origin is not None

    def make(parameter: Tensor) -> Any:
        inner = parameter if origin.make is None else origin.make(parameter)
        return function(*args[:place], inner, *args[place + 1 :], **given)

    result = function(*args, **given)
    if isinstance(result, (tuple, list)) and any(isinstance(part, Tensor) for part in result):
        parts = [_part(make, k) for k in range(len(result))]
        made = zip(result, parts, strict=True)
        return type(result)(watch.remember(part, Origin(origin.name, f)) for part, f in made)
    if not isinstance(result, Tensor) or result is args[place]:
        return result
    if not result.is_floating_point():
        return result  # a comparison: no gradient goes through
    if label in _COPYING and _one_an_example(watch, args[place], result):
        return watch.note(result, [_map(watch, origin, args[place])])
    return watch.remember(result, Origin(origin.name, make))


def _part(make: Callable[[Tensor], Any], number: int) -> Callable[[Tensor], Tensor]:
    def part(parameter: Tensor) -> Tensor:
        found: Tensor = make(parameter)[number]
        return found

    return part


def _one_an_example(watch: Watch, source: Tensor, copies: Tensor) -> bool:
    """Whether a tensor was copied once for each example."""
    same = source.shape if source.dim() < copies.dim() else source.shape[1:]
    alone = source.dim() < copies.dim() or source.shape[0] == 1
    return alone and copies.shape[1:] == same and watch.fits(copies)


def _side_by_side(watch: Watch, function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """A function of entries: each example meets its own copy of the parameter."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    most = max(tensor.dim() for tensor in tensors)
    data = [t for t in tensors if watch.origin(t) is None and watch.is_data(t)]
    axes = {watch.axis(tensor) for tensor in data if tensor.dim() == most}
    if len(axes) != 1 or any(tensor.dim() != most for tensor in data):
        return None
    if axes == {1}:
        turned = [_turned(watch, value, most) for value in args]
        found = _side_by_side(watch, function, tuple(turned), given)
        return None if found is None else found.transpose(0, 1)
    if axes != {0}:
        return None
    values = []
    for value in args:
        origin = watch.origin(value)
        copied = value if origin is None else copy_for(watch, origin, value, most)
        if copied is None:
            return None
        values.append(copied)
    return function(*values, **given)


def _turned(watch: Watch, value: Any, most: int) -> Any:
    """A tensor with the examples of sequences in front."""
    if not isinstance(value, Tensor) or value.dim() < most:
        return value
    turned, origin = value.transpose(0, 1), watch.origin(value)
    if origin is None:
        return turned
    before = origin.make
    return watch.remember(
        turned,
        Origin(origin.name, lambda p: (p if before is None else before(p)).transpose(0, 1)),
    )


def copy_for(watch: Watch, origin: Origin, made: Tensor, most: int) -> Tensor | None:
    """One copy an example of a tensor that meets data of so many axes."""
    if made.dim() == most and made.shape[0] != 1:
        return None  # something else than the examples lies along the first axis
    lead = most - made.dim()
    shape = (*[1] * (lead - 1), *made.shape) if lead else made.shape[1:]
    copies = made.reshape(1, *shape).expand(watch.rows, *shape)
    return watch.note(copies, [_map(watch, origin, made)])


def _map(watch: Watch, origin: Origin, made: Tensor) -> LinearMap:
    """A parameter as weights on the constant one."""
    parameter = watch.watched[origin.name].detach()
    blocks, width = _block(parameter.shape)
    kept: dict[int, Tensor] = {}

    def left(gradient: Tensor) -> Tensor:
        each = gradient.reshape(len(gradient), *made.shape)
        if origin.make is not None:
            pull = vjp(origin.make, parameter)[1]
            each = vmap(lambda one: pull(one)[0])(each)
        return each.reshape(len(each), blocks, 1, width)

    def right(gradient: Tensor) -> Tensor:  # the same for every output, so made once
        rows = len(gradient)
        if rows not in kept:
            kept[rows] = gradient.new_ones(rows, blocks, 1, 1)
        return kept[rows]

    return LinearMap(
        (origin.name,), left, right, lambda tensors: tensors[0].reshape(blocks, width, 1)
    )


def _block(shape: Sequence[int]) -> tuple[int, int]:
    """Blocks of a parameter and entries of each: all as one, the last axis, or one by one.

    >>> _block((4, 8)), _block((100, 64)), _block((1000, 4096))
    ((1, 32), (100, 64), (4096000, 1))
    """
    total = math.prod(shape)
    if total <= _WHOLE:
        return 1, total
    return (total // shape[-1], shape[-1]) if total * shape[-1] <= _WIDEST else (total, 1)


def _product(watch: Watch, function: Any, input: Any, weight: Any, *rest: Any) -> Tensor | None:
    """``x W`` or ``x Wᵀ``, written without a layer."""
    plain = isinstance(input, Tensor) and isinstance(weight, Tensor) and not rest
    if not plain or weight.dim() != 2 or input.dim() < 2 or watch.origin(input) is not None:
        return None
    origin = watch.origin(weight)
    if origin is None or not watch.fits(input):
        return None
    if origin.make is None:
        (use,) = linear((origin.name, None), input.detach(), weight.mT, joint=False)
        use = replace(use, join=lambda tensors: tensors[0].mT.unsqueeze(0))
    elif _is_transposed(weight, watch.watched[origin.name]):
        (use,) = linear((origin.name, None), input.detach(), weight.mT, joint=False)
    else:
        return None
    return watch.note(function(input, weight), [use])


def _is_transposed(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor is the transpose of a parameter, in the same memory."""
    return (
        parameter.dim() == 2
        and tensor.shape == parameter.shape[::-1]
        and tensor.stride() == parameter.stride()[::-1]
        and tensor.data_ptr() == parameter.data_ptr()
    )


def read_prelu(watch: Watch, function: Any, input: Tensor, weight: Tensor) -> Tensor | None:
    """A rectifier with learnt slopes, one a channel or one for all."""
    name = watch.name_of(weight)
    if name is None or not watch.fits(input):
        return None
    shape = (-1, *[1] * (input.dim() - 2))
    slopes = copy_for(
        watch, Origin(name, lambda p: p.reshape(shape)), weight.reshape(shape), input.dim()
    )
    return None if slopes is None else torch.where(input > 0, input, slopes * input)
