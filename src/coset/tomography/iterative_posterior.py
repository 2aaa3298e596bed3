"""The posterior of the image where there are too many readings for a Cholesky factor.

``K = A J S Jᵀ Aᵀ + noise`` is only multiplied with: one product is a projection back, a pass of
derivatives down and up the network, and a projection.  Conjugate gradients solve for the mean and
for all samples side by side, preconditioned by a Nyström sketch of ``K``.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.linalg import (
    FromFunctions,
    LinearOperator,
    LowRankPlusDiagonal,
    conjugate_gradients,
    inverse,
)
from coset.linalg.cholesky import cholesky
from coset.tomography.evidence import Scales
from coset.tomography.features import Features
from coset.tomography.observed import Observed
from coset.tomography.posterior import ImagePosterior
from coset.vocabulary import Progress

_RANK = 128
"""Columns of the sketch that preconditions."""

_TOLERANCE, _ITERATIONS = 1e-3, 400
"""Relative residual of the solutions, and iterations at most."""


def iterative_posterior(
    features: Features,
    observed: Observed,
    scales: Scales,
    *,
    samples: int,
    generator: torch.Generator,
    progress: Progress | None = None,
    tolerance: float = _TOLERANCE,
) -> ImagePosterior:
    """Mean and samples by Matheron's rule, variances from the samples.

    Args:
        features: The linearised network.
        observed: The readings.
        scales: Of prior and noise.
        samples: How many are drawn.
        generator: Draws them.
        progress: Told of the work done.
        tolerance: Relative residual of the solutions.
    """
    image = features.fitted.image.double().flatten()
    weights = [each.double() for each in features.weights()]
    before = image - features.push([each[None] for each in weights])[0].double()
    values, known = observed.gaussian(observed.operator.forward(image))
    noise = scales.noise * (torch.ones_like(values) if known is None else known)
    covariances = scales.covariances()

    # prior samples of weights and readings, and what is left for the noise to explain
    drawn = [
        torch.randn(samples, *w.shape, generator=generator, dtype=torch.float64) @ cholesky(c).mT
        for w, c in zip(weights, covariances, strict=True)
    ]
    prior = features.push(drawn).double()
    errors = torch.randn(samples, len(values), generator=generator, dtype=torch.float64)
    gaps = errors * noise.sqrt() - observed.operator.forward(prior)
    residual = values - observed.operator.forward(before)
    targets = torch.cat([residual[None], gaps]).mT.contiguous()

    count = 0

    def product(vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        nonlocal count
        count += 1
        if progress is not None:
            progress(count / (count + 20), f"product {count}")
        seen = observed.operator.forward(_spread(features, observed, covariances, vectors.mT))
        return seen.mT + noise[:, None] * vectors

    shape = (len(values), len(values))
    operator = FromFunctions(shape, product, product)
    sketch = nystrom(operator, noise, min(_RANK, len(values) // 2), generator)
    found = conjugate_gradients(
        operator,
        targets,
        preconditioner=inverse(sketch),
        tolerance=tolerance,
        iterations=_ITERATIONS,
    )
    if not found.converged:
        raise CosetError(
            f"got a residual of {found.residual:.1e} after {found.iterations} iterations of "
            "conjugate gradients",
            f"needed {tolerance:.0e}",
            "check the readings for outliers, or give more memory for exact algebra",
        )
    moved = _spread(features, observed, covariances, found.value.mT)
    mean = before + moved[0]
    draws = mean + prior + moved[1:]
    return ImagePosterior(mean, (draws - mean).square().mean(0), draws, None)


def _spread(
    features: Features,
    observed: Observed,
    covariances: Sequence[Float[Tensor, "taps taps"]],
    vectors: Float[Tensor, "k readings"],
) -> Float[Tensor, "k pixels"]:
    """``J S Jᵀ Aᵀ v``."""
    pulled = features.rows(observed.operator.adjoint(vectors))
    parts = [rows.double() @ c for rows, c in zip(pulled, covariances, strict=True)]
    return features.push(parts).double()


def nystrom(
    operator: LinearOperator, noise: Float[Tensor, " n"], rank: int, generator: torch.Generator
) -> LowRankPlusDiagonal:
    """``noise + Y (Ωᵀ Y)⁻¹ Yᵀ`` with ``Y = (K - noise) Ω`` of random orthonormal ``Ω``.

    >>> from coset.linalg import Dense
    >>> noise = torch.ones(3, dtype=torch.float64)
    >>> exact = Dense(torch.diag(torch.tensor([6.0, 1.0, 1.0], dtype=torch.float64)))
    >>> near = nystrom(exact, noise, 1, torch.Generator().manual_seed(0))
    >>> [round(value, 4) for value in near.matmat(torch.eye(3).double()).diagonal().tolist()]
    [6.0, 1.0, 1.0]
    """
    start = torch.randn(len(noise), rank, generator=generator, dtype=noise.dtype)
    start = torch.linalg.qr(start).Q
    seen = operator.matmat(start) - noise[:, None] * start
    # a shift as small as rounding keeps the factor real (Tropp et al. 2017)
    shift = 1e-10 * float(seen.norm())
    seen = seen + shift * start
    inner = start.mT @ seen
    factor = cholesky((inner + inner.mT) / 2)
    low = torch.linalg.solve_triangular(factor, seen.mT, upper=False).mT
    return LowRankPlusDiagonal(noise, low)
