"""What matching is checked against: brute force, and the published loop in plain code."""

import itertools

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from coset import discover
from coset.symmetry.elements import Element


def network(*sizes, activation=nn.GELU, seed=0):
    """A perceptron in double precision; GELU has no scalings, so only permutations are left."""
    torch.manual_seed(seed)
    layers = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1]).double()


def random_weights(like, generator):
    return {
        n: torch.randn(w.shape, generator=generator, dtype=torch.float64) for n, w in like.items()
    }


def group_of(module, *shape):
    return discover(module, torch.zeros(1, *shape, dtype=torch.float64))


def permutations_only(group, element):
    """The element without its scales."""
    return Element(element.permutations, group.identity().scales)


def brute_force(group, weights, to):
    """The largest inner product over all permutations of all (top-level) factors."""
    factors = group.permutations
    best = -torch.inf
    for tables in itertools.product(
        *(itertools.permutations(range(factor.size)) for factor in factors)
    ):
        element = Element(
            {f.name: torch.tensor(t) for f, t in zip(factors, tables, strict=True)},
            group.identity().scales,
        )
        best = max(best, inner(group.act(element, weights), to))
    return best


def inner(one, other):
    return float(sum((one[name].double() * other[name].double()).sum() for name in one))


class ResidualStream(nn.Module):
    """The planted table's network: a stream of width d, blocks of width h that write to it."""

    def __init__(self, inputs, stream, hidden, outputs, blocks):
        super().__init__()
        self.embed = nn.Linear(inputs, stream)
        self.up = nn.ModuleList(nn.Linear(stream, hidden) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(hidden, stream) for _ in range(blocks))
        self.head = nn.Linear(stream, outputs)

    def forward(self, x):
        x = self.embed(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(nn.functional.gelu(up(x)))
        return self.head(x)


def plain_loop(group, weights, to, generator, sweeps=100):
    """Identity start, random order, every factor in every sweep: the published loop.

    Returns:
        The inner product reached, over all tensors.
    """
    element = group.identity()
    names = [factor.name for factor in group.permutations]
    for _ in range(sweeps):
        improved = False
        for k in torch.randperm(len(names), generator=generator).tolist():
            factor = group.permutations[k]
            others = {**element.permutations, factor.name: torch.arange(factor.size)}
            moved = group.act(Element(others, element.scales), weights)
            gain = torch.zeros(factor.size, factor.size, dtype=torch.float64)
            for site in factor.sites:
                (axis,) = site.digits  # plain layers: digits are axes
                left = to[site.tensor].movedim(axis, 0).reshape(factor.size, -1).double()
                right = moved[site.tensor].movedim(axis, 0).reshape(factor.size, -1).double()
                gain += left @ right.T
            rows, columns = linear_sum_assignment(gain.numpy(), maximize=True)
            old = element.permutations[factor.name]
            before = float(gain[torch.arange(factor.size), old].sum())
            after = float(gain[rows, columns].sum())
            if after > before + 1e-12:
                improved = True
                tables = {**element.permutations, factor.name: torch.from_numpy(columns)}
                element = Element(tables, element.scales)
        if not improved:
            break
    return inner(group.act(element, weights), to)
