"""The exact Gauss-Newton matrix through samples, never formed (Antorán et al. 2023).

Posterior samples of the tangent model are minimisers of quadratic functions, which need products
with the Jacobian only.  The values here say how; :mod:`coset.inference.matrix_free` does it.
"""

from dataclasses import dataclass
from typing import Literal

from coset.curvature.kfac import KFAC
from coset.curvature.structures import DiagonalOnly
from coset.errors import CosetError, require_counts, require_kinds


@dataclass(frozen=True)
class ConjugateGradients:
    """Solves for all samples together with products over all data: exact, no rate to choose.

    Attributes:
        preconditioner: ``KFAC(…)``: its inverse, which makes iterations few;
            ``DiagonalOnly()``: an estimate of the diagonal from one pass, for layers too wide for
            Kronecker factors.  ``None``: the first where it knows every layer and none is wider
            than 2,000, else the second.
        tolerance: Of the residual relative to the data's part ``Jᵀ R e`` of the right-hand side,
            both in the norm of the preconditioner, which does not depend on the scale of the
            weights.
        iterations: At most so many; a system that is not solved by then is refused.
    """

    preconditioner: KFAC | DiagonalOnly | None = None
    tolerance: float = 1e-2
    iterations: int = 500

    def __post_init__(self) -> None:
        require_kinds(self)
        _positive(tolerance=self.tolerance, iterations=self.iterations)


@dataclass(frozen=True)
class StochasticDescent:
    """Nesterov's descent on batches, all samples and the mode side by side, and averaged.

    Steps are taken in coordinates in which the diagonal of the curvature is one, so that the rate
    has no unit.

    Attributes:
        epochs: Passes over the data in each step of the precisions.
        batch: Examples of a batch.
        rate: Length of a step; ``None``: one over the largest curvature of a batch, found by power
            iterations.  It falls linearly to a tenth.
        momentum: Share of the last step that is kept.
        averaged: Share of the steps, the last ones, whose mean is the answer.
    """

    epochs: int = 20
    batch: int = 100
    rate: float | None = None
    momentum: float = 0.9
    averaged: float = 0.5

    def __post_init__(self) -> None:
        require_kinds(self)
        _positive(epochs=self.epochs, batch=self.batch)
        if self.rate is not None:
            _positive(rate=self.rate)
        for name in ("momentum", "averaged"):
            if not 0 <= getattr(self, name) < 1:
                raise CosetError(f"got {name}={getattr(self, name)}", "needed 0 ≤ value < 1")


@dataclass(frozen=True)
class LanczosQuadrature:
    """The log-determinant of the evidence from random vectors, with its standard error.

    Attributes:
        probes: Random vectors.
        steps: Lanczos steps of each.
    """

    probes: int = 16
    steps: int = 30

    def __post_init__(self) -> None:
        require_counts(2, probes=self.probes)  # two, for the standard error
        require_counts(steps=self.steps)


@dataclass(frozen=True)
class MatrixFree:
    """The exact curvature for networks of any size, through posterior samples.

    Attributes:
        samples: How many are drawn; predictions and effective dimensions are means over them, so
            a variance has a relative standard error of ``√(2 / samples)``.
        solver: :class:`ConjugateGradients` or :class:`StochasticDescent`; ``None``: the first for
            up to 10,000 examples.
        features: ``"normalised"``: the g-prior, whose precision is that of its group times the
            diagonal of the curvature; it follows any rescaling of single weights.  ``"raw"``: the
            precision of the group itself.
        evidence: Whether and how the log evidence is found; it costs ``probes · steps`` products.
        memory: Bytes that the fit may take.

    >>> MatrixFree(samples=8).features
    'raw'
    """

    samples: int = 16
    solver: ConjugateGradients | StochasticDescent | None = None
    features: Literal["raw", "normalised"] = "raw"
    evidence: LanczosQuadrature | None = None
    memory: int = 16 << 30

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(samples=self.samples, memory=self.memory)

    def settled(self, examples: int) -> "ConjugateGradients | StochasticDescent":
        """The solver for so many examples."""
        if self.solver is not None:
            return self.solver
        return ConjugateGradients() if examples <= 10_000 else StochasticDescent()


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise CosetError(f"got {name}={value}", "needed a positive number")
