"""The one exception of the library.

A message has three parts: what we got, what we needed, what to do next.
"""


class CosetError(ValueError):
    """Raised for every input the library refuses.

    >>> str(CosetError("got 3 labels", "needed 4, one for each input", "check the targets"))
    'got 3 labels; needed 4, one for each input; check the targets'
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("; ".join(parts))
