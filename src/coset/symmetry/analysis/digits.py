"""What a tensor looks like to the analysis: digits, plain tensors, concatenations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from coset.symmetry.analysis.forms import ZERO, Form


class Digit(NamedTuple):
    """One digit of an axis.

    Attributes:
        atom: What it runs over.
        form: Exponent of the scale along it.
        context: Choices ``(cut atom, piece)`` made for the value this digit belongs to; they
            select the instance should the atom turn out to be a family.
    """

    atom: int
    form: Form = ZERO
    context: tuple[tuple[int, int], ...] = ()


Axis = tuple[Digit, ...]


@dataclass(frozen=True)
class Plain:
    """A tensor whose every axis is a row-major list of digits; axes of size one have none.

    Attributes:
        axes: The digits, axis by axis.
        scalar: Exponent of the scale of the tensor as a whole.
        wild: Whether the tensor is all zero, so that any scale fits it.
        constant: The tensor itself, if it depends on neither parameters nor inputs.
    """

    axes: tuple[Axis, ...]
    scalar: Form = ZERO
    wild: bool = False
    constant: Tensor | None = None


@dataclass(frozen=True)
class Cut:
    """A concatenation: the index of ``axis`` is (outer, piece, inside the piece)."""

    axis: int
    outer: int
    sizes: tuple[int, ...]
    parts: tuple["Value", ...]


Value = Plain | Cut
Block = tuple[tuple[int, int, int, int], ...]
"""A part of a tensor: cuts ``(axis, outer, start, size)``, applied in order."""


def join(axis: int, outer: int, sizes: Sequence[int], parts: Sequence[Value]) -> Value:
    """A concatenation, without empty pieces and without cuts inside cuts of the same kind."""
    kept: list[tuple[int, Value]] = []
    for size, part in zip(sizes, parts, strict=True):
        if isinstance(part, Cut) and (part.axis, part.outer) == (axis, outer):
            kept.extend(zip(part.sizes, part.parts, strict=True))
        elif size:
            kept.append((size, part))
    if len(kept) == 1:
        return kept[0][1]
    return Cut(axis, outer, tuple(size for size, _ in kept), tuple(part for _, part in kept))


def map_leaves(function: Callable[[Plain], Plain], value: Value) -> Value:
    """The value with every plain part replaced."""
    if isinstance(value, Plain):
        return function(value)
    return replace(value, parts=tuple(map_leaves(function, part) for part in value.parts))


def governing(
    atoms: Sequence[Sequence[int]], axis: int | None, atom: int
) -> tuple[int, int] | None:
    """Which occurrence of an atom the digits of an axis look at, as (axis, place).

    The one of their own axis if there is one, else the only one elsewhere.

    Args:
        atoms: Those of the digits, axis by axis.
        axis: The axis in question; ``None`` for a tensor as a whole.
        atom: The atom.
    """
    places = [(i, j) for i, own in enumerate(atoms) for j, other in enumerate(own) if other == atom]
    own_places = [place for place in places if place[0] == axis]
    if len(own_places) == 1:
        return own_places[0]
    return places[0] if not own_places and len(places) == 1 else None
