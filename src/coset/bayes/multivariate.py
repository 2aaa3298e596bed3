"""Gaussian noise that differs from output to output, or is correlated between them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.batches import Batches
from coset.bayes.likelihood import GaussianNoise, LinkName, UnknownNoise
from coset.bayes.problem import Problem
from coset.errors import CosetError, require_kind
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.inputs import shape_rows


@dataclass(frozen=True)
class MultivariateNoise:
    """Targets are outputs plus noise of any covariance: ``log p(y | f) = log N(y; f, C)``.

    Attributes:
        covariance: ``C``, of the ``c`` outputs of an example, or of a pixel.  ``None``: learnt by
            :class:`coset.Laplace`.
        diagonal: Whether a learnt covariance is: noise of its own size for each output.

    >>> noise = MultivariateNoise(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> noise.log_prob(torch.zeros(1, 2), torch.zeros(1, 2)).exp() * 2 * math.pi  # 1 / √3
    tensor([0.5774])
    """

    link: ClassVar[LinkName] = "linear"
    is_concave: ClassVar[bool] = True
    has_constant_curvature: ClassVar[bool] = True
    covariance: Float[Tensor, "c c"] | None = None
    diagonal: bool = False

    def __post_init__(self) -> None:
        if self.covariance is None:
            return
        matrix = self.covariance
        require_kind(Tensor, covariance=matrix)
        square = matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1]
        if not square or not bool(torch.allclose(matrix, matrix.mT, rtol=1e-4)):
            raise CosetError(
                f"got a noise covariance of shape {tuple(matrix.shape)}",
                "needed a symmetric matrix, one row an output",
            )
        if bool(torch.linalg.cholesky_ex(matrix.detach())[1]):
            raise CosetError(
                "got a noise covariance that is not positive definite",
                "needed positive variances in every direction",
            )

    @property
    def unknown_noise(self) -> UnknownNoise | None:
        """The covariance, where none is given."""
        return "covariance" if self.covariance is None else None

    def weight(self, targets: Tensor) -> None:
        """All targets count alike."""
        return

    def factor(self, like: Tensor) -> Float[Tensor, "c c"]:
        """The Cholesky factor ``L`` of the covariance, in the type of the outputs."""
        if self.covariance is None:
            raise CosetError(
                "got noise of unknown covariance",
                "needed the covariance here",
                "give MultivariateNoise(covariance=…), or let coset.fit learn it with Laplace()",
            )
        if len(self.covariance) != like.shape[1]:
            raise CosetError(
                f"got the covariance of {len(self.covariance)} outputs",
                f"needed {like.shape[1]}, as the network has",
            )
        found: Tensor = torch.linalg.cholesky(self.covariance.to(like))
        return found

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Sum over pixels of the Gaussian log-densities."""
        factor = self.factor(outputs)
        scores = whiten(_like(outputs, targets) - outputs, factor)
        volume = factor.diagonal().log().sum() + outputs.shape[1] * math.log(2 * math.pi) / 2
        squares = scores.square().sum(1) / 2 + volume
        return -(squares.flatten(1).sum(1) if squares.dim() > 1 else squares)

    def hessian(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``C⁻¹``, constant."""
        root = self.hessian_root(outputs)
        return root @ root.mT

    def hessian_root(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``L⁻ᵀ``."""
        factor = self.factor(outputs)
        eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        root: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False).mT
        return root.expand(len(outputs), *outputs.shape[2:], *root.shape)

    def mean(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs

    def noise_variance(self, outputs: Tensor) -> Tensor:
        """The diagonal of the covariance."""
        variance = self.factor(outputs).square().sum(1)
        return variance.reshape(-1, *[1] * (outputs.dim() - 2)).expand_as(outputs)

    def estimate(
        self, residuals: Float[Tensor, "k c"], spread: Float[Tensor, "c c"]
    ) -> "MultivariateNoise":
        """The next guess from residuals ``r`` and the covariance ``S`` that the weights leave open.

        Wanted is ``C = R + S`` with ``R = mean(r rᵀ)``, but ``S`` grows with ``C``.  With a guess
        ``C = L Lᵀ`` at hand the share ``W = L⁻¹ S L⁻ᵀ`` is kept instead:
        ``C ← L (I - W)^-½ L⁻¹ R L⁻ᵀ (I - W)^-½ Lᵀ``, for one output MacKay's ``R / (1 - W)``.
        """
        found = residuals.mT @ residuals / len(residuals)
        if self.diagonal:
            found, spread = (torch.diag(part.diagonal()) for part in (found, spread))
        eye = torch.eye(len(found), dtype=found.dtype, device=found.device)
        if self.covariance is not None:
            factor = torch.linalg.cholesky(self.covariance.to(found))
            share = whiten(whiten(spread, factor).mT, factor)
            values, vectors = torch.linalg.eigh((share + share.mT) / 2)
            grown = (vectors * (1 - values.clamp(0, 0.95)).rsqrt()) @ vectors.mT
            side = factor @ grown @ torch.linalg.solve_triangular(factor, eye, upper=False)
            found = side @ found @ side.mT
        floor = 1e-12 * float(found.diagonal().mean().clamp_min(1e-12))
        return replace(self, covariance=(found + found.mT) / 2 + floor * eye)

    def at_least(self, residuals: Float[Tensor, "k c"]) -> "MultivariateNoise":
        """The smallest noise above this one in which residuals have a second moment of one or less.

        With ``C = L Lᵀ`` it is ``L max(L⁻¹ R L⁻ᵀ, 1) Lᵀ`` by eigenvalues, ``R = mean(r rᵀ)``.
        """
        found = residuals.mT @ residuals / len(residuals)
        if self.diagonal:
            found = torch.diag(found.diagonal())
        factor = self.factor(found)
        values, vectors = torch.linalg.eigh(whiten(whiten(found, factor).mT, factor))
        side = factor @ (vectors * values.clamp_min(1).sqrt())
        return replace(self, covariance=side @ side.mT)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets are finite numbers in the shape of the outputs."""
        GaussianNoise(1.0).check(outputs, targets)
        if self.covariance is not None:
            self.factor(outputs)


def whiten(values: Tensor, factor: Float[Tensor, "c c"]) -> Tensor:
    """``L⁻¹`` along the axis of the outputs.

    >>> whiten(torch.tensor([[2.0, 6.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    tensor([[1., 5.]])
    """
    flat = values.movedim(1, 0).flatten(1)
    solved = torch.linalg.solve_triangular(factor, flat, upper=False)
    white: Tensor = solved.reshape(values.movedim(1, 0).shape).movedim(0, 1)
    return white


def whitened(problem: Problem, factor: Float[Tensor, "c c"]) -> Problem:
    """The same problem in outputs whose noise is one: ``L⁻¹ f`` and ``L⁻¹ y``."""
    network = problem.network
    back: Tensor = torch.linalg.inv(factor)

    def apply(weights: Weights, inputs: Inputs) -> Tensor:
        outputs: Tensor = network.apply(weights, inputs)
        return (outputs.movedim(1, -1) @ back.mT).movedim(-1, 1)

    own = replace(network, apply=apply)
    train = _WhiteBatches(problem.train, factor)
    return replace(problem, network=own, likelihood=GaussianNoise(1.0), train=train)


@dataclass(frozen=True)
class _WhiteBatches:
    """Data with whitened targets."""

    inner: Batches
    factor: Float[Tensor, "c c"]

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.inner.size

    @property
    def batch_size(self) -> int:
        """Examples in a batch."""
        return self.inner.batch_size

    def __iter__(self) -> Iterator[Batch]:
        """One pass."""
        for inputs, targets in self.inner:
            yield inputs, self._white(targets)

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers."""
        inputs, targets = self.inner.rows(index.flatten())
        white = self._white(targets)
        return (
            shape_rows(inputs, index.shape),
            white.reshape(*index.shape, *white.shape[1:]),
        )

    def _white(self, targets: Tensor) -> Tensor:
        targets = targets.to(self.factor)
        if len(self.factor) == 1:  # one output, whose axis targets may leave out
            return targets / self.factor.squeeze()
        return whiten(targets, self.factor)


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets.reshape(outputs.shape).to(outputs.dtype)
