"""Regrouping, repeating, cutting and joining axes."""

from collections.abc import Callable, Sequence
from typing import Any

from coset.symmetry.analysis.digits import Value, join
from coset.symmetry.analysis.primitives import apply, cut
from coset.symmetry.analysis.rules.arithmetic import broadcast
from coset.symmetry.analysis.rules.reductions import (
    as_dims,
)
from coset.symmetry.analysis.rules.table import Shape, is_value, refused, rule
from coset.symmetry.analysis.rules.windows import windowed
from coset.symmetry.analysis.signatures import Names, Signature, empty
from coset.symmetry.analysis.transforms import (
    constant,
    permute,
    reshape,
)
from coset.symmetry.analysis.values import Algebra


@rule("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
      "_reshape_alias", "view_copy", "squeeze_copy", "unsqueeze_copy")  # fmt: skip
def _view(algebra: Algebra, shape: Shape, /, self: Value, **given: Any) -> Value:
    if "dtype" in given:  # the same bits read as other numbers
        return refused(algebra, shape, self)
    return reshape(algebra, self, shape)


@rule("permute", "permute_copy")
def _permute(algebra: Algebra, shape: Shape, self: Value, dims: Sequence[int]) -> Value:
    return permute(self, [d % len(dims) for d in dims])


@rule("transpose", "transpose_copy")
def _transpose(algebra: Algebra, shape: Shape, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(len(shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(self, order)


@rule("swapaxes")
def _swapaxes(algebra: Algebra, shape: Shape, self: Value, axis0: int, axis1: int) -> Value:
    return _transpose(algebra, shape, self, axis0, axis1)


@rule("t", "numpy_T", "t_copy")
def _t(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return permute(self, list(range(len(shape)))[::-1])


@rule("movedim")
def _movedim(algebra: Algebra, shape: Shape, self: Value, source: Any, destination: Any) -> Value:
    rank = len(shape)
    sources = [d % rank for d in as_dims(source) or ()]
    targets = [d % rank for d in as_dims(destination) or ()]
    order = [-1] * rank
    for a, b in zip(sources, targets, strict=True):
        order[b] = a
    others = iter(i for i in range(rank) if i not in sources)
    return permute(self, [next(others) if i < 0 else i for i in order])


@rule("expand", "expand_as", "broadcast_to", "expand_copy")
def expanded(algebra: Algebra, shape: Shape, self: Value, **_: Any) -> Value:
    """The value repeated along axes of size one."""
    return apply(algebra, [self], broadcast([algebra.shape(self)], shape), "multiply")


@rule("repeat", "tile")
def _repeat(algebra: Algebra, shape: Shape, self: Value, **_: Any) -> Value:
    own = algebra.shape(self)
    own = (1,) * (len(shape) - len(own)) + own
    self = reshape(algebra, self, own)
    names: Names = tuple((f"a{i}",) for i in range(len(own)))
    out: Names = tuple((f"r{i}", f"a{i}") for i in range(len(own)))
    sizes = {f"a{i}": size for i, size in enumerate(own)}
    sizes |= {f"r{i}": shape[i] // size if size else 1 for i, size in enumerate(own)}
    return apply(algebra, [self], Signature((names,), out, sizes), "multiply")


@rule("repeat_interleave")
def repeat_each(
    algebra: Algebra, shape: Shape, self: Value, repeats: Any, dim: Any = None, **_: Any
) -> Value:
    """Every entry of an axis several times in a row."""
    if is_value(repeats) or dim is None:
        return refused(algebra, shape, self)
    own = algebra.shape(self)
    axis = dim % len(own)
    names: Names = tuple((f"a{i}",) for i in range(len(own)))
    out: Names = tuple((f"a{i}", "r") if i == axis else (f"a{i}",) for i in range(len(own)))
    sizes = {f"a{i}": size for i, size in enumerate(own)} | {"r": int(repeats)}
    return apply(algebra, [self], Signature((names,), out, sizes), "multiply")


@rule("cat", "concat", "concatenate")
def _cat(algebra: Algebra, shape: Shape, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % len(shape)
    kept = [value for value in tensors if len(algebra.shape(value)) == len(shape)]
    return join(axis, 1, [algebra.shape(value)[axis] for value in kept], kept)


@rule("stack")
def _stack(algebra: Algebra, shape: Shape, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % len(shape)
    sizes = [*shape[:axis], 1, *shape[axis + 1 :]]
    parts = [reshape(algebra, value, sizes) for value in tensors]
    return join(axis, 1, [1] * len(parts), parts)


def pieces(algebra: Algebra, x: Value, dim: int, sizes: Sequence[int]) -> list[Value]:
    """The pieces along an axis, empty ones left out."""
    rank = len(algebra.shape(x))
    return cut(algebra, x, dim % rank, 1, [size for size in sizes if size])


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk",
      "split_copy", "split_with_sizes_copy")  # fmt: skip
def _split(algebra: Algebra, shape: Any, self: Value, dim: int = 0, **_: Any) -> tuple[Value, ...]:
    axis = dim % len(algebra.shape(self))
    parts = iter(pieces(algebra, self, axis, [part[axis] for part in shape]))
    return tuple(next(parts) if part[axis] else empty(algebra, part) for part in shape)


@rule("unbind", "unbind_copy")
def _unbind(algebra: Algebra, shape: Any, self: Value, dim: int = 0) -> tuple[Value, ...]:
    parts = pieces(algebra, self, dim, [1] * len(shape))
    return tuple(reshape(algebra, part, own) for part, own in zip(parts, shape, strict=True))


@rule("select", "select_copy")
def _select(algebra: Algebra, shape: Shape, self: Value, dim: int, index: int) -> Value:
    length = algebra.shape(self)[dim]
    part, _ = window(algebra, self, dim, index % length, index % length + 1)
    return reshape(algebra, part, shape)


def window(
    algebra: Algebra, x: Value, dim: int, start: int, stop: int
) -> tuple[Value, Callable[[Value], Value]]:
    """A range of an axis, and how to put something else in its place."""
    axis = dim % len(algebra.shape(x))
    length = algebra.shape(x)[axis]
    sizes = [start, stop - start, length - stop]
    parts = iter(pieces(algebra, x, axis, sizes))
    found = [next(parts) if size else None for size in sizes]
    middle = found[1]
    assert middle is not None

    def put(value: Value) -> Value:
        filled = [found[0], value, found[2]]
        kept = [(size, part) for size, part in zip(sizes, filled, strict=True) if part is not None]
        return join(axis, 1, [size for size, _ in kept], [part for _, part in kept])

    return middle, put


def _range(length: int, start: Any, end: Any) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(length)
    return first, max(first, last)


@rule("slice", "slice_copy")
def _slice(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    own = algebra.shape(self)
    axis = dim % len(own)
    first, last = _range(own[axis], start, end)
    if 0 in shape:
        return empty(algebra, shape)
    if step == 1:
        return window(algebra, self, axis, first, last)[0]
    count, column = shape[axis], 0
    if first + count * step > own[axis]:
        if own[axis] % step:
            return windowed(algebra, self, shape, [axis], "a strided slice that does not divide")
        first, column = first - first % step, first % step
    body = window(algebra, self, axis, first, first + count * step)[0]
    grid = reshape(algebra, body, [*own[:axis], count, step, *own[axis + 1 :]])
    chosen = window(algebra, grid, axis + 1, column, column + 1)[0]
    return reshape(algebra, chosen, shape)


@rule("narrow", "narrow_copy")
def _narrow(
    algebra: Algebra, shape: Shape, self: Value, dim: int, start: int, length: int
) -> Value:
    return window(algebra, self, dim, start, start + length)[0] if length else empty(algebra, shape)


@rule("slice_scatter")
def _slice_scatter(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    if step != 1:
        return refused(algebra, shape, self, src)
    first, last = _range(shape[dim], start, end)
    return window(algebra, self, dim, first, last)[1](src)


@rule("select_scatter")
def _select_scatter(
    algebra: Algebra, shape: Shape, self: Value, src: Value, dim: int, index: int
) -> Value:
    axis = dim % len(shape)
    place = index % shape[axis]
    part = reshape(algebra, src, [*shape[:axis], 1, *shape[axis + 1 :]])
    return window(algebra, self, axis, place, place + 1)[1](part)


@rule("copy")
def _copy(algebra: Algebra, shape: Shape, self: Value, src: Value, **_: Any) -> Value:
    return expanded(algebra, shape, src)


@rule("constant_pad_nd", "pad")
def _pad(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    pad: Sequence[int],
    value: Any = 0,
    mode: str = "constant",
) -> Value:
    own = list(algebra.shape(self))
    if mode != "constant":
        axes = [len(own) - 1 - i for i in range(len(pad) // 2) if pad[2 * i] or pad[2 * i + 1]]
        return windowed(algebra, self, shape, axes, f"{mode} padding")
    for i in range(len(pad) // 2):
        axis, before, after = len(own) - 1 - i, pad[2 * i], pad[2 * i + 1]
        if before < 0 or after < 0:
            stop = own[axis] + min(after, 0)
            self = window(algebra, self, axis, max(-before, 0), stop)[0]
            own[axis] = stop - max(-before, 0)
        sizes = [max(before, 0), own[axis], max(after, 0)]
        ends = [_filled(algebra, [*own[:axis], n, *own[axis + 1 :]], value) for n in sizes]
        kept = [(n, part) for n, part in zip(sizes, [ends[0], self, ends[2]], strict=True) if n]
        self = join(axis, 1, [n for n, _ in kept], [part for _, part in kept])
        own[axis] = sum(sizes)
    return self


def _filled(algebra: Algebra, shape: Sequence[int], value: Any) -> Value:
    import torch

    return constant(algebra, torch.full(tuple(shape), float(value or 0)))
