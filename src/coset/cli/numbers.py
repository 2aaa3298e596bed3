"""Options that take whole numbers."""

from collections.abc import Sequence
from typing import Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number


def whole_number(least: int, most: int) -> Parameter:
    """A parameter for whole numbers in a range; what is written with a fraction is refused.

    The converter that comes with cyclopts would round it.
    """
    return Parameter(converter=_read, validator=Number(gte=least, lte=most))


def _read(_: Any, tokens: Sequence[Token]) -> int:
    word = tokens[0].value
    try:
        return int(word)
    except ValueError as error:
        raise ValueError(f'unable to convert "{word}" into int.') from error
