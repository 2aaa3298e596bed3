"""Noise of readings: Gaussian on line integrals, or counted photons."""

from dataclasses import dataclass

from coset.errors import CosetError, require_kinds


@dataclass(frozen=True)
class Poisson:
    """Photons counted behind the object: ``counts ~ Poisson(photons · exp(-A x))``.

    Readings are then counts, not line integrals (Beer and Lambert).

    Args:
        photons: Expected count of a bin with nothing in the way.

    >>> Poisson(1e4).photons
    10000.0
    """

    photons: float

    def __post_init__(self) -> None:
        require_kinds(self)
        if not 0 < self.photons < float("inf"):
            raise CosetError(f"got photons={self.photons}", "needed a positive number")
