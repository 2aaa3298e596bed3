"""What can be done with one value: regroup its axes, change its exponents, make it anew."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

import torch
from torch import Tensor

from coset.symmetry.analysis.digits import Axis, Cut, Plain, Value, join, map_leaves
from coset.symmetry.analysis.forms import ZERO, multiple
from coset.symmetry.analysis.primitives import weld
from coset.symmetry.analysis.signatures import empty, fresh_axis
from coset.symmetry.analysis.values import Algebra


def unscaled(algebra: Algebra, value: Value, *, keeps_zero: bool = False) -> Value:
    """Refuses every scale of a value, and leaves its permutations alone."""
    value = algebra.resolve(value)
    for _, leaf in algebra.leaves(value):
        if not leaf.wild:
            algebra.vanish(leaf.scalar)
            for axis in leaf.axes:
                for digit in axis:
                    algebra.vanish(digit.form)
    return without_forms(value, keeps_zero=keeps_zero)


def without_forms(value: Value, *, keeps_zero: bool = False) -> Value:
    """The value with all exponents set to zero."""

    def bare(leaf: Plain) -> Plain:
        axes = tuple(tuple(d._replace(form=ZERO) for d in axis) for axis in leaf.axes)
        return Plain(axes, wild=leaf.wild and keeps_zero)

    return map_leaves(bare, value)


def with_power(value: Value, power: Fraction | int) -> Value:
    """The value raised to a power: all exponents times that."""

    def raised(leaf: Plain) -> Plain:
        axes = tuple(
            tuple(d._replace(form=multiple(d.form, power)) for d in axis) for axis in leaf.axes
        )
        return Plain(axes, multiple(leaf.scalar, power), leaf.wild and power > 0)

    return map_leaves(raised, value)


def reshape(algebra: Algebra, value: Value, shape: Sequence[int]) -> Value:
    """Regroups the digits of a value under a new shape."""
    if 0 in shape:
        return empty(algebra, shape)
    while True:
        value = algebra.resolve(value)
        if isinstance(value, Cut):
            result = _reshape_cut(algebra, value, shape)
            if result is not None:
                return result
            value = weld(algebra, value, value.axis, "a reshape across a concatenation")
            continue
        version = algebra.atoms.version
        axes = _regroup(algebra, value, shape)
        if algebra.atoms.version == version:
            result = Plain(tuple(axes), value.scalar, value.wild)
            algebra.record_axes(result)
            return result


def _regroup(algebra: Algebra, value: Plain, shape: Sequence[int]) -> list[Axis]:
    axes: list[Axis] = []
    for old, new in _aligned_groups(algebra.shape(value), shape):
        digits = tuple(digit for i in old for digit in value.axes[i])
        broken = algebra.break_at(digits, [shape[k] for k in new])
        if broken is None:
            for i in old:
                value = weld(algebra, value, i, "a reshape across units")  # type: ignore[assignment]
            broken = [fresh_axis(algebra, shape[k], "a reshape across units") for k in new]
        axes.extend(broken)
    return axes


def _aligned_groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The finest runs of axes whose products agree on both sides."""
    assert prod(old) == prod(new), f"a view of {old} as {new}"
    groups: list[tuple[list[int], list[int]]] = []
    i = k = 0
    while i < len(old) or k < len(new):
        first_old, first_new = i, k
        i, k = min(i + 1, len(old)), min(k + 1, len(new))
        while prod(old[first_old:i]) != prod(new[first_new:k]):
            if prod(old[first_old:i]) < prod(new[first_new:k]):
                i += 1
            else:
                k += 1
        groups.append((list(range(first_old, i)), list(range(first_new, k))))
    return groups


def _reshape_cut(algebra: Algebra, value: Cut, shape: Sequence[int]) -> Value | None:
    """Finds the new axis on which the concatenation still is one, with the most pieces."""
    after = prod(algebra.shape(value)[value.axis + 1 :])
    whole = sum(value.sizes)
    best: tuple[int, list[list[int]]] | None = None
    for k in range(len(shape)):
        stride = prod(shape[k + 1 :])
        if (shape[k] * stride) % (whole * after) or (whole * after) % stride:
            continue
        merged = _merge_until(value.sizes, after, stride)
        if len(merged) > 1 and (best is None or len(merged) > len(best[1])):
            best = (k, merged)
    if best is None:
        return None
    k, merged = best
    stride = prod(shape[k + 1 :])
    outer = shape[k] * stride // (whole * after)
    sizes, parts = [], []
    for group in merged:
        own = [value.sizes[j] for j in group]
        size = sum(own) * after // stride
        part = join(value.axis, value.outer, own, [value.parts[j] for j in group])
        sizes.append(size)
        parts.append(reshape(algebra, part, [*shape[:k], outer * size, *shape[k + 1 :]]))
    return join(k, outer, sizes, parts)


def _merge_until(sizes: Sequence[int], after: int, stride: int) -> list[list[int]]:
    """Merges neighbouring pieces until each is a whole number of strides, as all together are."""
    merged: list[list[int]] = [[]]
    length = 0
    for j, size in enumerate(sizes):
        if merged[-1] and (length * after) % stride == 0:
            merged.append([])
            length = 0
        merged[-1].append(j)
        length += size
    return merged


def permute(value: Value, order: Sequence[int]) -> Value:
    """Axes in another order."""
    if isinstance(value, Plain):
        return replace(value, axes=tuple(value.axes[i] for i in order), constant=None)
    parts = tuple(permute(part, order) for part in value.parts)
    return replace(value, axis=list(order).index(value.axis), parts=parts)


def constant(algebra: Algebra, tensor: Tensor) -> Plain:
    """A known tensor: free along axes on which it does not vary, pinned along the others."""
    axes: list[Axis] = []
    for i, size in enumerate(tensor.shape):
        varies = size > 1 and not bool((tensor == tensor.narrow(i, 0, 1)).all())
        axes.append(fresh_axis(algebra, size, "a constant that varies" if varies else None))
    zero = tensor.numel() > 0 and not bool((tensor != 0).any())
    return Plain(tuple(axes), wild=zero and tensor.dtype != torch.bool, constant=tensor)
