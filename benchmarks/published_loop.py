"""The published way of matching two networks, to compare with."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coset.alignment.plans import matched_tensors
from coset.symmetry.group import SymmetryGroup

T = TypeVar("T")


def reference_loop(
    group: SymmetryGroup, weights: dict[str, Tensor], to: dict[str, Tensor], seed: int = 0
) -> dict[str, Tensor]:
    """The published coordinate descent, written plainly."""
    generator = torch.Generator().manual_seed(seed)
    names = matched_tensors(group)
    axes = {
        factor.name: [(s.tensor, s.digits[0]) for s in factor.sites if s.tensor in names]
        for factor in group.permutations
    }
    of_tensor: dict[str, list[tuple[str, int]]] = {}
    for factor, places in axes.items():
        for tensor, axis in places:
            of_tensor.setdefault(tensor, []).append((factor, axis))
    found = {factor.name: torch.arange(factor.size) for factor in group.permutations}
    for _ in range(100):
        improved = False
        for k in torch.randperm(len(axes), generator=generator).tolist():
            name = list(axes)[k]
            size = len(found[name])
            gain = torch.zeros(size, size)
            for tensor, axis in axes[name]:
                moved = weights[tensor]
                for other, position in of_tensor[tensor]:
                    if other != name:
                        moved = moved.index_select(position, found[other])
                left = to[tensor].movedim(axis, 0).reshape(size, -1)
                gain += left @ moved.movedim(axis, 0).reshape(size, -1).T
            _, columns = linear_sum_assignment(gain.numpy(), maximize=True)
            order, rows = torch.from_numpy(columns), torch.arange(size)
            before, after = gain[rows, found[name]].sum(), gain[rows, order].sum()
            improved = improved or bool(after > before + 1e-12)
            found[name] = order
        if not improved:
            break
    moved = dict(weights)
    for factor in group.permutations:
        for site in factor.sites:
            tensor = moved[site.tensor]
            moved[site.tensor] = tensor.index_select(site.digits[0], found[factor.name])
    return moved


def objective(names: frozenset[str], one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(float((one[n].double() * other[n].double()).sum()) for n in sorted(names))


def seconds_of(call: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result
