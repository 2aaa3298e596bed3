"""The dozen primitives that every rule is written in.

One function, :func:`apply`, lines up what has the same name in a signature, for plain tensors and
for concatenations alike; contraction, addition, multiplication and reduction are the same walk with
different equations for the scales.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

from coset.symmetry.analysis.digits import Axis, Cut, Plain, Value, join, map_leaves
from coset.symmetry.analysis.signatures import (
    Combine,
    Names,
    Signature,
    concluded,
    empty,
    fresh_axis,
)
from coset.symmetry.analysis.values import Algebra


def apply(
    algebra: Algebra,
    values: Sequence[Value],
    signature: Signature,
    combine: Combine,
    *,
    powers: Sequence[int] | None = None,
    fresh: str | None = None,
) -> Value:
    """Lines up the operands by name and returns the result.

    Args:
        algebra: The walk.
        values: The operands.
        signature: Their names.
        combine: ``"multiply"``: scales add up, and cancel along contracted names.  ``"add"``:
            scales agree, and are absent along names that an operand lacks or the result drops.
        powers: For ``"multiply"``, the power of each operand (−1: divided by).
        fresh: Why names that only the result has are pinned; ``None`` leaves them free.
    """
    values = list(values)
    if 0 in signature.sizes.values():
        return empty(algebra, [prod(signature.factors(axis)) for axis in signature.result])
    while True:
        values = [algebra.resolve(value) for value in values]
        place = _first_cut(values)
        if place is not None:
            parts = _distribute(algebra, values, place, signature, combine, powers, fresh)
            if parts is not None:
                return parts
            values[place] = weld(
                algebra, values[place], _axis_of(values[place]), "a concatenation cut across units"
            )
            continue
        version = algebra.atoms.version
        groups = _break_all(algebra, values, signature)
        if groups is not None and algebra.atoms.version == version:
            _tie_names(algebra, values, groups, signature)
            if algebra.atoms.version == version:
                plain = [value for value in values if isinstance(value, Plain)]
                return concluded(algebra, plain, groups, signature, combine, powers, fresh)


def _axis_of(value: Value) -> int:
    assert isinstance(value, Cut)
    return value.axis


def _first_cut(values: Sequence[Value]) -> int | None:
    return next((i for i, value in enumerate(values) if isinstance(value, Cut)), None)


def _break_all(
    algebra: Algebra, values: list[Value], signature: Signature
) -> list[dict[str, Axis]] | None:
    """For each operand its digits by name; an axis that cannot be broken is welded (then None)."""
    groups: list[dict[str, Axis]] = []
    for v, (value, names) in enumerate(zip(values, signature.operands, strict=True)):
        assert isinstance(value, Plain)
        found: dict[str, Axis] = {}
        for i, axis in enumerate(names):
            broken = algebra.break_at(value.axes[i], signature.factors(axis))
            if broken is None:
                values[v] = weld(algebra, value, i, "a regrouping that does not divide")
                return None
            if len(broken) != len(axis):
                return None
            for name, digits in zip(axis, broken, strict=True):
                if not _same(algebra, found.setdefault(name, digits), digits):
                    for k, other in enumerate(names):
                        if name in other:
                            values[v] = weld(algebra, values[v], k, "a diagonal")
                    return None
        groups.append(found)
    return groups


def _same(algebra: Algebra, one: Axis, other: Axis) -> bool:
    """Whether two axes of one tensor run together: equal, or both refused already."""
    return one == other or all(
        algebra.atoms.pin_of(digit.atom) is not None and not digit.form for digit in (*one, *other)
    )


def _tie_names(
    algebra: Algebra,
    values: list[Value],
    groups: Sequence[Mapping[str, Axis]],
    signature: Signature,
) -> None:
    """Makes digits of one name the same in all operands; what does not fit is welded."""
    first: dict[str, Axis] = {}
    for found in groups:
        for name, digits in found.items():
            if name not in first:
                first[name] = digits
            elif not algebra.unify(first[name], digits):
                for v, names in enumerate(signature.operands):
                    for i, axis in enumerate(names):
                        if name in axis:
                            values[v] = weld(algebra, values[v], i, "groupings that do not fit")
                algebra.atoms.version += 1
                return


def _distribute(
    algebra: Algebra,
    values: Sequence[Value],
    place: int,
    signature: Signature,
    combine: Combine,
    powers: Sequence[int] | None,
    fresh: str | None,
) -> Value | None:
    """Applies the operation piece by piece to a concatenated operand."""
    value = values[place]
    assert isinstance(value, Cut)
    axis = signature.operands[place][value.axis]
    located = _locate(signature, axis, value)
    if located is None:
        return None
    name, outer, pieces = located
    cuts: list[list[Value]] = []
    for v, names in enumerate(signature.operands):
        cuts.append(_cut_name(algebra, values[v], names, signature, name, outer, pieces))
    results = [
        apply(
            algebra,
            [cut[k] for cut in cuts],
            signature.resized(name, outer * piece),
            combine,
            powers=powers,
            fresh=fresh,
        )
        for k, piece in enumerate(pieces)
    ]
    for i, kept in enumerate(signature.result):
        if name in kept:
            before, after = _around(signature, kept, name)
            return join(i, before * outer, [piece * after for piece in pieces], results)
    return tie(algebra, results)


def _around(signature: Signature, axis: tuple[str, ...], name: str) -> tuple[int, int]:
    """Sizes before and after a name inside an axis."""
    k = axis.index(name)
    return prod(signature.factors(axis[:k])), prod(signature.factors(axis[k + 1 :]))


def _locate(
    signature: Signature, axis: tuple[str, ...], value: Cut
) -> tuple[str, int, list[int]] | None:
    """In which name of the axis a cut lies: the name, and (outer, pieces) inside it."""
    for name in axis:
        before, after = _around(signature, axis, name)
        if value.outer % before or any(size % after for size in value.sizes):
            continue
        outer, pieces = value.outer // before, [size // after for size in value.sizes]
        if outer * sum(pieces) == signature.sizes[name]:
            return name, outer, pieces
    return None


def _cut_name(
    algebra: Algebra,
    value: Value,
    names: Names,
    signature: Signature,
    name: str,
    outer: int,
    pieces: Sequence[int],
) -> list[Value]:
    """The pieces of an operand along a name, or the whole operand for each piece."""
    parts: list[Value] | None = None
    for i, axis in enumerate(names):
        if name in axis:
            before, after = _around(signature, axis, name)
            ways = before * outer, [piece * after for piece in pieces]
            if parts is None:
                parts = cut(algebra, value, i, *ways)
            else:  # a diagonal: of each piece the piece of the same number
                parts = [cut(algebra, part, i, *ways)[k] for k, part in enumerate(parts)]
    return [value] * len(pieces) if parts is None else parts


# -- refusing ------------------------------------------------------------------------------------


def weld(algebra: Algebra, value: Value, axis: int, why: str) -> Value:
    """Refuses an axis: no permutation and no scale along it, and its pieces become one."""
    value = algebra.resolve(value)
    length = algebra.shape(value)[axis]
    for _, leaf in algebra.leaves(value):
        for digit in leaf.axes[axis]:
            algebra.atoms.pin(digit.atom, f"{why} ({algebra.reason})")
            if not leaf.wild:
                algebra.vanish(digit.form)
    fresh = fresh_axis(algebra, length, why)
    bare = _without(algebra, value, axis)
    return map_leaves(
        lambda leaf: replace(leaf, axes=(*leaf.axes[:axis], fresh, *leaf.axes[axis + 1 :])), bare
    )


def _without(algebra: Algebra, value: Value, axis: int) -> Value:
    """The value with ``axis`` reduced to size one; pieces along it are tied to each other."""
    if isinstance(value, Plain):
        axes = (*value.axes[:axis], (), *value.axes[axis + 1 :])
        return replace(value, axes=axes, constant=None)
    parts = [_without(algebra, part, axis) for part in value.parts]
    return tie(algebra, parts) if value.axis == axis else replace(value, parts=tuple(parts))


def tie(algebra: Algebra, parts: Sequence[Value]) -> Value:
    """One value for several that are summed or compared entry by entry."""
    shape = algebra.shape(parts[0])
    names: Names = tuple((f"a{i}",) for i in range(len(shape)))
    sizes = {f"a{i}": size for i, size in enumerate(shape)}
    return apply(algebra, parts, Signature((names,) * len(parts), names, sizes), "add")


def freeze(algebra: Algebra, value: Value, why: str) -> Value:
    """Refuses every axis of a value, and its scale as a whole."""
    for axis in range(len(algebra.shape(value))):
        value = weld(algebra, value, axis, why)
    value = algebra.resolve(value)
    for _, leaf in algebra.leaves(value):
        if not leaf.wild:
            algebra.vanish(leaf.scalar)
    return value


# -- cutting and regrouping ----------------------------------------------------------------------


def cut(algebra: Algebra, value: Value, axis: int, outer: int, sizes: Sequence[int]) -> list[Value]:
    """The pieces of a value along an axis whose index is (outer, piece, inside the piece)."""
    while True:
        value = algebra.resolve(value)
        if len(sizes) == 1:
            return [value]
        if isinstance(value, Cut):
            parts = _cut_again(algebra, value, axis, outer, sizes)
            if parts is not None:
                return parts
            value = weld(algebra, value, axis, "cuts that do not fit each other")
            continue
        version = algebra.atoms.version
        groups = algebra.break_at(value.axes[axis], [outer, sum(sizes)])
        if groups is None:
            value = weld(algebra, value, axis, "a cut inside a unit")
        elif algebra.atoms.version == version:
            _split_first(algebra, groups[1], sizes)


def _split_first(algebra: Algebra, digits: Axis, sizes: Sequence[int]) -> None:
    """Splits the leading digit wherever a boundary touches it; finer ones follow in later turns."""
    leading, inner = digits[0].atom, algebra.length(digits[1:])
    edges = {0, algebra.atoms.size[leading]}
    for boundary in accumulate(sizes):
        edges |= {boundary // inner, -(-boundary // inner)}
    ordered = sorted(edges)
    algebra.split(leading, [b - a for a, b in pairwise(ordered)])


def _cut_again(
    algebra: Algebra, value: Cut, axis: int, outer: int, sizes: Sequence[int]
) -> list[Value] | None:
    """Cuts a concatenation; ``None`` if the two ways of cutting do not fit."""
    if axis != value.axis:
        rows = [cut(algebra, part, axis, outer, sizes) for part in value.parts]
        return [join(value.axis, value.outer, value.sizes, column) for column in zip(*rows)]  # noqa: B905
    if outer == value.outer:
        return _cut_along(algebra, value, sizes)
    if outer % value.outer == 0:
        whole = sum(sizes)
        if any(size % whole for size in value.sizes):
            return None
        counts = [size // whole for size in value.sizes]
        rows = [
            cut(algebra, part, axis, value.outer * count, sizes)
            for part, count in zip(value.parts, counts, strict=True)
        ]
        return [
            join(axis, value.outer, [count * size for count in counts], [row[k] for row in rows])
            for k, size in enumerate(sizes)
        ]
    whole = sum(value.sizes)
    if value.outer % outer or any(size % whole for size in sizes):
        return None
    rows = [
        cut(algebra, part, axis, outer, [size // whole * own for size in sizes])
        for part, own in zip(value.parts, value.sizes, strict=True)
    ]
    return [
        join(axis, outer * (size // whole), value.sizes, [row[k] for row in rows])
        for k, size in enumerate(sizes)
    ]


def _cut_along(algebra: Algebra, value: Cut, sizes: Sequence[int]) -> list[Value]:
    """Cuts a concatenation on its own axis: the common refinement of both lists of pieces."""
    wanted = [0, *accumulate(sizes)]
    collected: list[list[tuple[int, Value]]] = [[] for _ in sizes]
    start = 0
    for size, part in zip(value.sizes, value.parts, strict=True):
        stop = start + size
        between = wanted[bisect_right(wanted, start) : bisect_left(wanted, stop)]
        edges = [start, *dict.fromkeys(between), stop]
        inside = [b - a for a, b in pairwise(edges)]
        fragments = cut(algebra, part, value.axis, value.outer, inside)
        for edge, length, fragment in zip(edges, inside, fragments, strict=False):
            collected[bisect_right(wanted, edge) - 1].append((length, fragment))
        start = stop
    return [
        join(value.axis, value.outer, [n for n, _ in pieces], [part for _, part in pieces])
        for pieces in collected
    ]
