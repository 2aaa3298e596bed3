"""Operations that depend on the order of an axis."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from coset.symmetry.analysis.digits import Cut, Plain, Value
from coset.symmetry.analysis.primitives import apply, weld
from coset.symmetry.analysis.rules.maps import mapped
from coset.symmetry.analysis.rules.reductions import as_dims, reduced
from coset.symmetry.analysis.rules.table import Shape, refused, rule, unknown
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.transforms import reshape
from coset.symmetry.analysis.values import Algebra

_ORDER = "an operation that depends on the order"


def windowed(algebra: Algebra, x: Value, shape: Shape, axes: Sequence[int], why: str) -> Value:
    """A linear map along some axes that depends on the order of their entries."""
    for axis in axes:
        x = weld(algebra, x, axis % len(shape), why)
    names: Names = tuple((f"a{i}",) for i in range(len(shape)))
    fresh = {i % len(shape) for i in axes}
    out: Names = tuple((f"b{i}",) if i in fresh else (f"a{i}",) for i in range(len(shape)))
    sizes = {f"a{i}": size for i, size in enumerate(algebra.shape(x))}
    sizes |= {f"b{i}": shape[i] for i in fresh}
    return apply(algebra, [x], Signature((names,), out, sizes), "multiply", fresh=why)


def _spatial(shape: Shape, rank: int) -> list[int]:
    return list(range(len(shape) - rank, len(shape)))


def _enter_windows() -> None:
    for name, rank in (
        ("upsample_nearest1d", 1), ("upsample_nearest2d", 2), ("upsample_nearest3d", 3),
        ("upsample_bilinear2d", 2), ("upsample_bicubic2d", 2), ("upsample_linear1d", 1),
        ("upsample_trilinear3d", 3), ("_upsample_nearest_exact2d", 2), ("reflection_pad2d", 2),
        ("replication_pad2d", 2), ("reflection_pad1d", 1), ("replication_pad1d", 1),
        ("avg_pool1d", 1), ("avg_pool2d", 2), ("avg_pool3d", 3), ("reflection_pad3d", 3),
        ("replication_pad3d", 3), ("_upsample_nearest_exact1d", 1),
        ("_upsample_nearest_exact3d", 3), ("_upsample_bilinear2d_aa", 2),
        ("_upsample_bicubic2d_aa", 2),
    ):  # fmt: skip

        def act(
            algebra: Algebra, shape: Shape, *, _rank: int = rank, _name: str = name, **given: Any
        ) -> Value:
            value = given.get("self", given.get("input"))
            assert isinstance(value, (Plain, Cut))
            return windowed(algebra, value, shape, _spatial(shape, _rank), f"a window: {_name}")

        rule(name)(act)


_enter_windows()


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
      "max_pool3d_with_indices", "max_pool1d_with_indices")  # fmt: skip
def _max_pool(
    algebra: Algebra, shape: Any, self: Value, kernel_size: Sequence[int], **_: Any
) -> Any:
    several = bool(shape) and isinstance(shape[0], tuple)
    own = shape[0] if several else shape
    value = windowed(algebra, self, own, _spatial(own, len(kernel_size)), "a pooling window")
    value = mapped(algebra, value, "positive")
    return (value, lambda: mapped(algebra, value, "step")) if several else value


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d")  # fmt: skip
def _adaptive_average(
    algebra: Algebra, shape: Shape, self: Value, output_size: Sequence[int]
) -> Value:
    axes = _spatial(shape, len(output_size))
    if all(shape[axis] == 1 for axis in axes):
        return reduced(algebra, self, axes, keepdim=True)
    return windowed(algebra, self, shape, axes, "a pooling window")


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(
    algebra: Algebra, shape: Any, self: Value, output_size: Sequence[int]
) -> tuple[Value, Callable[[], Value]]:
    axes = _spatial(shape[0], len(output_size))
    value = mapped(algebra, _adaptive_average(algebra, shape[0], self, output_size), "positive")
    return value, lambda: mapped(
        algebra, windowed(algebra, self, shape[0], axes, "the place of the largest entry"), "step"
    )


@rule("cumsum", "flip", "roll", "diff", "rot90")
def _ordered(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    dims = given.get("dim", given.get("dims"))
    axes = as_dims(dims) if dims not in (None, []) else list(range(len(shape)))
    if isinstance(dims, int):
        axes = [dims]
    assert axes is not None
    return windowed(algebra, self, shape, axes, _ORDER)


@rule("triu", "tril")
def _triangle(algebra: Algebra, shape: Shape, self: Value, **_: Any) -> Value:
    return windowed(algebra, self, shape, [-2, -1], _ORDER)


@rule("logcumsumexp", "cumprod")
def _ordered_generic(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    return _ordered(algebra, shape, mapped(algebra, self, "generic"), **given)


@rule("sort", "topk", "cummax", "cummin")
def _sorted(algebra: Algebra, shape: Any, self: Value, dim: int = -1, **_: Any) -> Any:
    if not (shape and isinstance(shape[0], tuple)):
        return unknown(algebra, shape, self=self)
    rank = len(algebra.shape(self))
    if len(shape[0]) != rank:
        return unknown(algebra, shape, self=self)
    value = mapped(algebra, windowed(algebra, self, shape[0], [dim], "a sort"), "positive")
    return value, lambda: mapped(algebra, value, "step")


@rule("unfold")
def _unfold(
    algebra: Algebra, shape: Shape, self: Value, dimension: int, size: int, step: int
) -> Value:
    rank = len(shape) - 1
    x = weld(algebra, self, dimension % rank, "a sliding window")
    names: Names = tuple((f"a{i}",) for i in range(rank))
    out: Names = (*(("w",) if i == dimension % rank else name for i, name in enumerate(names)),)
    sizes = {f"a{i}": n for i, n in enumerate(algebra.shape(x))}
    sizes |= {"w": shape[dimension % rank], "k": size}
    signature = Signature((names,), (*out, ("k",)), sizes)
    return apply(algebra, [x], signature, "multiply", fresh="a sliding window")


@rule("im2col")
def _im2col(
    algebra: Algebra, shape: Shape, self: Value, kernel_size: Sequence[int], **_: Any
) -> Value:
    if len(shape) != 3:
        return refused(algebra, shape, self)
    for axis in (2, 3):
        self = weld(algebra, self, axis, "a sliding window")
    count, channels, height, width = algebra.shape(self)
    sizes = {"n": count, "c": channels, "h": height, "w": width}
    sizes |= {"k": prod(kernel_size), "l": shape[2]}
    names: Names = (("n",), ("c",), ("h",), ("w",))
    signature = Signature((names,), (("n",), ("c", "k"), ("l",)), sizes)
    return apply(algebra, [self], signature, "multiply", fresh="a sliding window")


@rule("col2im")
def _col2im(
    algebra: Algebra, shape: Shape, self: Value, kernel_size: Sequence[int], **_: Any
) -> Value:
    if len(shape) != 4:
        return refused(algebra, shape, self)
    count, length = shape[0], algebra.shape(self)[2]
    x = reshape(algebra, self, [count, shape[1], prod(kernel_size), length])
    for axis in (2, 3):
        x = weld(algebra, x, axis, "windows that overlap")
    sizes = {"n": count, "c": shape[1], "k": prod(kernel_size), "l": length}
    sizes |= {"h": shape[2], "w": shape[3]}
    names: Names = (("n",), ("c",), ("k",), ("l",))
    signature = Signature((names,), (("n",), ("c",), ("h",), ("w",)), sizes)
    return apply(algebra, [x], signature, "multiply", fresh="windows that overlap")
