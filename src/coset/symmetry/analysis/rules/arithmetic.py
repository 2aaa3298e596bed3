"""Several operands, entry by entry."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from coset.symmetry.analysis.digits import Plain, Value
from coset.symmetry.analysis.primitives import apply
from coset.symmetry.analysis.rules.maps import mapped, power
from coset.symmetry.analysis.rules.table import EPSILON, Shape, is_value, rule
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.values import Algebra


def broadcast(shapes: Sequence[Shape], shape: Shape) -> Signature:
    """Names by position from the right; an axis that is repeated carries no name."""
    names = [f"a{i}" for i in range(len(shape))]
    operands: list[Names] = []
    for own in shapes:
        offset = len(shape) - len(own)
        operands.append(
            tuple(
                () if size == 1 and shape[offset + i] != 1 else (names[offset + i],)
                for i, size in enumerate(own)
            )
        )
    sizes = dict(zip(names, shape, strict=True))
    return Signature(tuple(operands), tuple((name,) for name in names), sizes)


def added(algebra: Algebra, shape: Shape, *values: Value) -> Value:
    """A sum, difference or entry-wise choice."""
    signature = broadcast([algebra.shape(value) for value in values], shape)
    return apply(algebra, values, signature, "add")


def multiplied(
    algebra: Algebra, shape: Shape, *values: Value, powers: Sequence[int] | None = None
) -> Value:
    """A product, or with powers a quotient."""
    signature = broadcast([algebra.shape(value) for value in values], shape)
    return apply(algebra, values, signature, "multiply", powers=powers)


def _is_epsilon(algebra: Algebra, item: Any) -> bool:
    """Whether an added constant is one that the search for invariances leaves out."""
    if isinstance(item, Plain) and item.constant is not None and item.constant.numel():
        item = float(item.constant.abs().max())
    return algebra.field == "ideal" and isinstance(item, (int, float)) and abs(item) <= EPSILON


@rule("add", "sub", "subtract", "rsub")
def _add(algebra: Algebra, shape: Shape, self: Any, other: Any, alpha: Any = 1) -> Value:
    for one, two in ((self, other), (other, self)):
        if is_value(one) and algebra.shape(one) == shape and _is_epsilon(algebra, two):
            return one
    if not is_value(self) or not is_value(other):
        value, number = (self, other) if is_value(self) else (other, self)
        return value if number == 0 else mapped(algebra, value, "generic")
    return added(algebra, shape, self, other)


@rule("mul", "multiply")
def _mul(algebra: Algebra, shape: Shape, self: Any, other: Any) -> Value:
    if is_value(self) and is_value(other):
        return multiplied(algebra, shape, self, other)
    return mapped(algebra, self if is_value(self) else other, "linear")


@rule("div", "divide", "true_divide")
def _div(algebra: Algebra, shape: Shape, self: Any, other: Any, rounding_mode: Any = None) -> Value:
    if rounding_mode is not None:
        return _generic_pair(algebra, shape, self, other)
    if not is_value(other):
        return mapped(algebra, self, "linear")
    if not is_value(self):
        return power(algebra, other, -1)
    return multiplied(algebra, shape, self, power(algebra, other, -1))


@rule("maximum", "minimum", "fmax", "fmin")
def extreme(algebra: Algebra, shape: Shape, self: Value, other: Value) -> Value:
    """The larger or the smaller of two entries."""
    return mapped(algebra, added(algebra, shape, self, other), "positive")


def _generic_pair(algebra: Algebra, shape: Shape, self: Any, other: Any, **_: Any) -> Value:
    values = [mapped(algebra, item, "generic") for item in (self, other) if is_value(item)]
    return values[0] if len(values) == 1 else multiplied(algebra, shape, *values)


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(algebra: Algebra, shape: Shape, self: Any, other: Any) -> Value:
    if is_value(self) and not is_value(other) and other == 0:
        return mapped(algebra, self, "step")
    if is_value(self) and is_value(other):  # the sign of a difference
        return mapped(algebra, added(algebra, shape, self, other), "step")
    return _generic_pair(algebra, shape, self, other)


rule(
    "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "fmod", "atan2",
    "logaddexp", "xlogy",
)(_generic_pair)  # fmt: skip


@rule("hypot")
def _hypot(algebra: Algebra, shape: Shape, self: Value, other: Value) -> Value:
    squares = added(algebra, shape, power(algebra, self, 2), power(algebra, other, 2))
    return power(algebra, squares, Fraction(1, 2))


@rule("where")
def _where(algebra: Algebra, shape: Shape, condition: Value, self: Any, other: Any) -> Value:
    chosen = mapped(algebra, condition, "generic")
    if not is_value(self) and not is_value(other):
        return chosen
    return multiplied(algebra, shape, chosen, _choice(algebra, shape, self, other))


def _choice(algebra: Algebra, shape: Shape, one: Any, other: Any) -> Value:
    """One of two entries, either of which may be a number."""
    if is_value(one) and is_value(other):
        return added(algebra, shape, one, other)
    value, number = (one, other) if is_value(one) else (other, one)
    return value if number == 0 else mapped(algebra, value, "generic")


@rule("masked_fill")
def _masked_fill(algebra: Algebra, shape: Shape, self: Value, mask: Value, value: Any) -> Value:
    return _where(algebra, shape, mask, value, self)


@rule("addcmul")
def _addcmul(
    algebra: Algebra, shape: Shape, self: Value, tensor1: Value, tensor2: Value, value: Any = 1
) -> Value:
    return added(algebra, shape, self, multiplied(algebra, shape, tensor1, tensor2))


@rule("addcdiv")
def _addcdiv(
    algebra: Algebra, shape: Shape, self: Value, tensor1: Value, tensor2: Value, value: Any = 1
) -> Value:
    quotient = multiplied(algebra, shape, tensor1, power(algebra, tensor2, -1))
    return added(algebra, shape, self, quotient)


@rule("lerp")
def _lerp(algebra: Algebra, shape: Shape, self: Value, end: Value, weight: Any) -> Value:
    mixed = added(algebra, shape, self, end)
    if not is_value(weight):
        return mixed
    return added(algebra, shape, mixed, multiplied(algebra, shape, weight, mixed))


@rule("pow")
def _pow(algebra: Algebra, shape: Shape, self: Any, exponent: Any) -> Value:
    if is_value(self) and not is_value(exponent):
        return power(algebra, self, exponent)
    return _generic_pair(algebra, shape, self, exponent)
