"""From the settled structure to the factors of the group."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from coset.symmetry.analysis.scales import Scaling, governing_digit
from coset.symmetry.analysis.walk import Part, Structure
from coset.symmetry.elements import PermutationFactor, Pinned, ScalingFactor, Site

# More copies of a factor under refused parents than this are treated as one.
_MOST_COPIES = 4096


@dataclass(frozen=True)
class Class:
    """Atoms that always travel together: one factor, or several copies under refused parents.

    Attributes:
        atoms: In the order of the joint index.
        parents: Other classes it lives under, outer ones first.
        fixed: Refused atoms it lives under; each of their indices gives a factor of its own.
    """

    atoms: tuple[int, ...]
    parents: tuple[int, ...]
    fixed: tuple[int, ...]


class Factory:
    """Builds factors and sites from a structure.

    Factors that touch only parts the output never reads are left out; a part that merely looks
    unread keeps its sites, so a mistake there costs nothing.
    """

    def __init__(self, structure: Structure, unread: set[int]) -> None:
        self.structure = structure
        self.parts = structure.parts
        self.unread = unread
        self.classes = self._classes()
        self.class_of = {atom: k for k, c in enumerate(self.classes) for atom in c.atoms}
        self._taken: set[str] = set()

    # -- classes ---------------------------------------------------------------------------------

    def _classes(self) -> list[Class]:
        atoms, above = self.structure.atoms, self.structure.above
        free: dict[int, None] = {}
        for i, part in enumerate(self.parts):
            for atom in part.digits:
                if atoms.pin_of(atom) is None and i not in self.unread:
                    free[atom] = None
        groups: list[tuple[int, ...]] = []
        for atom in free:
            if not any(atom in group for group in groups):
                melted = [b for b in free if b == atom or self._mutual(atom, b)]
                groups.append(tuple(melted))
        shared = [set.intersection(*(above.get(a, set()) for a in group)) for group in groups]
        parents = [
            {k for k, other in enumerate(groups) if other != group and set(other) <= shared[g]}
            for g, group in enumerate(groups)
        ]
        fixed = [
            {a for a in s if atoms.pin_of(a) is not None and atoms.size[a] > 1} for s in shared
        ]
        fixed = [f if prod(atoms.size[a] for a in f) <= _MOST_COPIES else set() for f in fixed]
        for own, refused in zip(parents, fixed, strict=True):
            own -= {p for p in own if not parents[p] <= own or not fixed[p] <= refused}
        order = sorted(range(len(groups)), key=lambda g: len(parents[g]))
        return self._numbered(groups, parents, fixed, order)

    def _mutual(self, a: int, b: int) -> bool:
        above = self.structure.above
        return b in above.get(a, ()) and a in above.get(b, ())

    @staticmethod
    def _numbered(
        groups: Sequence[tuple[int, ...]],
        parents: Sequence[set[int]],
        fixed: Sequence[set[int]],
        order: Sequence[int],
    ) -> list[Class]:
        """Classes in an order in which parents come first."""
        place = {g: k for k, g in enumerate(order)}
        return [
            Class(groups[g], tuple(sorted(place[p] for p in parents[g])), tuple(sorted(fixed[g])))
            for g in order
        ]

    # -- permutation factors -----------------------------------------------------------------------

    @cached_property
    def _names(self) -> dict[tuple[int, tuple[int, ...]], str]:
        """Names of all copies of all classes."""
        names: dict[tuple[int, tuple[int, ...]], str] = {}
        for k, own in enumerate(self.classes):
            base = self._unique(self._first_tensor(own))
            for index in self._copies(own.fixed):
                mark = "".join(f"[{i}]" for i in index)
                names[(k, index)] = f"{base}{mark}"
        return names

    def _copies(self, fixed: Sequence[int]) -> Iterable[tuple[int, ...]]:
        return product(*(range(self.structure.atoms.size[atom]) for atom in fixed))

    def _first_tensor(self, own: Class) -> str:
        """A tensor that the class indexes the rows of, if there is one."""
        touched = [part for part in self.parts if own.atoms[0] in part.digits]
        rows = [part for part in touched if own.atoms[0] in part.axes[0]]
        return (rows or touched)[0].tensor

    def _unique(self, tensor: str) -> str:
        base, _, last = tensor.rpartition(".")
        base = base if base and last in ("weight", "bias") else tensor
        name, k = base, 1
        while name in self._taken:
            k += 1
            name = f"{base}#{k}"
        self._taken.add(name)
        return name

    def _name(self, k: int, values: Mapping[int, int]) -> str:
        return self._names[(k, tuple(values[atom] for atom in self.classes[k].fixed))]

    def permutations(self) -> list[PermutationFactor]:
        """All permutation factors, parents first."""
        factors = []
        for k, own in enumerate(self.classes):
            size = prod(self.structure.atoms.size[atom] for atom in own.atoms)
            sites = list(self._class_sites(own))
            for index in self._copies(own.fixed):
                values = dict(zip(own.fixed, index, strict=True))
                factors.append(
                    PermutationFactor(
                        self._name(k, values),
                        size,
                        tuple(self._fix(i, site, where, values) for i, site, where in sites),
                        tuple(self._name(p, values) for p in own.parents),
                    )
                )
        return factors

    def _class_sites(self, own: Class) -> Iterable[tuple[int, Site, dict[int, int]]]:
        """Every occurrence of a class: the part, the site, where its refused parents are."""
        outer = [atom for p in own.parents for atom in self.classes[p].atoms]
        for i, part in enumerate(self.parts):
            for digit, atom in enumerate(part.digits):
                if atom == own.atoms[0]:
                    digits = self._look(part, digit, own.atoms)
                    parents = self._look(part, digit, outer)
                    where = dict(zip(own.fixed, self._look(part, digit, own.fixed), strict=True))
                    yield i, self._site(part, digits, parents), where

    def _look(self, part: Part, digit: int, atoms: Iterable[int]) -> tuple[int, ...]:
        places = []
        for atom in atoms:
            found = digit if part.digits[digit] == atom else None
            if found is None:
                found = governing_digit(part.axes, digit, atom)
            assert found is not None, "an atom that should travel along is missing"
            places.append(found)
        return tuple(places)

    def _site(self, part: Part, digits: tuple[int, ...], parents: tuple[int, ...]) -> Site:
        view = tuple(self.structure.atoms.size[atom] for atom in part.digits)
        return Site(part.tensor, part.block, view, digits, parents)

    def _fix(self, i: int, site: Site, where: Mapping[int, int], values: Mapping[int, int]) -> Site:
        """Restricts a site to one index of each refused parent."""
        part = self.parts[i]
        for place, value in sorted(((where[atom], values[atom]) for atom in where), reverse=True):
            axis, first = _axis_of(part, place)
            before = prod(site.view[first:place])
            after = self._after(part, place, axis, where)
            block = (*site.block, (axis, before, value * after, after))
            digits = tuple(d - (d > place) for d in site.digits)
            parents = tuple(d - (d > place) for d in site.parents)
            view = (*site.view[:place], *site.view[place + 1 :])
            site = replace(site, block=block, view=view, digits=digits, parents=parents)
        return site

    def _after(self, part: Part, place: int, axis: int, where: Mapping[int, int]) -> int:
        """Indices inside one value of a digit, later refused digits of the axis being fixed."""
        first = sum(len(a) for a in part.axes[:axis])
        fixed = set(where.values())
        inner = range(place + 1, first + len(part.axes[axis]))
        return prod(self.structure.atoms.size[part.digits[d]] for d in inner if d not in fixed)

    # -- scaling factors ---------------------------------------------------------------------------

    def scalings(
        self, found: Iterable[Scaling], shifts: Mapping[int, float]
    ) -> list[ScalingFactor]:
        """Scaling factors from null vectors."""
        factors = []
        for scaling in found:
            parts = {self.structure.unknowns[u].part for u in scaling.exponents}
            if not parts <= self.unread:
                factors.extend(self._scaling(scaling, shifts))
        return factors

    def _scaling(self, scaling: Scaling, shifts: Mapping[int, float]) -> list[ScalingFactor]:
        atoms = self.structure.atoms
        classes = sorted({self.class_of[a] for a in scaling.index if a in self.class_of})
        spread = sorted({a for k in classes for a in self.classes[k].fixed})
        rigid = [a for a in sorted(scaling.index) if a not in self.class_of and a not in spread]
        along = (
            None
            if rigid or not classes
            else max(classes, key=lambda k: (len(self.classes[k].parents), k))
        )
        own = tuple(rigid) if along is None else self.classes[along].atoms
        within = [k for k in classes if k != along]
        outer = [atom for k in within for atom in self.classes[k].atoms]
        sites = []
        for u, exponent in scaling.exponents.items():
            place = self.structure.unknowns[u]
            part = self.parts[place.part]
            if place.digit is None:
                digits: tuple[int, ...] = ()
                parents: tuple[int, ...] = ()
                where: dict[int, int] = {}
            else:
                digits = self._look(part, place.digit, own)
                parents = self._look(part, place.digit, outer)
                where = dict(zip(spread, self._look(part, place.digit, spread), strict=True))
            site = replace(
                self._site(part, digits, parents), power=exponent, shift=shifts.get(u, 0.0)
            )
            sites.append((place.part, site, where))
        base = self._unique(f"{sites[0][1].tensor}:scale")
        size = prod(atoms.size[a] for a in own)
        return [
            ScalingFactor(
                base + "".join(f"[{i}]" for i in index),
                size,
                tuple(
                    self._fix(i, site, where, dict(zip(spread, index, strict=True)))
                    for i, site, where in sites
                ),
                scaling.domain,
                tuple(self._name(k, dict(zip(spread, index, strict=True))) for k in within),
                None if along is None else self._name(along, dict(zip(spread, index, strict=True))),
            )
            for index in self._copies(spread)
        ]


def _axis_of(part: Part, digit: int) -> tuple[int, int]:
    """The axis of a digit, and the first digit of that axis."""
    first = 0
    for i, axis in enumerate(part.axes):
        if digit < first + len(axis):
            return i, first
        first += len(axis)
    raise AssertionError("a digit outside its part")


def pinned_axes(structure: Structure, unread: set[int]) -> list[Pinned]:
    """Axes that may not be permuted, and tensors that the output never reads."""
    pinned = []
    for tensor, axis in structure.axis_atoms:
        live = [i for i, part in enumerate(structure.parts) if part.tensor == tensor]
        if all(i in unread for i in live):
            continue
        reasons = {
            structure.atoms.pin_of(a)
            for i in live
            for a in structure.parts[i].axes[axis]
            if i not in unread
        }
        told = sorted(reason for reason in reasons if reason)
        if told and len(told) == len(reasons):
            reason, _, operation = told[0].partition(" (")
            pinned.append(Pinned(tensor, axis, operation.rstrip(")") or "graph", reason))
    names = dict.fromkeys(part.tensor for part in structure.parts)
    for tensor in names:
        if all(i in unread for i, part in enumerate(structure.parts) if part.tensor == tensor):
            pinned.append(Pinned(tensor, None, "graph", "never read by the output"))
    return pinned
