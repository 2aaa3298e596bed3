"""Symmetric functions over axes."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from coset.symmetry.analysis.digits import Value
from coset.symmetry.analysis.primitives import weld
from coset.symmetry.analysis.rules.arithmetic import added, extreme
from coset.symmetry.analysis.rules.contractions import contract, letters
from coset.symmetry.analysis.rules.maps import mapped, power
from coset.symmetry.analysis.rules.table import Shape, rule
from coset.symmetry.analysis.transforms import reshape
from coset.symmetry.analysis.values import Algebra


def reduced(algebra: Algebra, x: Value, dims: Sequence[int] | None, keepdim: bool = False) -> Value:
    """A symmetric function (a sum, say) over some axes."""
    shape = algebra.shape(x)
    dropped = {d % len(shape) for d in dims} if dims else set(range(len(shape)))
    axes = letters(len(shape))
    out = "".join(c for i, c in enumerate(axes) if i not in dropped)
    result = contract(algebra, [x], [axes], out)
    if keepdim:
        sizes = [1 if i in dropped else size for i, size in enumerate(shape)]
        result = reshape(algebra, result, sizes)
    return result


def as_dims(dim: Any) -> Sequence[int] | None:
    """Axes as a list; none given means all."""
    return [dim] if isinstance(dim, int) else (list(dim) if dim else None)


@rule("sum", "mean")
def _sum(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    return reduced(algebra, self, as_dims(dim), keepdim)


@rule("amax", "amin")
def largest(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False
) -> Value:
    """The largest (or smallest) entry over some axes."""
    return mapped(algebra, reduced(algebra, self, as_dims(dim), keepdim), "positive")


@rule("max", "min")
def _max(algebra: Algebra, shape: Any, self: Value, dim: Any = None, **given: Any) -> Any:
    if "other" in given:
        return extreme(algebra, shape, self, given["other"])
    keepdim = bool(given.get("keepdim", False))
    value = largest(algebra, (), self, dim, keepdim)
    if dim is None:
        return value
    return value, lambda: _argmax(algebra, (), self, dim, keepdim)


@rule("kthvalue", "median", "mode")
def _order_statistic(
    algebra: Algebra, shape: Any, self: Value, dim: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    value = largest(algebra, (), self, dim, keepdim)
    if not (shape and isinstance(shape[0], tuple)):
        return value
    return value, lambda: _argmax(algebra, (), self, dim, keepdim)


@rule("prod", "logsumexp", "any", "all", "count_nonzero")
def generic_reduction(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    """A symmetric function over some axes that keeps no scale."""
    return reduced(algebra, mapped(algebra, self, "generic"), as_dims(dim), keepdim)


@rule("argmax", "argmin")
def _argmax(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False
) -> Value:
    axes = range(len(algebra.shape(self))) if dim is None else [dim % len(algebra.shape(self))]
    for axis in axes:
        self = weld(algebra, self, axis, "the place of the largest entry")
    return mapped(algebra, reduced(algebra, self, list(axes), keepdim), "step")


def _variance(
    algebra: Algebra, self: Value, dim: Any, keepdim: bool, *, root: bool
) -> tuple[Value, Value]:
    mean = reduced(algebra, self, as_dims(dim), keepdim=True)
    centred = added(algebra, algebra.shape(self), self, mean)
    spread = reduced(algebra, power(algebra, centred, 2), as_dims(dim), keepdim)
    if not keepdim:
        mean = reduced(algebra, self, as_dims(dim), keepdim=False)
    return (power(algebra, spread, Fraction(1, 2)) if root else spread), mean


def _enter_variances() -> None:
    for name in ("var", "std", "var_mean", "std_mean"):

        def act(
            algebra: Algebra,
            shape: Any,
            self: Value,
            dim: Any = None,
            *,
            _root: bool = name.startswith("std"),
            _both: bool = name.endswith("mean"),
            **given: Any,
        ) -> Any:
            pair = _variance(algebra, self, dim, bool(given.get("keepdim")), root=_root)
            return pair if _both else pair[0]

        rule(name)(act)


_enter_variances()


@rule("linalg_vector_norm", "norm")
def vector_norm(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    p: Any = None,
    **_: Any,
) -> Value:
    """The norm over some axes."""
    order = ord if p is None else p
    size = mapped(algebra, self, "abs")
    if order in (float("inf"), float("-inf")):
        return largest(algebra, shape, size, dim, keepdim)
    if not order:
        return generic_reduction(algebra, shape, size, dim, keepdim)
    total = reduced(algebra, power(algebra, size, order), as_dims(dim), keepdim)
    return power(algebra, total, Fraction(1) / Fraction(order).limit_denominator(64))


@rule("cdist")
def _distances(
    algebra: Algebra, shape: Shape, x1: Value, x2: Value, p: float = 2.0, **_: Any
) -> Value:
    """The norms of all differences of rows."""
    *ones, rows, length = algebra.shape(x1)
    *others, columns, _length = algebra.shape(x2)
    left = reshape(algebra, x1, [*ones, rows, 1, length])
    right = reshape(algebra, x2, [*others, 1, columns, length])
    return vector_norm(algebra, shape, added(algebra, (*shape, length), left, right), p, -1)
