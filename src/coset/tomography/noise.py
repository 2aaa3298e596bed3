"""Noise of readings: Gaussian on line integrals, or counted photons."""

from dataclasses import dataclass

from coset.errors import CosetError, require_kinds


@dataclass(frozen=True)
class Poisson:
    """Photons counted behind the object: ``counts ~ Poisson(photons · exp(-A x))``.

    Readings are then counts, not line integrals (Beer and Lambert).  With many photons their noise
    is less than what network and pixels get wrong, and error bars that knew of counting alone would
    be too narrow.  So the variance may be a multiple of that of counting, which the evidence sets.

    Args:
        photons: Expected count of a bin with nothing in the way.
        dispersion: The multiple; ``None``: it is learnt, and at least one.

    >>> Poisson(1e4).photons
    10000.0
    """

    photons: float
    dispersion: float | None = None

    def __post_init__(self) -> None:
        require_kinds(self)
        if not 0 < self.photons < float("inf"):
            raise CosetError(f"got photons={self.photons}", "needed a positive number")
        if self.dispersion is not None and not 0 < self.dispersion < float("inf"):
            raise CosetError(f"got dispersion={self.dispersion}", "needed a positive number")
