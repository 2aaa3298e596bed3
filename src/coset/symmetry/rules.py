"""How each operation treats axes and scales: one short rule an operation.

Rules are written in the primitives of :mod:`coset.symmetry.primitives`; norms, softmax, attention
and the like are compositions, so that whatever holds for them follows instead of being claimed.  A
rule is called with the algebra, the result's shape and the operation's arguments by schema name.
An operation without a rule refuses every axis it touches (:func:`unknown`).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from coset.symmetry.primitives import (
    Names,
    Signature,
    apply,
    constant,
    cut,
    freeze,
    join,
    permute,
    reshape,
    unscaled,
    weld,
    with_power,
    without_forms,
)
from coset.symmetry.values import Algebra, Cut, Plain, Value

Shape = tuple[int, ...]
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}

EPSILON = 1e-3
"""Constants up to this size count as the epsilon of a norm when invariances are looked for."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a function into the table under the schema names of operations."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def is_value(item: Any) -> bool:
    """Whether an argument is a tensor."""
    return isinstance(item, (Plain, Cut))


# -- maps of single entries ----------------------------------------------------------------------

# Which scales of its argument a map lets through, over magnitudes and over signs.
LINEAR = """alias clone contiguous detach lift_fresh_copy lift_fresh neg positive""".split()
POSITIVE = """relu leaky_relu""".split()
ODD = """tanh asinh atan sin erf softsign arctan arcsinh sinh tan asin atanh tanhshrink softshrink
    hardshrink erfinv arcsin arctanh round trunc fix""".split()
EVEN = """cos cosh""".split()
GENERIC = """sigmoid gelu silu exp exp2 expm1 softplus elu selu celu mish hardswish hardsigmoid
    log_sigmoid logsigmoid log log1p log2 log10 erfc relu6 floor ceil isnan isinf isfinite
    logical_not bitwise_not acos acosh lgamma digamma sinc nan_to_num frac special_expit
    special_ndtr special_erf logit""".split()


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
    return unscaled(algebra, x, keeps_zero=kind in ("linear", "positive", "odd", "abs"))


def _enter_maps() -> None:
    kinds = (
        ("linear", LINEAR), ("positive", POSITIVE), ("odd", ODD), ("even", EVEN),
        ("generic", GENERIC), ("abs", ["abs"]), ("sign", ["sign", "sgn"]),
    )  # fmt: skip
    for kind, names in kinds:

        def act(algebra: Algebra, shape: Shape, *, _kind: str = kind, **given: Any) -> Value:
            return mapped(algebra, next(v for v in given.values() if is_value(v)), _kind)

        rule(*names)(act)


_enter_maps()


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(algebra: Algebra, shape: Shape, input: Value, p: Any, train: bool) -> Value:
    return unknown(algebra, shape, input=input) if train else mapped(algebra, input, "linear")


@rule("threshold")
def _threshold(
    algebra: Algebra, shape: Shape, self: Value, threshold: float, value: float
) -> Value:
    return mapped(algebra, self, "positive" if threshold == value == 0 else "generic")


@rule("_to_copy", "to", "type_as")
def _cast(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    dtype = given.get("dtype")
    whole = dtype is not None and not dtype.is_floating_point
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
    low, high = (min if min is not None else min_val), (max if max is not None else max_val)
    if is_value(low) or is_value(high):
        return unknown(algebra, shape, self=self, min=low, max=high)
    small = low is not None and high is None and low <= EPSILON
    if (low == 0 and high is None) or (high == 0 and low is None):
        return mapped(algebra, self, "positive")
    if algebra.field == "ideal" and small:
        return self
    odd = low is not None and high is not None and low == -high
    return mapped(algebra, self, "odd" if odd else "generic")


@rule("clamp_min")
def _clamp_min(algebra: Algebra, shape: Shape, self: Value, min: Any) -> Value:
    return _clamp(algebra, shape, self, min=min)


@rule("clamp_max")
def _clamp_max(algebra: Algebra, shape: Shape, self: Value, max: Any) -> Value:
    return _clamp(algebra, shape, self, max=max)


def power(algebra: Algebra, x: Value, exponent: Fraction | float) -> Value:
    """The value raised to a fixed power."""
    exponent = Fraction(exponent).limit_denominator(64)
    x = algebra.resolve(x)
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


@rule("pow")
def _pow(algebra: Algebra, shape: Shape, self: Any, exponent: Any) -> Value:
    if is_value(self) and not is_value(exponent):
        return power(algebra, self, exponent)
    return _generic_pair(algebra, shape, self, exponent)


# -- several operands, entry by entry --------------------------------------------------------------


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
def _extreme(algebra: Algebra, shape: Shape, self: Value, other: Value) -> Value:
    return mapped(algebra, added(algebra, shape, self, other), "positive")


def _generic_pair(algebra: Algebra, shape: Shape, self: Any, other: Any, **_: Any) -> Value:
    values = [mapped(algebra, item, "generic") for item in (self, other) if is_value(item)]
    return values[0] if len(values) == 1 else multiplied(algebra, shape, *values)


rule(
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "fmod", "atan2", "hypot",
    "logaddexp", "xlogy",
)(_generic_pair)  # fmt: skip


@rule("where")
def _where(algebra: Algebra, shape: Shape, condition: Value, self: Any, other: Any) -> Value:
    chosen = _choice(algebra, shape, self, other)
    return multiplied(algebra, shape, mapped(algebra, condition, "generic"), chosen)


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


# -- contractions ----------------------------------------------------------------------------------


def contract(algebra: Algebra, values: Sequence[Value], operands: Sequence[str], out: str) -> Value:
    """A sum of products in index notation, one letter an axis."""
    sizes = {
        letter: size
        for value, letters in zip(values, operands, strict=True)
        for letter, size in zip(letters, algebra.shape(value), strict=True)
    }
    names = tuple(tuple((letter,) for letter in letters) for letters in operands)
    signature = Signature(names, tuple((letter,) for letter in out), sizes)
    return apply(algebra, values, signature, "multiply")


@rule("linear")
def _linear(
    algebra: Algebra, shape: Shape, input: Value, weight: Value, bias: Value | None = None
) -> Value:
    lead = _letters(len(algebra.shape(input)) - 1)
    out = "Z" if len(algebra.shape(weight)) == 2 else ""
    result = contract(algebra, [input, weight], [f"{lead}Y", f"{out}Y"], lead + out)
    return result if bias is None else added(algebra, shape, result, bias)


@rule("matmul")
def _matmul(algebra: Algebra, shape: Shape, self: Value, other: Value) -> Value:
    left, right = algebra.shape(self), algebra.shape(other)
    rows, columns = ("R" if len(left) > 1 else ""), ("C" if len(right) > 1 else "")
    lead = _letters(max(len(left), len(right), 2) - 2)
    batch = shape[: len(lead)]
    first, self = _drop_ones(algebra, self, lead, batch, f"{rows}K")
    second, other = _drop_ones(algebra, other, lead, batch, f"K{columns}")
    return contract(algebra, [self, other], [first, second], lead + rows + columns)


def _drop_ones(
    algebra: Algebra, value: Value, lead: str, batch: Shape, own: str
) -> tuple[str, Value]:
    """Removes repeated batch axes of size one, so that every letter has one size."""
    shape = algebra.shape(value)
    extra = len(shape) - len(own)
    letters = lead[len(lead) - extra :]
    full = batch[len(batch) - extra :]
    kept = [i for i in range(extra) if shape[i] == full[i]]
    if len(kept) < extra:
        value = reshape(algebra, value, [*(shape[i] for i in kept), *shape[extra:]])
    return "".join(letters[i] for i in kept) + own, value


@rule("mm", "bmm", "mv", "dot", "vdot")
def _product(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    return _matmul(algebra, shape, self, next(iter(given.values())))


@rule("addmm", "baddbmm", "addmv", "addbmm")
def _addmm(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    first, second = [value for value in given.values() if is_value(value)]
    product = _matmul(algebra, shape, first, second)
    return product if given.get("beta") == 0 else added(algebra, shape, product, self)


@rule("outer", "ger")
def _outer(algebra: Algebra, shape: Shape, self: Value, vec2: Value) -> Value:
    return contract(algebra, [self, vec2], ["a", "b"], "ab")


@rule("einsum")
def _einsum(
    algebra: Algebra, shape: Shape, equation: str, tensors: Sequence[Value], **_: Any
) -> Value:
    left, _arrow, out = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if not _arrow:
        counts = {c: left.count(c) for c in left if c.isalpha()}
        out = ("..." if "..." in left else "") + "".join(
            sorted(c for c in counts if counts[c] == 1)
        )
    widths = [
        len(algebra.shape(tensor)) - len(letters.replace("...", ""))
        for tensor, letters in zip(tensors, operands, strict=True)
    ]
    dots = _letters(max(widths), start="Ā")
    filled = [
        letters.replace("...", dots[len(dots) - width :])
        for letters, width in zip(operands, widths, strict=True)
    ]
    return contract(algebra, tensors, filled, out.replace("...", dots))


@rule("bilinear")
def _bilinear(
    algebra: Algebra,
    shape: Shape,
    input1: Value,
    input2: Value,
    weight: Value,
    bias: Value | None = None,
) -> Value:
    lead = _letters(len(shape) - 1)
    operands = [f"{lead}I", f"{lead}J", "OIJ"]
    result = contract(algebra, [input1, input2, weight], operands, f"{lead}O")
    return result if bias is None else added(algebra, shape, result, bias)


def _letters(count: int, start: str = "a") -> str:
    return "".join(chr(ord(start) + i) for i in range(count))


# -- reductions ------------------------------------------------------------------------------------


def reduced(algebra: Algebra, x: Value, dims: Sequence[int] | None, keepdim: bool = False) -> Value:
    """A symmetric function (a sum, say) over some axes."""
    shape = algebra.shape(x)
    dropped = {d % len(shape) for d in dims} if dims else set(range(len(shape)))
    letters = _letters(len(shape))
    out = "".join(c for i, c in enumerate(letters) if i not in dropped)
    result = contract(algebra, [x], [letters], out)
    if keepdim:
        sizes = [1 if i in dropped else size for i, size in enumerate(shape)]
        result = reshape(algebra, result, sizes)
    return result


def _dims(dim: Any) -> Sequence[int] | None:
    return [dim] if isinstance(dim, int) else (list(dim) if dim else None)


@rule("sum", "mean")
def _sum(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    return reduced(algebra, self, _dims(dim), keepdim)


@rule("amax", "amin")
def _amax(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False
) -> Value:
    return mapped(algebra, reduced(algebra, self, _dims(dim), keepdim), "positive")


@rule("max", "min")
def _max(algebra: Algebra, shape: Any, self: Value, dim: Any = None, **given: Any) -> Any:
    if "other" in given:
        return _extreme(algebra, shape, self, given["other"])
    value = _amax(algebra, (), self, dim, bool(given.get("keepdim", False)))
    return value if dim is None else (value, mapped(algebra, value, "generic"))


@rule("prod", "logsumexp", "any", "all", "count_nonzero")
def _generic_reduce(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    return reduced(algebra, mapped(algebra, self, "generic"), _dims(dim), keepdim)


@rule("argmax", "argmin")
def _argmax(
    algebra: Algebra, shape: Shape, self: Value, dim: Any = None, keepdim: bool = False
) -> Value:
    axes = range(len(algebra.shape(self))) if dim is None else [dim % len(algebra.shape(self))]
    for axis in axes:
        self = weld(algebra, self, axis, "the place of the largest entry")
    return reduced(algebra, mapped(algebra, self, "generic"), list(axes), keepdim)


def _variance(
    algebra: Algebra, self: Value, dim: Any, keepdim: bool, *, root: bool
) -> tuple[Value, Value]:
    mean = reduced(algebra, self, _dims(dim), keepdim=True)
    centred = added(algebra, algebra.shape(self), self, mean)
    spread = reduced(algebra, power(algebra, centred, 2), _dims(dim), keepdim)
    if not keepdim:
        mean = reduced(algebra, self, _dims(dim), keepdim=False)
    return (power(algebra, spread, Fraction(1, 2)) if root else spread), mean


def _enter_variances() -> None:
    for name, root, with_mean in (
        ("var", False, False), ("std", True, False), ("var_mean", False, True), ("std_mean", True, True),
    ):  # fmt: skip

        def act(
            algebra: Algebra,
            shape: Any,
            self: Value,
            dim: Any = None,
            *,
            _root: bool = root,
            _both: bool = with_mean,
            **given: Any,
        ) -> Any:
            pair = _variance(algebra, self, dim, bool(given.get("keepdim")), root=_root)
            return pair if _both else pair[0]

        rule(name)(act)


_enter_variances()


@rule("linalg_vector_norm", "norm")
def _vector_norm(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    p: Any = None,
    **_: Any,
) -> Value:
    order = ord if p is None else p
    size = mapped(algebra, self, "abs")
    if order in (float("inf"), float("-inf")):
        return _amax(algebra, shape, size, dim, keepdim)
    if not order:
        return _generic_reduce(algebra, shape, size, dim, keepdim)
    total = reduced(algebra, power(algebra, size, order), _dims(dim), keepdim)
    return power(algebra, total, Fraction(1) / Fraction(order).limit_denominator(64))


# -- axes ------------------------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
      "_reshape_alias", "view_copy", "squeeze_copy", "unsqueeze_copy")  # fmt: skip
def _view(algebra: Algebra, shape: Shape, self: Value, **_: Any) -> Value:
    return reshape(algebra, self, shape)


@rule("permute", "permute_copy")
def _permute(algebra: Algebra, shape: Shape, self: Value, dims: Sequence[int]) -> Value:
    return permute(self, [d % len(dims) for d in dims])


@rule("transpose", "swapaxes", "transpose_copy")
def _transpose(algebra: Algebra, shape: Shape, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(len(shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(self, order)


@rule("t", "numpy_T", "t_copy")
def _t(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return permute(self, list(range(len(shape)))[::-1])


@rule("movedim")
def _movedim(algebra: Algebra, shape: Shape, self: Value, source: Any, destination: Any) -> Value:
    rank = len(shape)
    sources = [d % rank for d in _dims(source) or ()]
    targets = [d % rank for d in _dims(destination) or ()]
    order = [-1] * rank
    for a, b in zip(sources, targets, strict=True):
        order[b] = a
    others = iter(i for i in range(rank) if i not in sources)
    return permute(self, [next(others) if i < 0 else i for i in order])


@rule("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(algebra: Algebra, shape: Shape, self: Value, **_: Any) -> Value:
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
def _repeat_interleave(
    algebra: Algebra, shape: Shape, self: Value, repeats: Any, dim: Any = None, **_: Any
) -> Value:
    if is_value(repeats) or dim is None:
        return unknown(algebra, shape, self=self)
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
    return tuple(pieces(algebra, self, axis, [part[axis] for part in shape]))


@rule("unbind", "unbind_copy")
def _unbind(algebra: Algebra, shape: Any, self: Value, dim: int = 0) -> tuple[Value, ...]:
    parts = pieces(algebra, self, dim, [1] * len(shape))
    return tuple(reshape(algebra, part, own) for part, own in zip(parts, shape, strict=True))


@rule("select", "select_copy")
def _select(algebra: Algebra, shape: Shape, self: Value, dim: int, index: int) -> Value:
    length = algebra.shape(self)[dim]
    part, _ = _window(algebra, self, dim, index % length, index % length + 1)
    return reshape(algebra, part, shape)


def _window(
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
    if step == 1:
        return _window(algebra, self, axis, first, last)[0]
    count, column = shape[axis], 0
    if first + count * step > own[axis]:
        if own[axis] % step:
            return _windowed(algebra, self, shape, [axis], "a strided slice that does not divide")
        first, column = first - first % step, first % step
    body = _window(algebra, self, axis, first, first + count * step)[0]
    grid = reshape(algebra, body, [*own[:axis], count, step, *own[axis + 1 :]])
    chosen = _window(algebra, grid, axis + 1, column, column + 1)[0]
    return reshape(algebra, chosen, shape)


@rule("narrow", "narrow_copy")
def _narrow(
    algebra: Algebra, shape: Shape, self: Value, dim: int, start: int, length: int
) -> Value:
    return _window(algebra, self, dim, start, start + length)[0]


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
        return unknown(algebra, shape, self=self, src=src)
    first, last = _range(shape[dim], start, end)
    return _window(algebra, self, dim, first, last)[1](src)


@rule("select_scatter")
def _select_scatter(
    algebra: Algebra, shape: Shape, self: Value, src: Value, dim: int, index: int
) -> Value:
    axis = dim % len(shape)
    place = index % shape[axis]
    part = reshape(algebra, src, [*shape[:axis], 1, *shape[axis + 1 :]])
    return _window(algebra, self, axis, place, place + 1)[1](part)


@rule("copy")
def _copy(algebra: Algebra, shape: Shape, self: Value, src: Value, **_: Any) -> Value:
    return _expand(algebra, shape, src)


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
        return _windowed(algebra, self, shape, axes, f"{mode} padding")
    for i in range(len(pad) // 2):
        axis, before, after = len(own) - 1 - i, pad[2 * i], pad[2 * i + 1]
        if before < 0 or after < 0:
            stop = own[axis] + min(after, 0)
            self = _window(algebra, self, axis, max(-before, 0), stop)[0]
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


# -- order and neighbourhood -----------------------------------------------------------------------


def _windowed(algebra: Algebra, x: Value, shape: Shape, axes: Sequence[int], why: str) -> Value:
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
        ("avg_pool1d", 1), ("avg_pool2d", 2), ("avg_pool3d", 3),
    ):  # fmt: skip

        def act(
            algebra: Algebra, shape: Shape, *, _rank: int = rank, _name: str = name, **given: Any
        ) -> Value:
            value = given.get("self", given.get("input"))
            assert isinstance(value, (Plain, Cut))
            return _windowed(algebra, value, shape, _spatial(shape, _rank), f"a window: {_name}")

        rule(name)(act)


_enter_windows()


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
      "max_pool3d_with_indices", "max_pool1d_with_indices")  # fmt: skip
def _max_pool(
    algebra: Algebra, shape: Any, self: Value, kernel_size: Sequence[int], **_: Any
) -> Any:
    several = bool(shape) and isinstance(shape[0], tuple)
    own = shape[0] if several else shape
    value = _windowed(algebra, self, own, _spatial(own, len(kernel_size)), "a pooling window")
    value = mapped(algebra, value, "positive")
    return (value, mapped(algebra, value, "generic")) if several else value


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d")  # fmt: skip
def _adaptive_average(
    algebra: Algebra, shape: Shape, self: Value, output_size: Sequence[int]
) -> Value:
    axes = _spatial(shape, len(output_size))
    if all(shape[axis] == 1 for axis in axes):
        return reduced(algebra, self, axes, keepdim=True)
    return _windowed(algebra, self, shape, axes, "a pooling window")


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(
    algebra: Algebra, shape: Any, self: Value, output_size: Sequence[int]
) -> tuple[Value, Value]:
    value = mapped(algebra, _adaptive_average(algebra, shape[0], self, output_size), "positive")
    return value, mapped(algebra, value, "generic")


@rule("cumsum", "flip", "roll", "diff", "rot90", "triu", "tril")
def _ordered(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    dims = given.get("dim", given.get("dims"))
    axes = _dims(dims) if dims not in (None, []) else list(range(len(shape)))
    if isinstance(dims, int):
        axes = [dims]
    assert axes is not None
    return _windowed(algebra, self, shape, axes, "an operation that depends on the order")


@rule("logcumsumexp", "cumprod")
def _ordered_generic(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    return _ordered(algebra, shape, mapped(algebra, self, "generic"), **given)


@rule("sort", "topk", "cummax", "cummin", "kthvalue", "mode", "median")
def _sorted(algebra: Algebra, shape: Any, self: Value, dim: int = -1, **_: Any) -> Any:
    if not (shape and isinstance(shape[0], tuple)):
        return unknown(algebra, shape, self=self)
    rank = len(algebra.shape(self))
    if len(shape[0]) != rank:
        return unknown(algebra, shape, self=self)
    value = mapped(algebra, _windowed(algebra, self, shape[0], [dim], "a sort"), "positive")
    return value, mapped(algebra, value, "generic")


@rule("embedding")
def _embedding(algebra: Algebra, shape: Shape, weight: Value, indices: Value, **_: Any) -> Value:
    weight = weld(algebra, weight, 0, "rows looked up by number")
    lead = _letters(len(shape) - 1)
    indices = mapped(algebra, indices, "generic")
    return contract(algebra, [indices, weight], [lead, "VE"], f"{lead}E")


@rule("index_select")
def _index_select(algebra: Algebra, shape: Shape, self: Value, dim: int, index: Value) -> Value:
    return _windowed(algebra, self, shape, [dim], "entries looked up by number")


@rule("index")
def _index(algebra: Algebra, shape: Shape, self: Value, indices: Sequence[Any]) -> Value:
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) != 1 or len(algebra.shape(indices[used[0]])) != 1:
        return unknown(algebra, shape, self=self, indices=indices)
    return _windowed(algebra, self, shape, used, "entries looked up by number")


# -- convolutions ----------------------------------------------------------------------------------


def _convolve(
    algebra: Algebra,
    shape: Shape,
    x: Value,
    weight: Value,
    bias: Value | None,
    groups: int,
    transposed: bool,
    pointwise: bool,
) -> Value:
    rank = len(algebra.shape(weight)) - 2
    own, kernel = algebra.shape(x), algebra.shape(weight)
    batched = len(own) == rank + 2
    if not pointwise:
        for axis in range(rank):
            x = weld(algebra, x, len(own) - rank + axis, "a convolution window")
            weight = weld(algebra, weight, 2 + axis, "a convolution kernel")
    into, out = (own[-rank - 1] // groups, shape[-rank - 1] // groups)
    places = tuple((f"y{i}",) for i in range(rank))
    ends = places if pointwise else tuple((f"z{i}",) for i in range(rank))
    lead: Names = (("n",),) if batched else ()
    kernels: Names = tuple((f"k{i}",) for i in range(rank))
    rows: Names = (("g", "i"), ("o",)) if transposed else (("g", "o"), ("i",))
    sizes = {"g": groups, "i": into, "o": out, "n": own[0]}
    sizes |= {f"y{i}": own[len(own) - rank + i] for i in range(rank)}
    sizes |= {f"z{i}": shape[len(shape) - rank + i] for i in range(rank)}
    sizes |= {f"k{i}": kernel[2 + i] for i in range(rank)}
    signature = Signature(
        ((*lead, ("g", "i"), *places), (*rows, *kernels)), (*lead, ("g", "o"), *ends), sizes
    )
    result = apply(algebra, [x, weight], signature, "multiply", fresh="a convolution window")
    if bias is None:
        return result
    return added(algebra, shape, result, reshape(algebra, bias, [groups * out, *[1] * rank]))


def _is_pointwise(algebra: Algebra, weight: Value, **options: Any) -> bool:
    kernel = algebra.shape(weight)[2:]
    plain = all(size == 1 for size in kernel)
    stride = all(s == 1 for s in _listed(options.get("stride", 1)))
    padding = options.get("padding", 0)
    unpadded = padding in ("valid", "same") or all(p == 0 for p in _listed(padding))
    extra = all(p == 0 for p in _listed(options.get("output_padding", 0)))
    return plain and stride and unpadded and extra


def _listed(item: Any) -> list[int]:
    return list(item) if isinstance(item, (list, tuple)) else [item]


@rule("conv1d", "conv2d", "conv3d")
def _conv(
    algebra: Algebra,
    shape: Shape,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    groups: int = 1,
    **options: Any,
) -> Value:
    pointwise = _is_pointwise(algebra, weight, **options)
    return _convolve(algebra, shape, input, weight, bias, groups, False, pointwise)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    algebra: Algebra,
    shape: Shape,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    groups: int = 1,
    **options: Any,
) -> Value:
    pointwise = _is_pointwise(algebra, weight, **options)
    return _convolve(algebra, shape, input, weight, bias, groups, True, pointwise)


@rule("convolution")
def _convolution(
    algebra: Algebra,
    shape: Shape,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    transposed: bool = False,
    groups: int = 1,
    **options: Any,
) -> Value:
    pointwise = _is_pointwise(algebra, weight, **options)
    return _convolve(algebra, shape, input, weight, bias, groups, transposed, pointwise)


# -- norms and attention, by composition -------------------------------------------------------------


def normalised(
    algebra: Algebra,
    x: Value,
    names: Names,
    kept: Names,
    sizes: dict[str, int],
    *,
    centre: bool,
    epsilon: float,
) -> Value:
    """``(x - mean) / √(mean square + ε)``, the means over every name that is not kept."""
    full = Signature((names,), kept, sizes)
    pair = Signature((names, kept), names, sizes)
    if centre:
        x = apply(algebra, [x, apply(algebra, [x], full, "multiply")], pair, "add")
    spread = apply(algebra, [power(algebra, x, 2)], full, "multiply")
    if epsilon and algebra.field != "ideal":
        spread = mapped(algebra, spread, "generic")
    return apply(algebra, [x, power(algebra, spread, Fraction(-1, 2))], pair, "multiply")


def _affine(
    algebra: Algebra, x: Value, weight: Value | None, bias: Value | None, shape: Sequence[int]
) -> Value:
    """Times a weight, plus a bias, each first brought to ``shape``."""
    whole = algebra.shape(x)
    if weight is not None:
        x = multiplied(algebra, whole, x, reshape(algebra, weight, shape))
    if bias is not None:
        x = added(algebra, whole, x, reshape(algebra, bias, shape))
    return x


def _last_axes_norm(
    algebra: Algebra, x: Value, count: int, *, centre: bool, epsilon: float
) -> Value:
    shape = algebra.shape(x)
    names: Names = tuple((f"a{i}",) for i in range(len(shape)))
    kept: Names = tuple(() if i >= len(shape) - count else name for i, name in enumerate(names))
    sizes = {f"a{i}": size for i, size in enumerate(shape)}
    return normalised(algebra, x, names, kept, sizes, centre=centre, epsilon=epsilon)


@rule("layer_norm", "native_layer_norm")
def _layer_norm(
    algebra: Algebra,
    shape: Any,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    **_: Any,
) -> Any:
    value = _last_axes_norm(algebra, input, len(normalized_shape), centre=True, epsilon=eps)
    value = _affine(algebra, value, weight, bias, normalized_shape)
    return (value, value, value) if shape and isinstance(shape[0], tuple) else value


@rule("rms_norm", "_fused_rms_norm")
def _rms_norm(
    algebra: Algebra,
    shape: Any,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    eps: Any = None,
) -> Any:
    value = _last_axes_norm(algebra, input, len(normalized_shape), centre=False, epsilon=1.0)
    value = _affine(algebra, value, weight, None, normalized_shape)
    return (value, value) if shape and isinstance(shape[0], tuple) else value


def _grouped_norm(algebra: Algebra, x: Value, groups: int, epsilon: float) -> Value:
    shape = algebra.shape(x)
    places = tuple((f"y{i}",) for i in range(len(shape) - 2))
    names: Names = (("n",), ("g", "c"), *places)
    kept: Names = (("n",), ("g",), *(() for _ in places))
    sizes = {"n": shape[0], "g": groups, "c": shape[1] // groups}
    sizes |= {f"y{i}": size for i, size in enumerate(shape[2:])}
    return normalised(algebra, x, names, kept, sizes, centre=True, epsilon=epsilon)


@rule("group_norm")
def _group_norm(
    algebra: Algebra,
    shape: Shape,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    **_: Any,
) -> Value:
    value = _grouped_norm(algebra, input, num_groups, eps)
    return _affine(algebra, value, weight, bias, [shape[1], *[1] * (len(shape) - 2)])


@rule("instance_norm")
def _instance_norm(
    algebra: Algebra,
    shape: Shape,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    eps: float = 1e-5,
    **_: Any,
) -> Value:
    if not use_input_stats:
        return _batch_norm(algebra, shape, input, weight, bias, running_mean, running_var, eps)
    value = _grouped_norm(algebra, input, shape[1], eps)
    return _affine(algebra, value, weight, bias, [shape[1], *[1] * (len(shape) - 2)])


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
      "native_batch_norm", "_native_batch_norm_legit")  # fmt: skip
def _batch_norm_rule(
    algebra: Algebra,
    shape: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    eps: float = 1e-5,
    **_: Any,
) -> Any:
    several = isinstance(shape[0], tuple)
    own = shape[0] if several else shape
    value = _batch_norm(algebra, own, input, weight, bias, running_mean, running_var, eps)
    return (value,) * len(shape) if several else value


def _batch_norm(
    algebra: Algebra,
    shape: Shape,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    epsilon: float,
) -> Value:
    """Batch norm in evaluation mode, the one norm with a rule of its own.

    Scaling the input by ``s`` is undone by the running statistics: ``mean · s``, and
    ``(variance + ε) · s² - ε``, which makes it exact for any ε.
    """
    column = [shape[1], *[1] * (len(shape) - 2)]
    if algebra.field == "ideal" or mean is None or variance is None:
        value = _batch_statistics_norm(algebra, shape, x)
        return _affine(algebra, value, weight, bias, column)
    centred = added(algebra, shape, x, reshape(algebra, mean, column))
    spread = reshape(algebra, _shifted(algebra, variance, epsilon), column)
    deviation = power(algebra, spread, Fraction(-1, 2))
    value = multiplied(algebra, shape, centred, deviation)
    if algebra.field == "magnitude":
        # what is left of the input's scale must vanish: a trade of the weight against the running
        # variance holds in evaluation mode only, and is no symmetry of training
        value = unscaled(algebra, value)
    return _affine(algebra, value, weight, bias, column)


def _shifted(algebra: Algebra, variance: Value, epsilon: float) -> Value:
    """``variance + ε``, where the variance is a saved buffer that may absorb the ε."""
    variance = algebra.resolve(variance)
    if algebra.field == "sign":
        return unscaled(algebra, variance)
    for _, leaf in algebra.leaves(variance):
        exponents = [digit.form for axis in leaf.axes for digit in axis] + [leaf.scalar]
        for form in exponents:
            single = len(form) == 1 and form[0][1] == 1
            if form and (not single or algebra.shifts.get(form[0][0], epsilon) != epsilon):
                return unscaled(algebra, variance)
            if form:
                algebra.shifts[form[0][0]] = epsilon
    return variance


def _batch_statistics_norm(algebra: Algebra, shape: Shape, x: Value) -> Value:
    names: Names = tuple((f"a{i}",) for i in range(len(shape)))
    kept: Names = tuple(name if i == 1 else () for i, name in enumerate(names))
    sizes = {f"a{i}": size for i, size in enumerate(shape)}
    return normalised(algebra, x, names, kept, sizes, centre=True, epsilon=1.0)


@rule("_weight_norm")
def _weight_norm(algebra: Algebra, shape: Shape, v: Value, g: Value, dim: int = 0) -> Value:
    axes = [i for i in range(len(shape)) if i != dim]
    size = _vector_norm(algebra, shape, v, 2, axes, True)
    direction = multiplied(algebra, shape, v, power(algebra, size, -1))
    return multiplied(algebra, shape, direction, g)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax")
def _softmax(algebra: Algebra, shape: Shape, self: Value, dim: int, **_: Any) -> Value:
    value = mapped(algebra, self, "generic")
    total = reduced(algebra, value, [dim], keepdim=True)
    return multiplied(algebra, shape, value, power(algebra, total, -1))


@rule("scaled_dot_product_attention")
def _attention(
    algebra: Algebra,
    shape: Shape,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
    **_: Any,
) -> Value:
    if enable_gqa:
        copies = algebra.shape(query)[-3] // algebra.shape(key)[-3]
        key, value = (_repeat_heads(algebra, x, copies) for x in (key, value))
    lead, length = shape[:-2], algebra.shape(key)[-2]
    scores_shape = (*lead, shape[-2], length)
    turned = permute(key, [*range(len(lead)), len(lead) + 1, len(lead)])
    scores = _matmul(algebra, scores_shape, query, turned)
    if is_causal:
        scores = weld(algebra, scores, len(lead), "a causal mask")
        scores = weld(algebra, scores, len(lead) + 1, "a causal mask")
    if attn_mask is not None:
        mask = mapped(algebra, attn_mask, "generic")
        scores = multiplied(algebra, scores_shape, mapped(algebra, scores, "generic"), mask)
    return _matmul(algebra, shape, _softmax(algebra, scores_shape, scores, -1), value)


def _repeat_heads(algebra: Algebra, x: Value, copies: int) -> Value:
    shape = algebra.shape(x)
    axis = len(shape) - 3
    whole = (*shape[:axis], shape[axis] * copies, *shape[axis + 1 :])
    return _repeat_interleave(algebra, whole, x, copies, axis)


@rule("glu")
def _glu(algebra: Algebra, shape: Shape, self: Value, dim: int = -1) -> Value:
    axis = dim % len(shape)
    first, gate = pieces(algebra, self, axis, [shape[axis]] * 2)
    return multiplied(algebra, shape, first, mapped(algebra, gate, "generic"))


@rule("prelu", "_prelu_kernel")
def _prelu(algebra: Algebra, shape: Shape, self: Value, weight: Value) -> Value:
    value = mapped(algebra, self, "positive")
    own = algebra.shape(weight)
    if len(own) < 2 and len(shape) > 1:
        weight = reshape(algebra, weight, [*(own or (1,)), *[1] * (len(shape) - 2)])
    return added(algebra, shape, value, multiplied(algebra, shape, value, weight))


@rule("pixel_shuffle")
def _pixel_shuffle(algebra: Algebra, shape: Shape, self: Value, upscale_factor: int) -> Value:
    *lead, channels, height, width = algebra.shape(self)
    r, n = upscale_factor, len(lead)
    grid = reshape(algebra, self, [*lead, channels // r**2, r, r, height, width])
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return reshape(algebra, permute(grid, order), shape)


@rule("pixel_unshuffle")
def _pixel_unshuffle(algebra: Algebra, shape: Shape, self: Value, downscale_factor: int) -> Value:
    *lead, channels, height, width = algebra.shape(self)
    r, n = downscale_factor, len(lead)
    grid = reshape(algebra, self, [*lead, channels, height // r, r, width // r, r])
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return reshape(algebra, permute(grid, order), shape)


@rule("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(algebra: Algebra, shape: Shape, self: Value, groups: int) -> Value:
    lead, channels, *places = algebra.shape(self)
    grid = reshape(algebra, self, [lead, groups, channels // groups, *places])
    order = [0, 2, 1, *range(3, 3 + len(places))]
    return reshape(algebra, permute(grid, order), shape)


# -- everything else -------------------------------------------------------------------------------


def unknown(algebra: Algebra, shape: Any, **arguments: Any) -> Any:
    """Refuses all axes and scales of all operands; the result is pinned."""
    for item in arguments.values():
        for value in item if isinstance(item, (list, tuple)) else [item]:
            if is_value(value):
                freeze(algebra, value, "an operation without a rule")
    if shape and isinstance(shape[0], tuple):
        return tuple(_pinned(algebra, own) for own in shape)
    return _pinned(algebra, shape)


def _pinned(algebra: Algebra, shape: Shape) -> Value:
    names: Names = tuple((f"a{i}",) for i in range(len(shape)))
    sizes = {f"a{i}": size for i, size in enumerate(shape)}
    signature = Signature((), names, sizes)
    return apply(algebra, [], signature, "multiply", fresh="an operation without a rule")
