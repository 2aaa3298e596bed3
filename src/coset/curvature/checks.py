"""Refuses what a network gives where it is no number."""

from torch import Tensor

from coset.errors import CosetError


def check_finite(outputs: Tensor) -> None:
    """Refuses outputs that are not numbers."""
    _check(outputs, "outputs")


def check_gradients(found: Tensor) -> None:
    """Refuses gradients, or sums of them, that are not numbers."""
    _check(found, "gradients")


def _check(found: Tensor, what: str) -> None:
    if not bool(found.isfinite().all()):
        raise CosetError(
            f"got {what} of the network that are not finite",
            "needed finite numbers at its own weights",
            "check the inputs and whether training diverged",
        )
