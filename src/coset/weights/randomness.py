"""Torch's own generator, from which some layers draw: seeded for a while, then put back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

_Found = TypeVar("_Found")


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


def drawn_by(generator: torch.Generator, run: Callable[[], _Found]) -> _Found:
    """What a function gives, with a generator in the place of torch's own, which stays as it is.

    Few functions draw from torch's own, so we only look whether this one did, which takes some
    microseconds; if so, it is run again.

    Args:
        generator: Seeds torch's own for a while.
        run: May use the generator itself too.

    >>> generator = torch.Generator().manual_seed(3)
    >>> first = drawn_by(generator, lambda: torch.rand(()))
    >>> first == drawn_by(generator, lambda: torch.rand(()))
    tensor(False)
    >>> first == drawn_by(generator.manual_seed(3), lambda: torch.rand(()))
    tensor(True)
    """
    before, given = torch.get_rng_state(), generator.get_state()
    found = run()
    if torch.equal(torch.get_rng_state(), before):
        return found
    torch.set_rng_state(before)
    generator.set_state(given)
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    with own_randomness(int(seed)):
        return run()
