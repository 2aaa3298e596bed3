"""The group of every test network, found once in a session."""

from dataclasses import dataclass
from functools import cache

import torch
from tests.symmetry.architectures.registry import Case, Example
from tests.symmetry.cases import CASES
from torch import nn

from coset.symmetry.discover import discover
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.network import weights_of

BY_NAME = {case.name: case for case in CASES}
NAMES = tuple(BY_NAME)


@dataclass(frozen=True)
class Discovered:
    """A test network with its group and its weights in single and double precision."""

    case: Case
    module: nn.Module
    example: Example
    group: SymmetryGroup
    weights: Weights
    double: Weights


@cache
def discovered(name: str) -> Discovered:
    case = BY_NAME[name]
    module, example = case.factory(), case.example()
    weights = weights_of(module)
    double = {key: tensor.double() for key, tensor in weights.items()}
    return Discovered(case, module, example, discover(module, example), weights, double)


def repeated(weights: Weights, members: int) -> Weights:
    """A stack of equal members."""
    return {name: tensor.expand(members, *tensor.shape).clone() for name, tensor in weights.items()}


def distance(first: Weights, second: Weights) -> float:
    """The largest relative difference of two sets of weights (one may be a stack)."""
    assert first.keys() == second.keys()
    return max(
        float(((first[k] - second[k]).abs() / (1 + second[k].abs())).max())
        if first[k].numel()
        else 0.0
        for k in first
    )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
