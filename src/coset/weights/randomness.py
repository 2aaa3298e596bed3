"""Torch's own generator, from which some layers draw: seeded for a while, then put back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seeds torch's own generator and puts it back after.

    Noise, random depth and randomised activations draw from it while a network trains; dropout
    has generators of its own.

    >>> state = torch.get_rng_state()
    >>> with own_randomness(3):
    ...     _ = torch.rand(())
    >>> bool((torch.get_rng_state() == state).all())
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
