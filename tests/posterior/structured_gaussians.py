"""Gaussians around small networks, with each structure of the covariance."""

import torch
from torch import nn

from coset import Gaussian
from coset.curvature.measure import UNCUT
from coset.linalg import inverse, shift


def posterior_of(problem, recipe, rows=False, cuts=UNCUT):
    network = problem.network
    found = recipe.build(problem, network.weights, network.layout, cuts=cuts)
    precision = torch.full((network.layout.size,), 0.3)
    if rows:  # one precision a row of the first layer
        first = found.operator.order[: found.operator.sizes[0]]
        shape = found.operator.blocks[0].table.shape
        each = torch.rand(shape[0] * shape[1]).repeat_interleave(shape[2]) + 0.1
        precision[first] = each
    covariance = inverse(shift(found.operator, precision))
    return Gaussian(network.layout.restrict(network.weights), covariance, found.layers)


def pictures(channels):
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, channels, 3)
    ), torch.randn(3, 1, 5, 4)
