"""Names for the digits of operands, and what an operation makes of those once they are lined up.

A *signature* names the digits of every operand and of the result, row-major inside an axis:
``n (g i), (g o) i -> n (g o)``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coset.symmetry.analysis.digits import Axis, Digit, Plain
from coset.symmetry.analysis.forms import ZERO, Form, combined
from coset.symmetry.analysis.values import Algebra

Names = tuple[tuple[str, ...], ...]
"""The names of one tensor: for each axis a row-major tuple."""

Combine = Literal["multiply", "add"]


@dataclass(frozen=True)
class Signature:
    """Names of the operands and of the result, and the sizes of the names."""

    operands: tuple[Names, ...]
    result: Names
    sizes: Mapping[str, int]

    def resized(self, name: str, size: int) -> "Signature":
        """The same signature for one piece of a name."""
        return replace(self, sizes={**self.sizes, name: size})

    def factors(self, axis: tuple[str, ...]) -> list[int]:
        """Sizes of the names of an axis."""
        return [self.sizes[name] for name in axis]


def concluded(
    algebra: Algebra,
    values: Sequence[Plain],
    groups: Sequence[Mapping[str, Axis]],
    signature: Signature,
    combine: Combine,
    powers: Sequence[int] | None,
    fresh: str | None,
) -> Plain:
    """The result of plain, lined-up operands: its digits, scales, and who was seen with whom."""
    kept = {name for axis in signature.result for name in axis}
    merge = _multiplied if combine == "multiply" else _added
    digits, scalar, wild = merge(algebra, values, groups, kept, powers or [1] * len(values))
    for axis in signature.result:
        for name in axis:
            if name not in digits:
                digits[name] = fresh_axis(algebra, signature.sizes[name], fresh)
    result = {name: digits[name] for name in kept}
    _record(algebra, [*groups, result])
    axes = tuple(tuple(d for name in axis for d in result[name]) for axis in signature.result)
    return Plain(axes, scalar, wild)


def fresh_axis(algebra: Algebra, size: int, why: str | None) -> Axis:
    """The digits of an axis that nothing is tied to yet; with a reason, a refused one."""
    if size == 1:
        return ()
    pin = None if why is None else f"{why} ({algebra.reason})"
    return (Digit(algebra.atoms.new(size, f"fresh: {why or 'repeated'}", pin)),)


def empty(algebra: Algebra, shape: Sequence[int]) -> Plain:
    """What a tensor without entries becomes, here or after sums over it: nothing varies."""
    return Plain(tuple(fresh_axis(algebra, size, None) for size in shape))


def _multiplied(
    algebra: Algebra,
    values: Sequence[Plain],
    groups: Sequence[Mapping[str, Axis]],
    kept: set[str],
    powers: Sequence[int],
) -> tuple[dict[str, Axis], Form, bool]:
    wild = any(value.wild for value in values)
    digits: dict[str, list[Digit]] = {}
    scalar: Form = ZERO
    for value, found, power in zip(values, groups, powers, strict=True):
        scalar = combined(scalar, value.scalar, power)
        for name, own in found.items():
            start = digits.setdefault(name, [digit._replace(form=ZERO) for digit in own])
            for k, digit in enumerate(own):
                start[k] = start[k]._replace(form=combined(start[k].form, digit.form, power))
    if not wild:
        for name, total in digits.items():
            if name not in kept:
                for digit in total:
                    algebra.vanish(digit.form)
    return {name: tuple(total) for name, total in digits.items()}, scalar, wild


def _added(
    algebra: Algebra,
    values: Sequence[Plain],
    groups: Sequence[Mapping[str, Axis]],
    kept: set[str],
    powers: Sequence[int],
) -> tuple[dict[str, Axis], Form, bool]:
    digits: dict[str, Axis] = {}
    for found in groups:
        for name, axis in found.items():
            digits.setdefault(name, tuple(digit._replace(form=ZERO) for digit in axis))
    tame = [(value, found) for value, found in zip(values, groups, strict=True) if not value.wild]
    if not tame:
        return digits, ZERO, True
    leader, reference = tame[0]
    for value, found in tame:
        algebra.vanish(combined(value.scalar, leader.scalar, -1))
        for name in digits:
            own, main = found.get(name), reference.get(name)
            if own is None or main is None or name not in kept:
                for digit in (*(own or ()), *(main or ())):
                    algebra.vanish(digit.form)
            else:
                for a, b in zip(own, main, strict=True):
                    algebra.vanish(combined(a.form, b.form, -1))
                digits[name] = main
    return digits, leader.scalar, False


def _record(algebra: Algebra, carriers: Sequence[Mapping[str, Axis]]) -> None:
    """Notes, for every name, the names present in all tensors that carry it.

    When scales are followed, tensors without a scale along the name do not count: a rotary table,
    say, knows no heads, and still lets every head have scales of its own.
    """
    for name in {name for carrier in carriers for name in carrier}:
        having = [carrier for carrier in carriers if name in carrier]
        algebra.record(having[0][name], [having[0][other] for other in _common(having, name)])
        scaled = [c for c in having if any(digit.form for digit in c[name])]
        for carrier in scaled:
            algebra.record_scaled(carrier[name], [carrier[n] for n in _common(scaled, name)])


def _common(carriers: Sequence[Mapping[str, Axis]], name: str) -> list[str]:
    return sorted(set(carriers[0]).intersection(*carriers[1:]) - {name})
