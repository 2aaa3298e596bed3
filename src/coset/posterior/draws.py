"""What is asked of everything that draws."""

import torch

from coset.errors import CosetError, require_counts, told


def require_generator(generator: object) -> None:
    """Refuses what is easily written in the place of a generator, such as a seed."""
    if not isinstance(generator, torch.Generator):
        raise CosetError(
            f"got generator={told(generator)}",
            "needed a torch.Generator",
            "write generator=torch.Generator().manual_seed(…)",
        )


def check_draws(draws: int, generator: torch.Generator) -> None:
    """Refuses numbers of draws that are none, and what is no generator.

    >>> check_draws(0, torch.Generator())
    Traceback (most recent call last):
    coset.errors.CosetError: got draws=0; needed a whole number, at least 1
    """
    require_counts(draws=draws)
    require_generator(generator)
