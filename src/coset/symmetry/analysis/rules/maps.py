"""Maps of single entries, by what they do to magnitudes and signs."""

from fractions import Fraction
from typing import Any

from coset.symmetry.analysis.digits import Plain, Value
from coset.symmetry.analysis.rules.table import EPSILON, Shape, is_value, refused, rule
from coset.symmetry.analysis.transforms import (
    unscaled,
    with_power,
    without_forms,
)
from coset.symmetry.analysis.values import Algebra

# fmt: off
KINDS: dict[str, tuple[str, ...]] = {
    "linear": (
        "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "neg",
        "positive",
    ),
    "positive": ("relu", "leaky_relu"),
    "odd": (
        "tanh", "asinh", "atan", "sin", "erf", "arctan", "arcsinh", "sinh", "tan",
        "asin", "atanh", "softshrink", "hardshrink", "erfinv", "arcsin", "arctanh",
        "round", "trunc", "fix",
    ),
    "even": ("cos", "cosh"),
    "abs": ("abs",),
    "step": (),
    "sign": ("sign", "sgn"),
    "generic": (
        "sigmoid", "gelu", "silu", "exp", "exp2", "expm1", "softplus", "elu", "selu", "celu",
        "mish", "hardswish", "hardsigmoid", "log_sigmoid", "log", "log1p", "log2",
        "log10", "erfc", "relu6", "floor", "ceil", "isnan", "isinf", "isfinite", "logical_not",
        "bitwise_not", "acos", "acosh", "lgamma", "digamma", "sinc", "nan_to_num", "frac",
        "special_expit", "special_ndtr", "special_erf", "logit",
    ),
}
# fmt: on
"""Which scales of its argument a map lets through: all (linear), positive ones, signs (odd),
magnitudes (abs), or none.  Steps (comparisons with zero) forget magnitudes and refuse signs."""


def mapped(algebra: Algebra, x: Value, kind: str) -> Value:
    """The value after an entry-wise map of the given kind."""
    x = algebra.resolve(x)
    passes = {
        "linear": ("magnitude", "ideal", "sign"),
        "positive": ("magnitude", "ideal"),
        "odd": ("sign",),
        "abs": ("magnitude", "ideal"),
    }
    if algebra.field in passes.get(kind, ()):
        return x
    if algebra.field == "sign" and kind in ("abs", "even"):
        return without_forms(x)  # signs disappear, whatever they were
    if kind == "sign":
        return x if algebra.field == "sign" else without_forms(x)
    if kind == "step" and algebra.field != "sign":
        return without_forms(x)
    return unscaled(algebra, x, keeps_zero=kind in ("linear", "positive", "odd", "abs"))


def _enter_maps() -> None:
    for kind, names in KINDS.items():

        def act(algebra: Algebra, shape: Shape, *, _kind: str = kind, **given: Any) -> Value:
            return mapped(algebra, next(v for v in given.values() if is_value(v)), _kind)

        rule(*names)(act)


_enter_maps()


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(algebra: Algebra, shape: Shape, input: Value, p: Any, train: bool) -> Value:
    return refused(algebra, shape, input) if train else mapped(algebra, input, "linear")


@rule("threshold")
def _threshold(
    algebra: Algebra, shape: Shape, self: Value, threshold: float, value: float
) -> Value:
    return mapped(algebra, self, "positive" if threshold == value == 0 else "generic")


@rule("_to_copy", "to", "type_as")
def _cast(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    dtype = given.get("dtype")
    whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    return mapped(algebra, self, "generic" if whole else "linear")


@rule("clamp", "clip", "hardtanh")
def _clamp(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    min: Any = None,
    max: Any = None,
    min_val: Any = None,
    max_val: Any = None,
) -> Value:
    low, high = (
        _number(min if min is not None else min_val),
        _number(max if max is not None else max_val),
    )
    if is_value(low) or is_value(high):
        return refused(algebra, shape, *(v for v in (self, low, high) if is_value(v)))
    small = low is not None and high is None and abs(low) <= EPSILON
    if (low == 0 and high is None) or (high == 0 and low is None):
        return mapped(algebra, self, "positive")
    if algebra.field == "ideal" and small:
        return self
    odd = low is not None and high is not None and low == -high
    return mapped(algebra, self, "odd" if odd else "generic")


def _number(bound: Any) -> Any:
    """A known tensor of one entry as its number."""
    if isinstance(bound, Plain) and bound.constant is not None and bound.constant.numel() == 1:
        return bound.constant.item()
    return bound


@rule("clamp_min")
def _clamp_min(algebra: Algebra, shape: Shape, self: Value, min: Any) -> Value:
    return _clamp(algebra, shape, self, min=min)


@rule("clamp_max")
def _clamp_max(algebra: Algebra, shape: Shape, self: Value, max: Any) -> Value:
    return _clamp(algebra, shape, self, max=max)


def power(algebra: Algebra, x: Value, exponent: Fraction | float) -> Value:
    """The value raised to a fixed power."""
    given, exponent = float(exponent), Fraction(exponent).limit_denominator(64)
    x = algebra.resolve(x)
    if abs(float(exponent) - given) > 1e-12:  # then no whole powers of a scale match
        return unscaled(algebra, x)
    if algebra.field != "sign":
        return with_power(x, exponent)
    if exponent.denominator == 1:
        return x if exponent % 2 else without_forms(x)
    return unscaled(algebra, x)


@rule("sqrt")
def _sqrt(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return power(algebra, self, Fraction(1, 2))


@rule("rsqrt")
def _rsqrt(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return power(algebra, self, Fraction(-1, 2))


@rule("reciprocal")
def _reciprocal(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return power(algebra, self, -1)


@rule("square")
def _square(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return power(algebra, self, 2)
