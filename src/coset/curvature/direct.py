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

_COPYING = {"expand", "expand_as", "repeat", "tile", "broadcast_to", "repeat_interleave"}


def meet(watch: Watch, function: Any, *args: Any, **given: Any) -> Any:
    """Runs a function that reads parameters in a way of its own; ``None`` where it is not known."""
    label = getattr(function, "__name__", "")
    tensors = [value for value in (*args, *given.values()) if isinstance(value, Tensor)]
    shaped = label == "expand_as" and watch.origin(args[1]) is None  # no values of the data
    if shaped or not any(watch.is_data(tensor) for tensor in tensors):
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
        return type(result)(_remembered(watch, part, Origin(origin.name, f)) for part, f in made)
    if not isinstance(result, Tensor) or result is args[place]:
        return result  # what is written in place is known by its version
    axis = _axis_of_copies(watch, function, args[place], result) if label in _COPYING else None
    if axis is None:
        return _remembered(watch, result, Origin(origin.name, make))
    single = Origin(origin.name, lambda parameter: make(parameter).select(axis, 0))
    return watch.note(result, [_map(watch, single, axis)])


def _remembered(watch: Watch, result: Tensor, origin: Origin) -> Tensor:
    """A tensor with its origin, unless it is a comparison, which no gradient goes through."""
    real = result.is_floating_point() or result.is_complex()
    return watch.leaf(result, origin) if real else result


def _part(make: Callable[[Tensor], Any], number: int) -> Callable[[Tensor], Tensor]:
    def part(parameter: Tensor) -> Tensor:
        found: Tensor = make(parameter)[number]
        return found

    return part


def _axis_of_copies(watch: Watch, function: Any, source: Tensor, copies: Tensor) -> int | None:
    """The axis along which a tensor was copied once for each example."""
    axis = watch.axis_of_result(function, copies)
    before = -1 if axis is None else axis - copies.dim() + source.dim()
    return axis if before < 0 or source.shape[before] == 1 else None


def _side_by_side(watch: Watch, function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """A function of entries: each example meets its own copy of the parameter."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    most = max(tensor.dim() for tensor in tensors)
    data = [t for t in tensors if watch.origin(t) is None and watch.is_data(t)]
    axes = {watch.axis(tensor) for tensor in data}
    changed = args[0] if getattr(function, "__name__", "").endswith("_") else None
    (axis,) = axes if len(axes) == 1 else (None,)
    if axis is None or any(t.dim() != most for t in data) or watch.origin(changed) is not None:
        return None
    values = []
    for value in args:
        origin = watch.origin(value)
        copied = value if origin is None else copy_for(watch, origin, value, most, axis)
        if copied is None:
            return None
        values.append(copied)
    return function(*values, **given)


def copy_for(watch: Watch, origin: Origin, made: Tensor, most: int, axis: int = 0) -> Tensor | None:
    """One copy an example, along an axis, of a tensor that meets data of so many axes."""
    single = made.reshape(*[1] * (most - made.dim()), *made.shape)
    if single.shape[axis] != 1:
        return None  # something else than the examples lies there
    shape = *single.shape[:axis], *single.shape[axis + 1 :]
    before = origin.make

    def make(parameter: Tensor) -> Tensor:
        return (parameter if before is None else before(parameter)).reshape(shape)

    copies = single.expand(*shape[:axis], watch.rows, *shape[axis:])
    return watch.note(copies, [_map(watch, Origin(origin.name, make), axis)])


def _map(watch: Watch, origin: Origin, axis: int) -> LinearMap:
    """A parameter as weights on the constant one; the examples' copies lie along an axis."""
    parameter = watch.watched[origin.name].detach()
    blocks, width = _block(parameter.shape)
    kept: dict[str, Tensor] = {}

    def left(gradient: Tensor) -> Tensor:
        each = gradient.movedim(axis, 0)
        if origin.make is not None:
            pull = vjp(origin.make, parameter)[1]
            each = vmap(lambda one: pull(one)[0])(each)
        return each.reshape(len(each), blocks, 1, width)

    def right(gradient: Tensor) -> Tensor:  # the same for every output, so made once
        if "rows" not in kept:
            kept["rows"] = parameter.new_ones(watch.rows, blocks, 1, 1)
        return kept["rows"]

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
