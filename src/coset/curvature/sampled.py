"""Curvature from random combinations of the columns of the output Hessian's root."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.columns import pixels_note, with_random_columns
from coset.curvature.kfac import KFAC
from coset.curvature.measure import UNCUT, Curvature, Cuts, Measured
from coset.errors import require_counts, require_kinds
from coset.vocabulary import Weights
from coset.weights.layout import Layout


@dataclass(frozen=True)
class MonteCarloFisher:
    """Another curvature with a few random columns instead of one per class and pixel.

    The exact output Hessian is ``B = R Rᵀ``; with random signs ``e`` the one column ``R e`` has
    ``E (R e)(R e)ᵀ = B``, so that every quantity that is linear in ``B`` is unbiased: the full
    matrix, the diagonal, the two factors of KFAC and, because each pass draws anew, the diagonal
    in their eigenbasis.  Labels drawn from the predictions are right on average too,
    but those of a network that is sure of its data are its own most of the time, with a gradient
    of almost zero.  The cost of a pass is ``draws`` backward passes, however many classes and
    pixels there are.

    Of ``P`` pixels a column may take ``k``, drawn anew for each column without replacement: with
    ``√(P / k)`` times their signs it has the same expectation, and ``B`` is formed there alone.

    Attributes:
        inner: The structure: :class:`coset.KFAC`, :class:`coset.Full` or
            :class:`coset.DiagonalOnly`.
        draws: Random columns of each example.
        seed: Of signs and pixels; equal seeds give equal curvatures.
        pixels: Of each example and column.  ``None``: all, or as many as keep ``R`` of an example
            within four megabytes.

    >>> MonteCarloFisher(draws=2).inner == KFAC()
    True
    """

    inner: Curvature = field(default_factory=KFAC)
    draws: int = 1
    seed: int = 0
    pixels: int | None = None

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(draws=self.draws)
        if self.pixels is not None:
            require_counts(pixels=self.pixels)

    def build(
        self,
        problem: Problem,
        weights: Weights,
        layout: Layout,
        *,
        outputs: Tensor | None = None,
        previous: Measured | None = None,
        cuts: Cuts = UNCUT,
    ) -> Measured:
        """Measures the curvature."""
        again = previous is not None
        drawn = with_random_columns(problem, self.draws, self.seed, again=again, pixels=self.pixels)
        found = self.inner.build(
            drawn, weights, layout, outputs=outputs, previous=previous, cuts=cuts
        )
        note = pixels_note(problem.likelihood, problem.one_output(), self.pixels)
        return replace(found, notes=(*found.notes, note)) if note else found


def plain(curvature: Curvature) -> Curvature:
    """The structure without its sampling.

    >>> plain(MonteCarloFisher()) == KFAC()
    True
    """
    return curvature.inner if isinstance(curvature, MonteCarloFisher) else curvature


def uncorrected(curvature: Curvature) -> Curvature:
    """KFAC without its correction, sampled or not; any other structure as it is."""
    if isinstance(curvature, MonteCarloFisher):
        return replace(curvature, inner=uncorrected(curvature.inner))
    return replace(curvature, corrected=False) if isinstance(curvature, KFAC) else curvature
