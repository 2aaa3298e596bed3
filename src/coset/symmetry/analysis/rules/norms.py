"""Norms, softmax and attention, by composition of simpler rules."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from coset.symmetry.analysis.digits import Value
from coset.symmetry.analysis.primitives import apply, freeze, weld
from coset.symmetry.analysis.rules.arithmetic import added, multiplied
from coset.symmetry.analysis.rules.axes import pieces, repeat_each
from coset.symmetry.analysis.rules.contractions import matrix_product
from coset.symmetry.analysis.rules.maps import mapped, power
from coset.symmetry.analysis.rules.reductions import reduced, vector_norm
from coset.symmetry.analysis.rules.table import Shape, refused, rule
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.transforms import permute, reshape, unscaled
from coset.symmetry.analysis.values import Algebra


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


@rule("batch_norm", "_native_batch_norm_legit_no_training",
      "native_batch_norm", "_native_batch_norm_legit",
      "_native_batch_norm_legit_functional")  # fmt: skip
def _batch_norm_rule(
    algebra: Algebra,
    shape: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    training: bool = False,
    eps: float = 1e-5,
    **_: Any,
) -> Any:
    several = isinstance(shape[0], tuple)
    own = shape[0] if several else shape
    mean, variance = (None, None) if training else (running_mean, running_var)
    value = _batch_norm(algebra, own, input, weight, bias, mean, variance, eps)
    if not several:
        return value
    return value, *(partial(refused, algebra, other, input) for other in shape[1:])


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
    size = vector_norm(algebra, shape, v, 2, axes, True)
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
    dropout_p: float = 0.0,
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
    scores = matrix_product(algebra, scores_shape, query, turned)
    if is_causal:
        scores = weld(algebra, scores, len(lead), "a causal mask")
        scores = weld(algebra, scores, len(lead) + 1, "a causal mask")
    if attn_mask is not None:
        mask = mapped(algebra, attn_mask, "generic")
        scores = multiplied(algebra, scores_shape, mapped(algebra, scores, "generic"), mask)
    weights = _softmax(algebra, scores_shape, scores, -1)
    if dropout_p:
        weights = freeze(algebra, weights, "a random dropout")
    return matrix_product(algebra, shape, weights, value)


def _repeat_heads(algebra: Algebra, x: Value, copies: int) -> Value:
    shape = algebra.shape(x)
    axis = len(shape) - 3
    whole = (*shape[:axis], shape[axis] * copies, *shape[axis + 1 :])
    return repeat_each(algebra, whole, x, copies, axis)


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
