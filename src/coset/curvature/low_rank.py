"""The largest eigenvalues of the Gauss-Newton matrix."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.checks import check_gradients
from coset.curvature.measure import UNCUT, Cuts, Measured
from coset.curvature.tangent import tangent_of
from coset.errors import CosetError, require_counts
from coset.linalg import LinearOperator, LowRankPlusDiagonal, dense
from coset.vocabulary import Weights
from coset.weights.layout import Layout

_EXTRA, _ROUNDS = 8, 4
"""More directions than asked for, and how often they are multiplied: accuracy of the last ones."""


@dataclass(frozen=True)
class LowRank:
    """``Σ_k l_k u_k u_kᵀ`` with the ``rank`` largest eigenvalues; the prior acts everywhere.

    A small problem is decomposed exactly; a large one by subspace iteration with products of the
    matrix, which is never formed (Halko, Martinsson and Tropp 2011).

    Attributes:
        rank: How many eigenvalues.
        memory: Bytes that the eigenvectors may take.

    >>> LowRank(rank=10).rank
    10
    """

    rank: int
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        require_counts(rank=self.rank)

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
        size = 3 * 8 * layout.size * (self.rank + _EXTRA)
        if size > self.memory:
            raise CosetError(
                f"got {layout.size:,} weights and rank {self.rank}: {size / 2**30:.1f} GiB",
                f"needed at most {self.memory / 2**30:.1f} GiB",
                "use a smaller rank, or KFAC()",
            )
        tangent = tangent_of(problem, weights, layout)
        at = tangent.outputs if outputs is None else outputs
        zero = torch.zeros(layout.size, dtype=at.dtype, device=at.device)
        if tangent.is_small:
            assert tangent.jacobian.matrix is not None
            check_gradients(tangent.jacobian.matrix)
            exact = tangent.exact_curvature(at)
            values, vectors = _largest_of(exact, self.rank)
        else:
            product = tangent.product(at, zero)
            values, vectors = _subspace(product, min(self.rank, layout.size), at)
        # by rows, as a file holds it: products of the two layouts round differently
        factor = (vectors * values.clamp_min(0).sqrt()).double().contiguous()
        return Measured(LowRankPlusDiagonal(factor.new_zeros(layout.size), factor))


def _largest_of(operator: LinearOperator, rank: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of an operator that is small over weights or over outputs."""
    if isinstance(operator, LowRankPlusDiagonal):
        left, values, _ = torch.linalg.svd(operator.factor, full_matrices=False)
        return values[:rank].square(), left[:, :rank]
    values, vectors = torch.linalg.eigh(dense(operator, like=torch.zeros((), dtype=torch.float64)))
    return values[-rank:].flip(0), vectors[:, -rank:].flip(1)


def _subspace(operator: LinearOperator, rank: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Subspace iteration from directions that are the same in every call."""
    size = operator.shape[0]
    generator = torch.Generator().manual_seed(0)
    count = min(size, rank + _EXTRA)
    start = torch.randn(size, count, generator=generator, dtype=like.dtype).to(like.device)
    basis = torch.linalg.qr(start).Q
    for _ in range(_ROUNDS):
        product = operator.matmat(basis)
        check_gradients(product)
        basis = torch.linalg.qr(product).Q
    small = basis.mT @ operator.matmat(basis)
    values, vectors = torch.linalg.eigh((small + small.mT) / 2)
    return values[-rank:].flip(0), (basis @ vectors[:, -rank:]).flip(1)
