"""Problems with known posteriors, and what one may expect of finitely many draws of them."""

import torch
from torch import nn

from coset.bayes import Categorical, GaussianNoise, GaussianPrior, Problem, as_batches
from coset.weights import functionalise


def linear_gaussian(rows=40, noise=0.5, precision=1.0, seed=0):
    """A linear model with Gaussian noise, and mean and covariance of its exact posterior.

    With design ``X`` (a last column of ones for the bias) the posterior is Gaussian with precision
    ``Xᵀ X / noise² + precision`` and mean ``Σ Xᵀ y / noise²``.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    truth = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    targets = inputs @ truth + 0.3
    targets = targets + noise * torch.randn(targets.shape, generator=generator, dtype=torch.float64)
    problem = Problem(
        functionalise(nn.Linear(2, 1).double()),
        GaussianNoise(noise),
        GaussianPrior(precision),
        as_batches((inputs, targets)),
    )
    design = torch.cat([inputs, torch.ones_like(targets)], dim=1)
    inverse = design.T @ design / noise**2 + precision * torch.eye(3, dtype=torch.float64)
    covariance = torch.linalg.inv(inverse)
    return problem, (covariance @ design.T @ targets / noise**2).flatten(), covariance


def logistic(rows=60, seed=0):
    """Two classes by a linear model with two outputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    targets = (inputs.sum(1) + torch.randn(rows, generator=generator) > 0).long()
    module = nn.Linear(2, 2).double()
    return Problem(
        functionalise(module), Categorical(), GaussianPrior(1.0), as_batches((inputs, targets))
    )


def deviations(samples, mean, covariance):
    """Largest error of means in standard deviations, and of the whitened covariance."""
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, (samples - mean).T, upper=False).T
    spread = white.T.cov() - torch.eye(len(mean), dtype=mean.dtype)
    return float(white.mean(0).abs().max()), float(spread.abs().max())
