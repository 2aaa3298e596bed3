"""Which angle to look from next: the one whose readings are expected to tell most about the image.

Readings ``y = A_a x + noise`` of an image with covariance ``C`` are expected to tell
``½ log |1 + A_a C A_aᵀ / noise²|`` nats (Lindley 1956).  For a Gaussian this does not depend on
what is read, so that several angles are chosen one after the other before any is measured.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError, require_counts
from coset.linalg.cholesky import cholesky
from coset.tomography.scans import Scan

_MEMORY = 4 << 30


@dataclass(frozen=True)
class ChosenAngles:
    """Angles in the order in which they were chosen.

    Attributes:
        order: Their places among the candidates.
        directions: The angles in radians.
        gains: What each is expected to tell beyond those before it, in nats.
        offered: What each candidate was expected to tell before any was chosen.
    """

    order: tuple[int, ...]
    directions: tuple[float, ...]
    gains: tuple[float, ...]
    offered: Float[Tensor, " candidates"]


def choose_angles(
    covariance: Float[Tensor, "pixels pixels"], candidates: Scan, count: int, *, noise: float
) -> ChosenAngles:
    """The angles that are expected to tell most, one after the other.

    With the covariance ``K`` of all candidates' readings, each choice adds the rows
    ``W_a = L⁻¹ (K_a - W[:, a]ᵀ W)``, ``L Lᵀ = K_aa - W[:, a]ᵀ W[:, a] + noise²``, to one
    triangular factor; what a candidate ``b`` is still expected to tell follows from
    ``K_bb - W[:, b]ᵀ W[:, b]``.

    Args:
        covariance: Of the image, given what was read so far, as ``Reconstruction.covariance``.
        candidates: A scan from all angles that may be chosen.
        count: How many are chosen.
        noise: Standard deviation of a reading's noise.

    >>> from coset.tomography import ParallelBeam
    >>> wide = torch.ones(4, 4) + 0.01 * torch.eye(4)  # all pixels alike: any angle tells it
    >>> chosen = choose_angles(wide, ParallelBeam(2, 8, 3), 2, noise=0.1)
    >>> chosen.gains[0] > 3 * chosen.gains[1]
    True
    """
    angles, bins = len(candidates.directions), candidates.bins
    pixels = candidates.size**2
    require_counts(count=count)
    if tuple(covariance.shape) != (pixels, pixels) or not noise > 0 or count > angles:
        raise CosetError(
            f"got a covariance of shape {tuple(covariance.shape)}, noise={noise} and count={count}",
            f"needed a covariance of {pixels} pixels, positive noise and at most {angles} angles",
            "take candidates of the image's size, and covariance and noise of its reconstruction",
        )
    rows = angles * bins
    needed = 8 * (rows * (pixels + rows) + count * bins * rows)
    if needed > _MEMORY:
        raise CosetError(
            f"got {angles} candidates with {bins} bins each, whose covariance takes "
            f"{needed / 2**30:.1f} GiB",
            f"needed at most {_MEMORY / 2**30:.0f} GiB",
            "offer fewer angles, or bins that are wider",
        )
    operator = candidates.operator
    between = operator.forward(operator.forward(covariance.double()).mT.contiguous())
    blocks = between.reshape(angles, bins, angles, bins)
    own = torch.stack([blocks[a, :, a] for a in range(angles)])
    own.diagonal(dim1=1, dim2=2).add_(noise**2)

    factor = between.new_zeros(0, rows)
    order: list[int] = []
    gains: list[float] = []
    offered = _expected(own, noise)
    left = offered.clone()
    for _ in range(count):
        chosen = int(left.argmax())
        order.append(chosen)
        gains.append(float(left[chosen]))
        here = slice(chosen * bins, (chosen + 1) * bins)
        rest = between[here] - factor[:, here].mT @ factor
        added = torch.linalg.solve_triangular(cholesky(own[chosen]), rest, upper=False)
        factor = torch.cat([factor, added])
        seen = added.reshape(bins, angles, bins)
        own -= torch.einsum("kai,kaj->aij", seen, seen)
        own[order] = noise**2 * torch.eye(bins, dtype=own.dtype)  # nobody looks twice
        left = _expected(own, noise)
        left[order] = -math.inf
    directions = tuple(candidates.directions[place] for place in order)
    return ChosenAngles(tuple(order), directions, tuple(gains), offered)


def _expected(own: Float[Tensor, "angles bins bins"], noise: float) -> Float[Tensor, " angles"]:
    """What the readings of each angle are expected to tell, in nats."""
    bins = own.shape[-1]
    factors = torch.linalg.cholesky(own)
    found: Tensor = factors.diagonal(dim1=1, dim2=2).log().sum(1) - bins * math.log(noise)
    return found
