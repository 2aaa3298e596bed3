"""Gaussian posteriors over some tensors of a network, with a structured covariance."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from coset.linalg import LinearOperator, diagonal, root
from coset.posterior.draws import check_draws
from coset.posterior.families import FitReport
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.weights.network import Network


@dataclass(frozen=True)
class Gaussian:
    """``N(mean, covariance)`` over the tensors of ``mean``; the network keeps its others.

    Attributes:
        mean: One value for each covered tensor.
        covariance: An operator over the flat vector of them.
        layers: The tensors of each block of a block-diagonal covariance.
        report: What the fit found out.
        names: The tensors in the order of the flat vector; without, that of ``mean``.
        fixed: Other tensors that are the same in every draw, where they are not the network's own
            (batch-norm statistics of one of several modes).

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

    def __post_init__(self) -> None:
        if not self.names:  # a dictionary read from a file has lost its order
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
        std = self.layout.unflatten(diagonal(self.covariance).clamp_min(0).sqrt())
        fixed = {name: torch.zeros_like(tensor) for name, tensor in self.fixed.items()}
        return {**self.fixed, **self.mean}, {**fixed, **std}

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
        deviations: Tensor = self._root.matmat(noise.mT)
        fixed = {name: tensor.expand(draws, *tensor.shape) for name, tensor in self.fixed.items()}
        return self.layout.unflatten(centre + deviations.mT) | fixed
