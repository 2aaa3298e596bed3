"""Gaussians with a diagonal and, if one wants, a few shared directions."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.posterior.draws import check_draws
from coset.posterior.families import FitReport, snapshots_of
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout


@dataclass(frozen=True)
class LowRankGaussian:
    """``N(mean, diag(std²) + Σ_r f_r f_rᵀ)`` over all tensors together.

    A draw is ``mean + std ⊙ ε + Σ_r z_r f_r``: the noise ``z`` is one vector for all tensors, so
    that the directions keep their covariances between layers.

    Attributes:
        mean: The mean of each tensor.
        std: Standard deviation of each entry, in the shapes of ``mean``.
        factors: Directions ``f``, in the shapes of ``mean`` after an axis of length ``r``; empty
            for a diagonal Gaussian.
        fixed: Tensors that are the same in every draw (batch-norm statistics).
        report: What the fit found out.

    >>> mean, std = {"w": torch.zeros(2)}, {"w": torch.zeros(2)}
    >>> line = LowRankGaussian(mean, std, {"w": torch.tensor([[1.0, 2.0]])})
    >>> draw = line.sample(1, generator=torch.Generator().manual_seed(0))["w"][0]
    >>> bool(draw[1] == 2 * draw[0])
    True
    """

    mean: Weights
    std: Weights
    factors: Weights = field(default_factory=dict)
    fixed: Weights = field(default_factory=dict)
    report: FitReport = FitReport()

    __repr__ = brief
    snapshots = property(snapshots_of)

    @cached_property
    def layout(self) -> Layout:
        """The tensors of a draw."""
        return Layout.of({**self.mean, **self.fixed})

    @cached_property
    def _covered(self) -> Layout:
        # in an order of its own, so that a saved posterior draws the same numbers
        return Layout.of(self.mean, sorted(self.mean))

    @property
    def rank(self) -> int:
        """Number of directions."""
        return len(next(iter(self.factors.values()))) if self.factors else 0

    def marginals(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of each entry, ``√(std² + Σ_r f_r²)``; fixed ones have none.

        >>> line = LowRankGaussian({"w": torch.zeros(1)}, {"w": torch.tensor([3.0])})
        >>> LowRankGaussian(line.mean, line.std, {"w": torch.tensor([[4.0]])}).marginals()[1]
        {'w': tensor([5.])}
        """
        variance = {name: tensor.square() for name, tensor in self.std.items()}
        for name, directions in self.factors.items():
            variance[name] = variance[name] + directions.square().sum(0)
        fixed = {name: torch.zeros_like(tensor) for name, tensor in self.fixed.items()}
        std = {name: tensor.sqrt() for name, tensor in variance.items()}
        return {**self.fixed, **self.mean}, {**fixed, **std}

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """A stack of ``draws`` members."""
        check_draws(draws, generator)
        centre, std = self._flat(self.mean), self._flat(self.std)
        noise = _normal(centre, (draws, len(centre)), generator)
        flat = torch.addcmul(centre, std, noise)
        if self.rank:
            flat = flat + _normal(centre, (draws, self.rank), generator) @ self._flat(self.factors)
        fixed = {name: tensor.expand(draws, *tensor.shape) for name, tensor in self.fixed.items()}
        return self._covered.unflatten(flat) | fixed

    def log_prob(self, weights: Weights) -> Float[Tensor, " m"]:
        """Log-density of each member of a stack, by the matrix inversion lemma."""
        std = self._flat(self.std)
        if not bool((std > 0).all()):
            raise CosetError(
                "got a Gaussian with standard deviations of zero",
                "needed positive ones for a density",
            )
        white = (self._flat(weights) - self._flat(self.mean)) / std
        squares = white.square().sum(-1)
        log_volume = std.log().sum()
        if self.rank:
            scaled = self._flat(self.factors) / std
            inner = torch.eye(self.rank, dtype=std.dtype, device=std.device) + scaled @ scaled.T
            lower = torch.linalg.cholesky(inner)
            within = torch.linalg.solve_triangular(lower, scaled @ white.T, upper=False)
            squares = squares - within.square().sum(0)
            log_volume = log_volume + lower.diagonal().log().sum()
        log_density: Tensor = -squares / 2 - log_volume - len(std) * math.log(2 * math.pi) / 2
        return log_density

    def _flat(self, weights: Weights) -> Float[Tensor, "*m p"]:
        return self._covered.flatten(weights)


def _normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
