"""Linear forms in unknown exponents: how the scale of a value depends on those of the parameters.

A form is a sorted tuple of ``(unknown, coefficient)`` pairs, so it can be compared and hashed.
"""

from fractions import Fraction
from typing import TypeAlias

Form: TypeAlias = tuple[tuple[int, Fraction], ...]

ZERO: Form = ()


def single(index: int) -> Form:
    """The form that is one unknown."""
    return ((index, Fraction(1)),)


def combined(one: Form, other: Form, factor: Fraction | int = 1) -> Form:
    """``one + factor · other``.

    >>> combined(single(0), single(0), -1)
    ()
    """
    if not other:
        return one
    if not one:
        return multiple(other, factor)
    total = dict(one)
    for index, coefficient in other:
        total[index] = total.get(index, Fraction(0)) + factor * coefficient
    return tuple(sorted((index, value) for index, value in total.items() if value))


def multiple(form: Form, factor: Fraction | int) -> Form:
    """``factor · form``."""
    if factor == 1:
        return form
    return tuple((index, factor * value) for index, value in form) if factor else ZERO
