"""Cholesky factors of matrices that must be positive definite."""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError


def cholesky(matrix: Float[Tensor, "*k p p"]) -> Float[Tensor, "*k p p"]:
    """The Cholesky factor; a matrix that is not positive definite is refused."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    # an entry that is not finite spoils the pivot of its row, so the diagonal tells of all
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    if bool(failed.any()) or not bool(pivots.isfinite().all()):
        raise CosetError(
            "got a curvature plus prior precision that is not positive definite",
            "needed positive eigenvalues, which rounding has destroyed or the data never had",
            "use float64 weights and data, or a larger prior precision",
        )
    found: Tensor = factor
    return found
