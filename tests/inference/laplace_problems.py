"""Small trained networks for the tests of Laplace."""

import torch
from torch import nn

from coset import KFAC, DiagonalOnly, Full

CURVATURES = [Full(), KFAC(), KFAC(corrected=False), DiagonalOnly()]


def label(recipe):
    return type(recipe).__name__ + ("" if getattr(recipe, "corrected", True) else " plain")


def train(module, inputs, targets, steps=300, rate=2e-2):
    """Adam on the whole batch, with running statistics settled at the end."""
    optimiser = torch.optim.Adam(module.parameters(), rate)
    classes = not targets.is_floating_point()
    for _ in range(steps):
        optimiser.zero_grad()
        outputs = module(inputs)
        if classes:
            loss = nn.functional.cross_entropy(outputs, targets)
        else:
            loss = (outputs - targets).square().mean()
        loss.backward()
        optimiser.step()
    return module.eval()


def wave(rows=30):
    inputs = torch.linspace(-2, 2, rows).unsqueeze(1)
    return inputs, torch.sin(2 * inputs) + 0.1 * torch.randn(rows, 1)


def blobs(rows=60):
    targets = torch.arange(rows) % 3
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return centres[targets] + torch.randn(rows, 2), targets


def regressor():
    return nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))


def classifier():
    return nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3))


def precision_of(predictor):
    """One a weight, in the order of the posterior."""
    layout = predictor.posterior.layout
    return predictor.prior.flat(layout, layout.flatten(predictor.posterior.mean))
