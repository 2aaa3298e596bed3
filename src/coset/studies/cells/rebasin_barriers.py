"""Planted transpositions through training, losses along paths, and pairs to be explored."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coset.alignment.barrier import barrier
from coset.alignment.interpolation import interpolate
from coset.alignment.match import match
from coset.alignment.transpositions import permutation_with_transpositions
from coset.inference.ensemble import DeepEnsemble
from coset.studies.cells.data import pictures
from coset.studies.cells.networks import (
    accuracies,
    module_of,
    problem_of,
    recipe_of,
    seeded,
)
from coset.symmetry.discover import discover
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.stacking import stack, unstack


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """One part of the study."""
    parts = {"transpositions": _transpositions, "paths": _paths, "pairs": _pairs}
    return parts[str(parameters["part"])](parameters, seed)


def _only_permutations(module: nn.Module, example: Tensor) -> SymmetryGroup:
    """The paper's group: matching is by order alone, and scales stay as trained."""
    from dataclasses import replace

    return replace(discover(module, example), scalings=())


def _transpositions(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    data, module, problem = pictures(parameters), module_of(parameters), problem_of(parameters)
    group = _only_permutations(module, data.test[0][:1])
    (factor,) = group.permutations
    counts = [int(k) for k in parameters["counts"]]
    generator = seeded(seed, "transpositions")
    first = problem.network.initialise(generator)
    planted = [
        Element(
            {factor.name: permutation_with_transpositions(factor.size, k, generator=generator)}, {}
        )
        for k in counts
    ]
    starts = [first, *(group.act(element, first) for element in planted)]
    method = DeepEnsemble(members=len(starts), base=recipe_of(parameters))
    ends = unstack(method.fit(problem, start=stack(starts), generator=generator).stack)
    undone = [group.act(element, ends[0]) for element in planted]
    heights = {
        "trained": [_midpoint(module, ends[0], end, data.test) for end in ends[1:]],
        "undone": [
            _midpoint(module, moved, end, data.test)
            for moved, end in zip(undone, ends[1:], strict=True)
        ],
    }
    found_start = [match(group, w, to=first).transpositions for w in starts[1:]]
    found_end = [match(group, end, to=ends[0]).transpositions for end in ends[1:]]
    found_undone = [
        match(group, end, to=moved).transpositions
        for moved, end in zip(undone, ends[1:], strict=True)
    ]
    off = [abs(a - k) for a, k in zip(found_end, counts, strict=True)]
    matched = [match(group, end, to=ends[0]).distance ** 0.5 for end in ends[1:]]
    return {
        "counts": counts,
        "found_trained": found_end,
        "found_undone": found_undone,
        "distance_start": [_distance(starts[0], w) for w in starts[1:]],
        "distance_trained": [_distance(ends[0], w) for w in ends[1:]],
        "distance_undone": [_distance(m, w) for m, w in zip(undone, ends[1:], strict=True)],
        "distance_matched": matched,
        "barrier_trained": heights["trained"],
        "barrier_undone": heights["undone"],
        "difference_trained": sum(off) / len(off) / factor.size,
        "barrier_correlation": _correlation(counts, heights["trained"]),
        "barrier_undone_over_largest": heights["undone"][-1] / heights["trained"][-1],
        "control_found": max(abs(a - k) for a, k in zip(found_start, counts, strict=True)),
        "control_scrambled": _scrambled(group, ends[0], seed),
    }


def _scrambled(group: SymmetryGroup, weights: Weights, seed: int) -> float:
    """How far a network lies from its own scrambled copy after matching, relative to its size."""
    double = {name: tensor.double() for name, tensor in weights.items()}
    moved = group.act(group.sample(generator=seeded(seed, "element")), double)
    size = sum(float(tensor.square().sum()) for tensor in double.values())
    return float(match(group, moved, to=double).distance / size)


def _midpoint(module: nn.Module, a: Weights, b: Weights, test: tuple[Tensor, Tensor]) -> float:
    """Test loss halfway minus the mean of that at the ends."""
    path = barrier(module, a, b, test, points=3)
    return float(path.loss[1] - (path.loss[0] + path.loss[2]) / 2)


def _distance(a: Weights, b: Weights) -> float:
    return math.sqrt(sum(float((a[name] - b[name]).double().square().sum()) for name in a))


def _correlation(x: Sequence[float], y: Sequence[float]) -> float:
    return float(torch.corrcoef(torch.tensor([x, y], dtype=torch.float64))[0, 1])


def _paths(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    data, module, problem = pictures(parameters), module_of(parameters), problem_of(parameters)
    group = _only_permutations(module, data.test[0][:1])
    generator = seeded(seed, "paths")
    pair = stack([problem.network.initialise(generator) for _ in range(2)])
    points = torch.linspace(0, 1, int(parameters["points"]), dtype=torch.float64).tolist()
    checks = [int(epoch) for epoch in parameters["checks"]]
    plain, rebased = [], []
    for before, after in pairwise([0, *checks]):
        if after > before:
            base = recipe_of({**parameters, "epochs": after - before})
            method = DeepEnsemble(members=2, base=base)
            pair = method.fit(problem, start=pair, generator=generator).stack
        a, b = unstack(pair)
        moved = match(group, b, to=a).weights
        plain.append(barrier(module, a, b, data.test, points=len(points)))
        rebased.append(barrier(module, a, moved, data.test, points=len(points)))
    along = {
        name: [match(group, interpolate(a, end, t), to=a).transpositions for t in points]
        for name, end in (("plain", b), ("rebased", moved))
    }
    result = match(group, b, to=a)
    return {
        "map_plain": [path.loss.tolist() for path in plain],
        "map_plain_x": points,
        "map_plain_y": checks,
        "map_rebased": [path.loss.tolist() for path in rebased],
        "map_rebased_x": points,
        "map_rebased_y": checks,
        "points": points,
        "along_plain": along["plain"],
        "along_rebased": along["rebased"],
        "loss_plain": plain[-1].loss.tolist(),
        "loss_rebased": rebased[-1].loss.tolist(),
        "barrier_plain": plain[-1].height,
        "barrier_rebased": rebased[-1].height,
        "barrier_saved": plain[-1].height - rebased[-1].height,
        "barrier_left": rebased[-1].height / plain[-1].height,
        "transpositions_rise": _correlation(list(range(len(points))), along["plain"]),
        "distance": result.distance,
        "transpositions": result.transpositions,
        "control_scrambled": _scrambled(group, a, seed),
    }


def _pairs(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Every pair of a few networks: its permutation, factor by factor, and losses between the two.

    The losses are those after each choice of factors: choice ``c`` moves the second network by the
    permutations of the factors whose bit is set in ``c``.
    """
    data, module, problem = pictures(parameters), module_of(parameters), problem_of(parameters)
    group = _only_permutations(module, data.test[0][:1])
    method = DeepEnsemble(members=int(parameters["members"]), base=recipe_of(parameters))
    networks = unstack(method.fit(problem, generator=seeded(seed, "pairs")).stack)
    factors = group.permutations
    points = int(parameters["points"])
    answers = [[_answers(module, w, f.name, data.test[0]) for f in factors] for w in networks]
    pairs = list(combinations(range(len(networks)), 2))
    losses, errors, tables, alike = [], [], [], []
    for i, j in pairs:
        a, b = networks[i], networks[j]
        found = match(group, b, to=a).element.permutations
        chosen = [_chosen(group, found, choice) for choice in range(2 ** len(factors))]
        paths = [barrier(module, a, group.act(e, b), data.test, points=points) for e in chosen]
        losses.append([_rounded(path.loss) for path in paths])
        errors.append([_rounded(path.error) for path in paths])
        tables.append([found[factor.name].tolist() for factor in factors])
        alike.append([_alike(answers[i][k], answers[j][k]) for k in range(len(factors))])
    return {
        "networks": [f"network {k + 1}" for k in range(len(networks))],
        "accuracies": _rounded(accuracies(module, stack(networks), data)),
        "factors": [factor.name for factor in factors],
        "pairs": [list(pair) for pair in pairs],
        "points": torch.linspace(0, 1, points, dtype=torch.float64).tolist(),
        "losses": losses,
        "errors": errors,
        "permutations": tables,
        "alike": alike,
        "control_scrambled": _scrambled(group, networks[0], seed),
    }


def _alike(first: Tensor, second: Tensor) -> list[list[float]]:
    """Correlation of each unit of one network with each of the other, over the same pictures."""
    count = first.shape[1]
    every = torch.corrcoef(torch.cat([first, second], 1).T.double())
    return [_rounded(row) for row in every[:count, count:]]


def _chosen(group: SymmetryGroup, found: Mapping[str, Tensor], choice: int) -> Element:
    """The permutations of the factors whose bit is set, and the identity for the others."""
    return Element(
        {
            factor.name: found[factor.name]
            if choice >> place & 1
            else torch.arange(factor.size).expand_as(found[factor.name])
            for place, factor in enumerate(group.permutations)
        },
        {},
    )


def _answers(module: nn.Module, weights: Weights, layer: str, inputs: Tensor) -> Tensor:
    """What each unit of a layer gives for each input, ``(n, units)``."""
    kept = []
    hook = module.get_submodule(layer).register_forward_hook(lambda *call: kept.append(call[-1]))
    try:
        with torch.no_grad():
            functional_call(module, weights, (inputs,))
    finally:
        hook.remove()
    return torch.cat(kept)


def _rounded(values: Tensor) -> list[float]:
    """Numbers as they are read off a chart."""
    return [float(f"{value:.4g}") for value in values.tolist()]
