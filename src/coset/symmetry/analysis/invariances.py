"""Weights whose scale a normalisation divides out, up to its epsilon.

The walk over magnitudes is run once more with every epsilon dropped and batch norms in training
mode; a tensor is invariant if scaling its filters, its channel groups or the whole of it, alone or
with the bias beside it, changes nothing.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import prod
from typing import Literal

from coset.symmetry.analysis.log import aligned
from coset.symmetry.analysis.walk import Equations, Part, Structure
from coset.symmetry.elements import ScaleInvariance

Rows = tuple[tuple[int, int, int], ...]
"""A piece of an axis: cuts ``(outer, start, size)``, applied in order."""


def find_invariances(structure: Structure, unread: set[int]) -> list[ScaleInvariance]:
    """All scale invariances of what is read, at most one a tensor and the finest there is."""
    ideal = structure.equations("ideal")
    unknowns: dict[str, list[int]] = {}
    for u, place in enumerate(structure.unknowns):
        if place.part not in unread:
            unknowns.setdefault(structure.parts[place.part].tensor, []).append(u)
    buffers = {name for name in unknowns if "running_" in name}
    found = []
    for tensor, own in unknowns.items():
        shape = _shape_of(structure, tensor)
        if len(shape) < 2 or tensor in buffers:
            continue
        invariance = _of_tensor(structure, ideal, tensor, own, unknowns, shape)
        if invariance is not None:
            found.append(invariance)
    return found


def _of_tensor(
    structure: Structure,
    ideal: Equations,
    tensor: str,
    own: list[int],
    unknowns: dict[str, list[int]],
    shape: tuple[int, ...],
) -> ScaleInvariance | None:
    base = tensor.rpartition(".")[0] or tensor
    partners: dict[str | None, list[int]] = {None: []}
    bias = tensor.rpartition(".")[0] + ".bias" if "." in tensor else "bias"
    if bias in unknowns and tensor != bias:
        partners[bias] = unknowns[bias]
    kinds: tuple[tuple[int, Literal["filter", "channel-group"]], ...]
    kinds = ((-1, "filter"), (0, "channel-group"))
    for depth, groups in kinds:
        for axis, length in enumerate(shape):
            for name, partner in partners.items():
                if name is not None and _shape_of(structure, name) != (length,):
                    continue
                pieces = _indicators(structure, own, axis, depth)
                if not pieces:
                    continue
                for rows, digits in _indicators(structure, partner, 0, depth).items():
                    pieces.setdefault(rows, set()).update(digits)
                # Two pieces that only hold together (the halves of a maximum) tie rows of one to
                # rows of the other, so each must hold alone before rows are said to be free.
                if all(_holds(structure, ideal, p, depth) for p in pieces.values()):
                    # rows that nothing reads are free as well
                    count = length if depth else _count(structure, own, axis)
                    if length % count == 0:
                        return ScaleInvariance(base, tensor, groups, axis, count, name)
    whole = {u for u in own if structure.unknowns[u].digit is None}
    for name, partner in partners.items():
        scalars = whole | {u for u in partner if structure.unknowns[u].digit is None}
        if _vanishes(ideal, scalars):
            return ScaleInvariance(base, tensor, "layer", 0, 1, name)
    return None


def _shape_of(structure: Structure, tensor: str) -> tuple[int, ...]:
    """The shape of a parameter."""
    return structure.graph.nodes[structure.graph.parameters[tensor]].shape


def _indicators(
    structure: Structure, own: Iterable[int], axis: int, depth: int
) -> dict[Rows, set[int]]:
    """Unknowns of the innermost (−1) or outermost (0) digit of an axis, by piece of that axis."""
    chosen: dict[Rows, set[int]] = {}
    for u in own:
        place = structure.unknowns[u]
        part = structure.parts[place.part]
        if axis >= len(part.axes):
            continue
        rows = _rows(part, axis)
        if place.digit == _digit_of_rows(part, axis, depth) and (rows or place.digit is not None):
            chosen.setdefault(rows, set()).add(u)
    return chosen


def _rows(part: Part, axis: int) -> Rows:
    return tuple(cut[1:] for cut in part.block if cut[0] == axis)


def _digit_of_rows(part: Part, axis: int, depth: int) -> int | None:
    """The digit that numbers the rows of a part; a single row is the part as a whole (None)."""
    digits, first = part.axes[axis], sum(len(a) for a in part.axes[:axis])
    if not digits:
        return None
    return first + len(digits) - 1 if depth else first


def _count(structure: Structure, own: Iterable[int], axis: int) -> int:
    """Groups of all pieces of an axis; parts that differ in their columns have the same rows."""
    sizes: dict[Rows, int] = {}
    for p in {structure.unknowns[u].part for u in own}:
        part = structure.parts[p]
        size = prod(structure.atoms.size[atom] for atom in part.axes[axis][:1])
        rows = _rows(part, axis)
        sizes[rows] = max(sizes.get(rows, 1), size)
    return sum(sizes.values())


def _vanishes(ideal: Equations, chosen: set[int]) -> bool:
    return bool(chosen) and all(
        sum((value for u, value in form if u in chosen), Fraction(0)) == 0 for form in ideal.forms
    )


def _holds(structure: Structure, ideal: Equations, chosen: set[int], depth: int) -> bool:
    """Whether scaling along the chosen digits changes nothing, each row by itself."""
    if not _vanishes(ideal, chosen):
        return False
    beside: dict[int, set[int]] = {}
    for u in chosen:
        place = structure.unknowns[u]
        part = structure.parts[place.part]
        if place.digit is None:
            continue  # a single row has no others beside it
        k = 0
        for axis in part.axes:
            digits = range(k, k + len(axis))
            if place.digit in digits and depth:
                own = part.digits[place.digit]
                others = {part.digits[d] for d in digits if d != place.digit}
                beside.setdefault(own, set()).update(others)
            k += len(axis)
    beside = {atom: others for atom, others in beside.items() if others}
    for entry in ideal.log if beside else ():
        for digit in entry.axes[0]:
            if digit.atom not in beside:
                continue
            total = sum((value for u, value in digit.form if u in chosen), Fraction(0))
            if total and not beside[digit.atom] <= aligned(entry):
                return False
    return True
