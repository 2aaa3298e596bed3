"""From a module and an example to its symmetry group."""

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.symmetry.action import region
from coset.symmetry.by_hand import group_by_hand
from coset.symmetry.check import (
    alone,
    element_error,
    read_entries,
)
from coset.symmetry.elements import (
    Element,
    PermutationFactor,
    Pinned,
    ScalingFactor,
    Site,
)
from coset.symmetry.factors import Factory, pinned_axes
from coset.symmetry.graph import Example, Graph
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.invariances import find_invariances
from coset.symmetry.points import general_position, random_inputs
from coset.symmetry.reasons import axis_reasons
from coset.symmetry.scales import Search, find_scalings
from coset.symmetry.tracing import trace
from coset.symmetry.walk import Structure, settle
from coset.symmetry.written import FactorByHand
from coset.vocabulary import Weights
from coset.weights.network import weights_of

TOLERANCE = 1e-9

_MOST_DRAWS = 3  # of random weights, to see which parts are read

# Groups by graph: tracing recognises an architecture it has seen, so its group is found once.
_KNOWN: WeakKeyDictionary[Graph, SymmetryGroup] = WeakKeyDictionary()


def discover(
    module: nn.Module, example: Example, *, groups: Sequence[FactorByHand] | None = None
) -> SymmetryGroup:
    """Finds the permutations, scalings and scale invariances of a module.

    Args:
        module: Any module that can be traced in evaluation mode.
        example: Its input, a tensor or a tuple of tensors; only shapes matter.
        groups: For modules that cannot be traced: factors written by hand
            (``PermutationByHand``, ``ScalingByHand``), checked like the found ones.

    Returns:
        The group, checked in double precision at random weights: a factor that fails alone is
        pinned and reported.

    Raises:
        CosetError: If the module cannot be traced, or the factors do not hold together.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> [factor.size for factor in discover(net, torch.zeros(1, 3)).permutations]
    [5]
    """
    if groups is not None:
        return group_by_hand(module, example, groups)
    inputs = example if isinstance(example, tuple) else (example,)
    graph = trace(module, example)
    known = _KNOWN.get(graph)
    if known is None:
        structure = settle(graph)
        weights = {name: tensor.cpu() for name, tensor in weights_of(module).items()}
        weights = {name: weights[name] for name in graph.parameters} | weights
        group = _analyse(structure, weights, inputs)
        known = _KNOWN[graph] = _verified(graph, group, weights, inputs)
    return known


def _analyse(structure: Structure, weights: Weights, inputs: Sequence[Tensor]) -> SymmetryGroup:
    magnitude, sign = structure.equations("magnitude"), structure.equations("sign")
    positive = {structure.parts[structure.unknowns[u].part].tensor for u in magnitude.shifts}
    unread = _unread(structure, weights, inputs, positive)
    search = Search(structure, magnitude, sign)
    factory = Factory(structure, unread)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    pinned = pinned_axes(structure, unread)
    idle = [name for name in weights if name not in structure.graph.parameters]
    pinned += [Pinned(name, None, "graph", "never read by the output") for name in idle]
    permutations = tuple(factory.permutations())
    return SymmetryGroup(
        permutations=permutations,
        scalings=tuple(factory.scalings(find_scalings(search), magnitude.shifts)),
        invariances=tuple(find_invariances(structure, unread)),
        pinned=tuple(pinned),
        shapes=shapes,
        aliases={n: m for n, m in structure.graph.aliases.items() if m in shapes},
        reasons=axis_reasons(structure, factory, permutations, unread),
    )


def _unread(
    structure: Structure, weights: Weights, inputs: Sequence[Tensor], positive: set[str]
) -> set[int]:
    """Parts of parameters without influence on the output."""
    generator = torch.Generator().manual_seed(1)
    unread = set(range(len(structure.parts)))
    for _ in range(_MOST_DRAWS):
        seen = read_entries(structure.graph, weights, inputs, positive, generator=generator)
        for i in list(unread):
            part = structure.parts[i]
            view = tuple(structure.atoms.size[atom] for atom in part.digits)
            mask = region(seen[part.tensor], 0, Site(part.tensor, part.block, view, ()))
            if bool(mask.any()):
                unread.discard(i)
        if not unread:
            break
    return unread


def _verified(
    graph: Graph, group: SymmetryGroup, weights: Weights, inputs: Sequence[Tensor]
) -> SymmetryGroup:
    """Checks random elements; drops factors that fail alone, raises if only the whole fails."""
    generator = torch.Generator().manual_seed(2)
    positive = {s.tensor for f in group.scalings for s in f.sites if s.shift}
    positive |= {name for name in weights if name.endswith("running_var")}
    point = general_position(weights, positive, generator=generator)
    probe = random_inputs(inputs, generator=generator)
    if _passes(graph, group, point, probe, group.sample(generator=generator)):
        return group
    kept_permutations: list[PermutationFactor] = []
    kept_scalings: list[ScalingFactor] = []
    failed: list[Pinned] = []
    factors: list[PermutationFactor | ScalingFactor] = [*group.permutations, *group.scalings]
    for factor in factors:
        element = alone(group, factor.name, group.sample(generator=generator))
        if set(factor.within) & {pin.operation for pin in failed}:
            passed = False
        else:
            passed = _passes(graph, group, point, probe, element)
        if not passed:
            site = factor.sites[0]
            failed.append(Pinned(site.tensor, None, factor.name, "failed the numerical check"))
        elif isinstance(factor, PermutationFactor):
            kept_permutations.append(factor)
        else:
            kept_scalings.append(factor)
    reduced = replace(
        group,
        permutations=tuple(kept_permutations),
        scalings=tuple(kept_scalings),
        pinned=(*group.pinned, *failed),
    )
    if not failed or not _passes(graph, reduced, point, probe, reduced.sample(generator=generator)):
        raise CosetError(
            "got factors that hold alone and not together",
            "needed a group",
            "this is a fault of the analysis: please report the module",
        )
    return reduced


def _passes(
    graph: Graph, group: SymmetryGroup, weights: Weights, inputs: Sequence[Tensor], element: Element
) -> bool:
    return element_error(graph, group, weights, inputs, element) < TOLERANCE
