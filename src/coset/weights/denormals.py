"""Numbers too small for a normal exponent count as zero while long work runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_as_zeros() -> Iterator[None]:
    """Takes numbers below 1e-38 (1e-308 in double precision) for zero, in this thread.

    Processors need up to a hundred times as long for products with them, and the gradients of a
    network that is sure of its data are full of them: probabilities such as 1e-40, which change no
    sum.  The setting is put back at the end.

    >>> with denormals_as_zeros():
    ...     inside = torch.tensor([1e-40]) * 1
    >>> inside.item(), (torch.tensor([1e-40]) * 1).item() > 0
    (0.0, True)
    """
    if _are_zeros() or not torch.set_flush_denormal(True):
        yield  # set by somebody else, or this processor cannot
        return
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _are_zeros() -> bool:
    """Whether they are taken for zero already: torch does not tell."""
    return (torch.tensor([1e-40], dtype=torch.float32) * 1).item() == 0.0
