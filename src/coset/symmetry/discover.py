"""From a module and an example to its symmetry group."""

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.symmetry.action import region
from coset.symmetry.analysis.factors import Factory, pinned_axes
from coset.symmetry.analysis.invariances import find_invariances
from coset.symmetry.analysis.scales import Search, find_scalings
from coset.symmetry.analysis.walk import Equations, Structure, settle
from coset.symmetry.by_hand import group_by_hand
from coset.symmetry.check import (
    Probe,
    alone,
    changes,
    read_entries,
)
from coset.symmetry.describing.reasons import axis_reasons
from coset.symmetry.elements import (
    PermutationFactor,
    Pinned,
    ScaleInvariance,
    ScalingFactor,
    Site,
)
from coset.symmetry.graph import Graph
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.points import general_position, require_finite
from coset.symmetry.tracing import trace
from coset.symmetry.written import FactorByHand
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import parts_of
from coset.weights.network import unwrapped, weights_of

TOLERANCE = 1e-9

# Invariances hold up to an epsilon: what is left of it may be seen where activations are small.
TOLERANCE_OF_INVARIANCES = 1e-6

# One draw of random weights each, until all parts are seen to be read.
_DRAWS = (torch.float32, torch.float64, torch.float64)

# Groups by graph: tracing recognises an architecture it has seen, so its group is found once.
_KNOWN: WeakKeyDictionary[Graph, SymmetryGroup] = WeakKeyDictionary()


def discover(
    module: nn.Module, example: Inputs, *, groups: Sequence[FactorByHand] | None = None
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
        CosetError: If the module cannot be traced, has weights that are not finite, or the factors
            do not hold together.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> [factor.size for factor in discover(net, torch.zeros(1, 3)).permutations]
    [5]
    """
    module = unwrapped(module)
    if groups is not None:
        return group_by_hand(module, example, groups)
    inputs = parts_of(example)
    graph = trace(module, example)
    require_finite(module)
    known = _KNOWN.get(graph)
    if known is None:
        weights = {name: tensor.cpu() for name, tensor in weights_of(module).items()}
        weights = {name: weights[name] for name in graph.parameters} | weights
        known = _KNOWN[graph] = group_of(graph, weights, inputs)
    return known


def group_of(graph: Graph, weights: Weights, inputs: Sequence[Tensor]) -> SymmetryGroup:
    """The group of a graph by analysis, without what fails at one point in general position."""
    structure = settle(graph)
    magnitude = structure.equations("magnitude")
    positive = {structure.parts[structure.unknowns[u].part].tensor for u in magnitude.shifts}
    positive |= {name for name in weights if name.endswith("running_var")}
    generator = torch.Generator().manual_seed(2)
    point = general_position(weights, positive, generator=generator)
    unread = _unread(structure, point, weights, inputs, positive)
    group = _analyse(structure, magnitude, weights, unread)
    probe = Probe.at(structure.graph, point, weights, inputs, positive, generator=generator)
    group = _with_sound_factors(probe, group, generator)
    return _with_sound_invariances(probe, group, generator)


def _analyse(
    structure: Structure, magnitude: Equations, weights: Weights, unread: set[int]
) -> SymmetryGroup:
    sign = structure.equations("sign")
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
    structure: Structure,
    point: Weights,
    weights: Weights,
    inputs: Sequence[Tensor],
    positive: set[str],
) -> set[int]:
    """Parts of parameters without influence on the output."""
    generator = torch.Generator().manual_seed(1)
    unread = set(range(len(structure.parts)))
    for dtype in _DRAWS:
        seen = read_entries(structure.graph, point, inputs, dtype=dtype, generator=generator)
        unread -= {i for i in unread if bool(_entries(structure, i, seen).any())}
        if not unread:
            return unread
        point = general_position(weights, positive, generator=generator)

    def changes_with(parts: set[int]) -> bool:
        masks: Weights = {}
        for i in parts:
            tensor = structure.parts[i].tensor
            masks.setdefault(tensor, torch.zeros(weights[tensor].shape, dtype=torch.bool))
            _entries(structure, i, masks).fill_(True)
        return changes(structure.graph, weights, inputs, masks, positive, generator=generator)

    return {i for i in unread if not changes_with({i})} if changes_with(unread) else unread


def _entries(structure: Structure, part: int, tensors: Weights) -> Tensor:
    """A part's entries of a tensor."""
    own = structure.parts[part]
    view = tuple(structure.atoms.size[atom] for atom in own.digits)
    return region(tensors[own.tensor], 0, Site(own.tensor, own.block, view, ()))


def _with_sound_factors(
    probe: Probe, group: SymmetryGroup, generator: torch.Generator
) -> SymmetryGroup:
    """Checks random elements; drops factors that fail alone, raises if only the whole fails."""
    if probe.error(group, group.sample(generator=generator)) < TOLERANCE:
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
            passed = probe.error(group, element) < TOLERANCE
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
    joint = probe.error(reduced, reduced.sample(generator=generator))
    if not failed or joint >= TOLERANCE:
        raise CosetError(
            "got factors that hold alone and not together",
            "needed a group",
            "this is a fault of the analysis: please report the module",
        )
    return reduced


def _with_sound_invariances(
    probe: Probe, group: SymmetryGroup, generator: torch.Generator
) -> SymmetryGroup:
    """Checks scale invariances, all at once and then one by one; drops those that fail."""
    if not group.invariances:
        return group
    ideal = probe.idealised()

    def hold(*invariances: ScaleInvariance) -> bool:
        moved = ideal.rescaled(invariances, generator=generator)
        return ideal.change(moved) < TOLERANCE_OF_INVARIANCES

    if hold(*group.invariances):
        return group
    kept = tuple(invariance for invariance in group.invariances if hold(invariance))
    failed = tuple(
        Pinned(i.tensor, None, f"scale of each {i.groups}", "failed the numerical check")
        for i in group.invariances
        if i not in kept
    )
    return replace(group, invariances=kept, pinned=(*group.pinned, *failed))
