"""The one exception of the library.

A message has three parts: what we got, what we needed, what to do next.
"""

from numbers import Integral


class CosetError(ValueError):
    """Raised for every input the library refuses.

    >>> str(CosetError("got 3 labels", "needed 4, one for each input", "check the targets"))
    'got 3 labels; needed 4, one for each input; check the targets'
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("; ".join(parts))


def require_counts(least: int = 1, /, **counts: object) -> None:
    """Refuses settings, given by their names, that are no whole numbers of at least ``least``.

    >>> require_counts(members=2.5)
    Traceback (most recent call last):
    coset.errors.CosetError: got members=2.5; needed a whole number, at least 1
    """
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or int(count) < least:
            raise CosetError(f"got {name}={count!r}", f"needed a whole number, at least {least}")
