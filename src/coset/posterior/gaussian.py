"""Gaussian posteriors over some tensors of a network, with a structured covariance."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from coset.linalg import (
    Dense,
    Embedded,
    LinearOperator,
    LowRankPlusDiagonal,
    cast,
    diagonal,
    root,
)
from coset.posterior.draws import check_draws
from coset.posterior.families import FitReport, snapshots_of
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.weights.network import Network


@dataclass(frozen=True)
class Gaussian:
    """``N(mean, covariance)`` over the tensors of ``mean``.

    Attributes:
        mean: One value for each covered tensor.
        covariance: An operator over the flat vector of them.
        layers: The tensors of each block of a block-diagonal covariance.
        report: What the fit found out.
        names: The tensors in the order of the flat vector; without, that of ``mean``.
        fixed: Other tensors, the same in every draw (batch-norm statistics, layers outside of a
            subset).

    >>> from coset.linalg import Diagonal
    >>> posterior = Gaussian({"w": torch.zeros(2)}, Diagonal(torch.tensor([1.0, 4.0])))
    >>> posterior.sample(3, generator=torch.Generator().manual_seed(0))["w"].shape
    torch.Size([3, 2])
    """

    mean: Weights
    covariance: LinearOperator
    layers: tuple[tuple[str, ...], ...] = ()
    report: FitReport = FitReport()
    names: tuple[str, ...] = ()
    fixed: Weights = field(default_factory=dict)

    __repr__ = brief
    snapshots = property(snapshots_of)

    def __post_init__(self) -> None:
        if not self.names:  # dictionaries of older files have lost their order
            object.__setattr__(self, "names", tuple(self.mean))

    @cached_property
    def layout(self) -> Layout:
        """The covered tensors."""
        return Layout.of(self.mean, self.names)

    def centre(self, network: Network) -> Weights:
        """All weights of a network at the mean."""
        return {**network.weights, **self.fixed, **self.mean}

    def marginals(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of each entry; fixed tensors have none.

        >>> from coset.linalg import Diagonal
        >>> Gaussian({"w": torch.zeros(1)}, Diagonal(torch.tensor([4.0]))).marginals()
        ({'w': tensor([0.])}, {'w': tensor([2.])})
        """
        entries = diagonal(self.covariance).clamp_min(0).sqrt()
        std = self.layout.unflatten(entries.to(self.layout.flatten(self.mean)))
        fixed = {name: torch.zeros_like(tensor) for name, tensor in self.fixed.items()}
        return {**self.fixed, **self.mean}, {**fixed, **std}

    def widened(self, vectors: Tensor) -> Tensor:
        """Vectors in the type of the covariance, where that is wider than the weights'."""
        kept = _wide_type(self.covariance)
        return vectors if kept is None else vectors.to(kept)

    @cached_property
    def _root(self) -> LinearOperator:
        return root(self.covariance)

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """A stack of ``draws`` members: the covered tensors, and those that are fixed."""
        check_draws(draws, generator)
        centre = self.layout.flatten(self.mean)
        noise = torch.randn(
            draws,
            self._root.shape[1],
            generator=generator,
            dtype=centre.dtype,
            device=generator.device,
        ).to(centre.device)
        deviations = self._root.matmat(self.widened(noise.mT)).to(centre)
        fixed = {name: tensor.expand(draws, *tensor.shape) for name, tensor in self.fixed.items()}
        return self.layout.unflatten(centre + deviations.mT) | fixed


def stored(covariance: LinearOperator, dtype: torch.dtype) -> LinearOperator:
    """A covariance as a posterior keeps it: in a type of the weights where that does no harm.

    Products with matrices and low-rank terms subtract: where the data leave a millionth of the
    prior's variance, single precision would leave nothing of it.  Those stay as they are.  Tables
    of eigenvalues and factors of rows are sums of squares.

    >>> stored(Dense(torch.eye(1, dtype=torch.float64)), torch.float32).matrix.dtype
    torch.float64
    """
    return cast(covariance, dtype) if _wide_type(covariance) is None else covariance


def _wide_type(covariance: LinearOperator) -> torch.dtype | None:
    """The type of a covariance whose products subtract; nothing for others."""
    if isinstance(covariance, Embedded):
        return _wide_type(covariance.inner)
    if isinstance(covariance, Dense):
        return covariance.matrix.dtype
    return covariance.entries.dtype if isinstance(covariance, LowRankPlusDiagonal) else None
