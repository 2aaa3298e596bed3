"""Small tangent models, with everything about them in dense matrices."""

from dataclasses import dataclass

import torch
from torch import nn

from coset import Categorical, GaussianNoise, GaussianPrior, Problem, functionalise
from coset.bayes import as_batches
from coset.curvature.matrix_free import ConjugateGradients

EXACT = ConjugateGradients(tolerance=1e-6, iterations=2_000)


def perceptron(outputs=2):
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs))


def data(kind, rows=25):
    """Inputs and targets of a regression or of classes."""
    inputs = torch.randn(rows, 2)
    if kind == "regression":
        return inputs, torch.sin(inputs) + 0.2 * torch.randn(rows, 2)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def likelihood(kind):
    return GaussianNoise(0.3) if kind == "regression" else Categorical()


def trained(module, pair, given, steps=200):
    """The module after a little training."""
    optimiser = torch.optim.Adam(module.parameters(), lr=2e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        (-given.log_prob(module(pair[0]), pair[1])).mean().backward()
        optimiser.step()
    return module.requires_grad_(False)


def problem_of(module, pair, given, prior=1.0, batch_size=13):
    batches = as_batches(pair, batch_size=batch_size)
    return Problem(functionalise(module), given, GaussianPrior(prior), batches)


@dataclass(frozen=True)
class Dense:
    """``J``, ``B`` and ``H`` by their definitions."""

    jacobian: torch.Tensor  # n c p
    curvature: torch.Tensor  # p p

    def covariance(self, precision):
        size = len(self.curvature)
        precision = torch.as_tensor(precision).expand(size)
        return torch.linalg.inv(self.curvature + torch.diag(precision))


def dense_of(problem, inputs, outputs=None):
    network, layout = problem.network, problem.network.layout

    def apply(given):
        return network.apply({**network.weights, **given}, inputs)

    found = torch.func.jacrev(apply)(layout.restrict(network.weights))
    parts = [found[name] for name in layout.names]
    count = apply(layout.restrict(network.weights)).shape
    jacobian = torch.cat([part.reshape(*count, -1) for part in parts], dim=-1)
    at = apply(layout.restrict(network.weights)) if outputs is None else outputs
    hessian = problem.likelihood.hessian(at)
    return Dense(jacobian, torch.einsum("ncp,ncd,ndq->pq", jacobian, hessian, jacobian))
