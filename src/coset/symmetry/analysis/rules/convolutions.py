"""Convolutions, with groups, transposed or not."""

from typing import Any

from coset.symmetry.analysis.digits import Value
from coset.symmetry.analysis.primitives import apply, weld
from coset.symmetry.analysis.rules.arithmetic import added
from coset.symmetry.analysis.rules.table import Shape, rule
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.transforms import reshape
from coset.symmetry.analysis.values import Algebra


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
