"""Operations that look things up by number, or put them in their places."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coset.symmetry.analysis.digits import Plain, Value
from coset.symmetry.analysis.primitives import apply, freeze, weld
from coset.symmetry.analysis.rules.arithmetic import added
from coset.symmetry.analysis.rules.contractions import contract, letters
from coset.symmetry.analysis.rules.maps import mapped
from coset.symmetry.analysis.rules.table import Shape, is_value, refused, rule
from coset.symmetry.analysis.rules.windows import windowed
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.values import Algebra

BY_NUMBER = "entries looked up by number"


@rule("embedding")
def _embedding(algebra: Algebra, shape: Shape, weight: Value, indices: Value, **_: Any) -> Value:
    weight = weld(algebra, weight, 0, "rows looked up by number")
    lead = letters(len(shape) - 1)
    indices = mapped(algebra, indices, "generic")
    return contract(algebra, [indices, weight], [lead, "VE"], f"{lead}E")


@rule("index_select")
def _index_select(algebra: Algebra, shape: Shape, self: Value, dim: int, index: Value) -> Value:
    freeze(algebra, index, "places to look up")
    return windowed(algebra, self, shape, [dim], BY_NUMBER)


@rule("index")
def _index(algebra: Algebra, shape: Shape, self: Value, indices: Sequence[Any]) -> Value:
    """Entries of some axes; the other axes pass.

    The axes of the indices stand in their place, or in front if they are apart.
    """
    used = [i for i, index in enumerate(indices) if index is not None]
    found = [indices[i] for i in used]
    if any(isinstance(i, Plain) and _is_mask(i.constant) for i in found):
        return refused(algebra, shape, self)
    for axis, index in zip(used, found, strict=True):
        freeze(algebra, index, "places to look up")
        self = weld(algebra, self, axis, BY_NUMBER)
    own = algebra.shape(self)
    names: Names = tuple((f"a{i}",) for i in range(len(own)))
    kept = [name for i, name in enumerate(names) if i not in used]
    places = [(f"b{i}",) for i in range(len(shape) - len(kept))]
    start = used[0] if used[-1] - used[0] == len(used) - 1 else 0
    out: Names = (*kept[:start], *places, *kept[start:])
    sizes = {f"a{i}": size for i, size in enumerate(own)}
    sizes |= {name: size for (name,), size in zip(out, shape, strict=True)}
    return apply(algebra, [self], Signature((names,), out, sizes), "multiply", fresh=BY_NUMBER)


def _is_mask(known: Tensor | None) -> bool:
    return known is not None and known.dtype == torch.bool


@rule("gather")
def _gather(algebra: Algebra, shape: Shape, self: Value, dim: int, index: Value, **_: Any) -> Value:
    """Entries of one axis; the other axes run along with those of the index."""
    own = algebra.shape(self)
    if not shape or _others(own, dim) != _others(shape, dim):
        return refused(algebra, shape, self, index)
    whole = letters(len(shape))
    chosen = whole.replace(whole[dim], "Z")
    operands = [weld(algebra, self, dim % len(shape), BY_NUMBER), mapped(algebra, index, "generic")]
    return contract(algebra, operands, [whole, chosen], chosen)


@rule("scatter_add")
def _scatter_add(
    algebra: Algebra, shape: Shape, self: Value, dim: int, index: Value, src: Value
) -> Value:
    """Sums of entries of one axis; the other axes run along with those of the index."""
    places = algebra.shape(index)
    if not shape or algebra.shape(src) != places or _others(places, dim) != _others(shape, dim):
        return refused(algebra, shape, self, index, src)
    names: Names = tuple((letter,) for letter in letters(len(shape)))
    out: Names = tuple(("Z",) if i == dim % len(shape) else n for i, n in enumerate(names))
    sizes = {name: size for (name,), size in zip(names, places, strict=True)}
    signature = Signature((names, names), out, sizes | {"Z": shape[dim]})
    values = [src, mapped(algebra, index, "generic")]
    sums = apply(algebra, values, signature, "multiply", fresh="places given by number")
    return added(algebra, shape, weld(algebra, self, dim, "places given by number"), sums)


@rule("index_add")
def _index_add(
    algebra: Algebra, shape: Shape, self: Value, dim: int, index: Value, source: Value, **_: Any
) -> Value:
    freeze(algebra, index, "places to add to")
    sums = windowed(algebra, source, shape, [dim], "places given by number")
    return added(algebra, shape, weld(algebra, self, dim, "places given by number"), sums)


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    algebra: Algebra, shape: Any, weight: Value, indices: Value, offsets: Value, **given: Any
) -> tuple[Any, ...]:
    """Sums, means (or with mode 2 maxima) of rows: the columns are as free as in an embedding."""
    own = shape[0]
    for item in (indices, offsets, given.get("per_sample_weights")):
        if is_value(item):
            freeze(algebra, item, "places to look up")
    value = windowed(algebra, weight, own, [0], BY_NUMBER)
    if given.get("mode") == 2:
        value = mapped(algebra, value, "positive")
    return value, *(partial(refused, algebra, other, value) for other in shape[1:])


@rule("grid_sampler", "grid_sampler_2d")
def _grid_sampler(algebra: Algebra, shape: Shape, input: Value, grid: Value, **_: Any) -> Value:
    """Values of an image between its pixels."""
    if len(shape) != 4:
        return refused(algebra, shape, input, grid)
    for axis in (2, 3):
        input = weld(algebra, input, axis, "places between pixels")
    grid = weld(algebra, mapped(algebra, grid, "generic"), 3, "coordinates")
    return contract(algebra, [input, grid], ["nchw", "npqt"], "ncpq")


def _others(shape: Sequence[int], dim: int) -> list[int]:
    """Sizes of all axes but one."""
    return [size for axis, size in enumerate(shape) if axis != dim % len(shape)]
