"""Where in a network the units of each factor are read: found from the traced graph."""

from dataclasses import dataclass, replace
from math import prod

from coset.symmetry.analysis.digits import Plain, Value
from coset.symmetry.analysis.values import Algebra
from coset.symmetry.analysis.walk import Structure, settle
from coset.symmetry.elements import PermutationFactor, Site
from coset.symmetry.graph import Graph, refs_in
from coset.symmetry.group import SymmetryGroup


@dataclass(frozen=True)
class ReadPoint:
    """A value that a layer reads.

    Attributes:
        node: Its place in the graph.
        site: Where the units lie in the value; ``digits`` runs over all factors, outer first.
        factors: The factors, outer ones first, one or several digits each.
        sizes: Their sizes.
    """

    node: int
    site: Site
    factors: tuple[str, ...]
    sizes: tuple[int, ...]


def find_read_points(graph: Graph, group: SymmetryGroup) -> list[ReadPoint]:
    """All values that carry units and are read by something that sums over these units.

    Values where units of unrelated factors meet are left out: there is no order in which to
    compare them before both are matched.
    """
    structure = settle(graph)
    atoms = {f.name: found for f in group.permutations if (found := _atoms_of(structure, f))}
    owner = {atom: name for name, own in atoms.items() for atom in own}
    within = {f.name: f.within for f in group.permutations}
    values = structure.values()
    carried = [_carried(value, owner) for value in values]
    alive = _depends_on_inputs(graph)
    readers: dict[int, list[int]] = {}
    for k, node in enumerate(graph.nodes):
        for ref in refs_in(node.arguments):
            readers.setdefault(ref.node, []).append(k)
    points = []
    for i, value in enumerate(values):
        if value is None or not carried[i] or not alive[i] or graph.nodes[i].op == "input":
            continue
        if all(carried[i] <= carried[k] for k in readers.get(i, ())):
            continue
        for block, leaf in Algebra.leaves(value):
            point = _point(i, Site("", block, (), ()), leaf, structure, atoms, within)
            if point is not None:
                points.append(point)
    return points


def _atoms_of(structure: Structure, factor: PermutationFactor) -> tuple[int, ...]:
    """The atoms a factor moves, seen at the first of its sites that is a whole part."""
    for site in factor.sites:
        for part in structure.parts:
            if (part.tensor, part.block) == (site.tensor, site.block):
                return tuple(part.digits[d] for d in site.digits)
    return ()


def _carried(value: Value | None, owner: dict[int, str]) -> frozenset[str]:
    if value is None:
        return frozenset()
    return frozenset(
        owner[digit.atom]
        for _, leaf in Algebra.leaves(value)
        for axis in leaf.axes
        for digit in axis
        if digit.atom in owner
    )


def _depends_on_inputs(graph: Graph) -> list[bool]:
    alive: list[bool] = []
    for node in graph.nodes:
        below = any(alive[ref.node] for ref in refs_in(node.arguments))
        alive.append(node.op == "input" or below)
    return alive


def _point(
    node: int,
    site: Site,
    leaf: Plain,
    structure: Structure,
    atoms: dict[str, tuple[int, ...]],
    within: dict[str, tuple[str, ...]],
) -> ReadPoint | None:
    digits = [digit.atom for axis in leaf.axes for digit in axis]
    present = [name for name, own in atoms.items() if all(digits.count(atom) == 1 for atom in own)]
    touched = {name for name, own in atoms.items() if set(own) & set(digits)}
    chain = sorted(present, key=lambda name: len(within[name]))
    if not chain or touched != set(chain):
        return None
    if any(within[name] != tuple(chain[:k]) for k, name in enumerate(chain)):
        return None
    size = structure.atoms.size
    places = tuple(digits.index(atom) for name in chain for atom in atoms[name])
    sizes = tuple(prod(size[atom] for atom in atoms[name]) for name in chain)
    view = tuple(size[atom] for atom in digits)
    return ReadPoint(node, replace(site, view=view, digits=places), tuple(chain), sizes)
