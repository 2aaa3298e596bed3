"""Random numbers of a fit, which are the same in every round and after a resumed run."""

from typing import Literal

import torch

Stream = Literal["data", "prior", "diagonal", "order", "power", "probes"]

_APART: dict[Stream, int] = {
    "data": 0,
    "prior": 0x9E3779B9,
    "diagonal": 0x7F4A7C15,
    "order": 0x85EBCA6B,
    "power": 0xC2B2AE35,
    "probes": 0x27D4EB2F,
}
"""What sets seeds apart.  They differ in their lower 32 bits, for torch looks at no others."""


def source(seed: int, stream: Stream, number: int = 0) -> torch.Generator:
    """One of the generators of a stream.

    >>> first = [torch.rand((), generator=source(3, name)).item() for name in ("data", "prior")]
    >>> first[0] != first[1]
    True
    """
    return torch.Generator().manual_seed(((seed ^ _APART[stream]) + number) % 2**63)
