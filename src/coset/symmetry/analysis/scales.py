"""From equations between exponents to scaling factors.

Unknown exponents live on the digits of the parameters; walks over the graph say which linear forms
of them vanish, once for magnitudes (over the rationals) and once for signs (over two elements).
Null vectors are scalings.  One that only uses digits that always travel with certain other atoms
may choose its scales freely for each index of those: so the search goes from large index sets to
small ones, and reports only what larger sets do not already imply.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations, permutations
from math import gcd, lcm

from coset.symmetry.analysis.digits import Plain, governing
from coset.symmetry.analysis.forms import Form, combined
from coset.symmetry.analysis.log import aligned
from coset.symmetry.analysis.walk import Equations, Structure
from coset.symmetry.elements import Domain

Vector = dict[int, Fraction]


@dataclass(frozen=True)
class Scaling:
    """A monomial symmetry: exponents on digits of one atom, scales on an index set.

    Attributes:
        atom: The atom whose digits carry the exponents; ``None`` for whole parts.
        index: The atoms whose joint index numbers the scales.
        exponents: By unknown.
        domain: Which scales are allowed.
    """

    atom: int | None
    index: frozenset[int]
    exponents: Mapping[int, int]
    domain: Domain


class System:
    """Linear equations over the rationals, or over two elements."""

    def __init__(self, two: bool) -> None:
        self.two = two
        self.rows: dict[int, Vector] = {}

    def clean(self, vector: Mapping[int, Fraction]) -> Vector:
        """The vector without zeros, reduced to the field."""
        if self.two:
            return {u: Fraction(1) for u, value in vector.items() if value.numerator % 2}
        return {u: value for u, value in vector.items() if value}

    def reduce(self, vector: Mapping[int, Fraction]) -> Vector:
        """What is left of a vector modulo the rows."""
        rest = self.clean(vector)
        for pivot in [u for u in rest if u in self.rows]:
            self._subtract(rest, self.rows[pivot], rest.get(pivot, Fraction(0)))
        return rest

    def add(self, vector: Mapping[int, Fraction], rank: Mapping[int, tuple[int, int]]) -> bool:
        """Adds an equation; false if it says nothing new.  High ranks become pivots."""
        rest = self.reduce(vector)
        if not rest:
            return False
        pivot = max(rest, key=lambda u: rank.get(u, (0, u)))
        scale = rest[pivot]
        row = {u: value / scale for u, value in rest.items()}
        for other in self.rows.values():
            if pivot in other:
                self._subtract(other, row, other[pivot])
        self.rows[pivot] = row
        return True

    def _subtract(self, target: Vector, row: Vector, factor: Fraction) -> None:
        for u, value in row.items():
            total = target.get(u, Fraction(0)) - factor * value
            if (total.numerator % 2 if self.two else total) != 0:
                target[u] = Fraction(1) if self.two else total
            else:
                target.pop(u, None)

    def null_space(self, variables: Iterable[int]) -> list[Vector]:
        """One vector for each free variable, which has a one there."""
        free = [u for u in variables if u not in self.rows]
        vectors = []
        for u in free:
            vector = {u: Fraction(1)}
            for pivot, row in self.rows.items():
                if u in row:
                    vector[pivot] = -row[u]
            vectors.append(self.clean(vector))
        return vectors


class Search:
    """The unknowns of a structure, grouped by atom, with the equations of both fields."""

    def __init__(self, structure: Structure, magnitude: Equations, sign: Equations) -> None:
        self.structure = structure
        self.atom_of = [self._atom(u) for u in range(len(structure.unknowns))]
        self.block: dict[int | None, list[int]] = {}
        for u, atom in enumerate(self.atom_of):
            self.block.setdefault(atom, []).append(u)
        self.rank = {u: self._rank(u) for u in range(len(structure.unknowns))}
        self.visible = [self._visible(u) for u in range(len(structure.unknowns))]
        self.equations = [_by_unknown(magnitude.forms), _by_unknown(sign.forms)]
        self.entries = [_entries(magnitude.log), _entries(sign.log)]

    def _atom(self, unknown: int) -> int | None:
        place = self.structure.unknowns[unknown]
        return None if place.digit is None else self.structure.parts[place.part].digits[place.digit]

    def _rank(self, unknown: int) -> tuple[int, int]:
        """Running statistics are solved for first, then later tensors."""
        name = self.structure.parts[self.structure.unknowns[unknown].part].tensor
        return (2 * name.endswith("running_var") + name.endswith("running_mean"), unknown)

    def _visible(self, unknown: int) -> frozenset[int]:
        """The atoms that the digit of an unknown can look at in its own part."""
        atoms = set(self.structure.parts[self.structure.unknowns[unknown].part].digits)
        return frozenset(a for a in atoms if self.governor(unknown, a) is not None)

    def governor(self, unknown: int, atom: int) -> int | None:
        """The digit of ``atom`` that the digit of an unknown looks at, in the same part."""
        place = self.structure.unknowns[unknown]
        if place.digit is not None and self.atom_of[unknown] == atom:
            return place.digit
        return governing_digit(self.structure.parts[place.part].axes, place.digit, atom)

    def space(self, atom: int | None, index: frozenset[int], field: int) -> list[Vector]:
        """Null vectors on digits of ``atom`` that vanish wherever ``index`` is not together."""
        others = index - {atom}
        allowed = [u for u in self.block.get(atom, ()) if others <= self.visible[u]]
        system = System(two=bool(field))
        chosen, seen_forms = set(allowed), set()
        for u in allowed:
            for form, seen in self.entries[field].get(u, ()):
                if not others <= seen:
                    system.add({v: value for v, value in form if v in chosen}, self.rank)
            for form in self.equations[field].get(u, ()):
                if form not in seen_forms:
                    seen_forms.add(form)
                    system.add({v: value for v, value in form if v in chosen}, self.rank)
        return system.null_space(allowed)

    def index_sets(self, atom: int) -> list[frozenset[int]]:
        """Index sets worth trying for an atom, from large to small."""
        base = self.closed({atom} | self.structure.above.get(atom, set()))
        useful = []
        beside = Counter(other for u in self.block[atom] for other in self.visible[u])
        for other, count in beside.items():
            if count > 1 and other not in base:
                wider = self.closed(base | {other})
                if any(self.space(atom, wider, field) for field in (0, 1)):
                    useful.append(wider)
        sets = {base}
        for size in range(1, min(len(useful), 5) + 1):
            for chosen in combinations(useful[:8], size):
                sets.add(base.union(*chosen))
        return sorted(sets, key=lambda s: (-len(s), sorted(s)))

    def closed(self, atoms: Iterable[int]) -> frozenset[int]:
        """With every atom that may be permuted, also those its permutations depend on."""
        found = set(atoms)
        for atom in list(found):
            if self.structure.atoms.pin_of(atom) is None:
                found |= self.structure.above.get(atom, set())
        return frozenset(a for a in found if self.structure.atoms.size[a] > 1)

    def induced(self, scaling: Scaling, atom: int | None) -> Vector:
        """The same scaling as exponents on the digits of another atom of its index set."""
        if scaling.atom == atom:
            return {u: Fraction(value) for u, value in scaling.exponents.items()}
        vector: Vector = {}
        for u, value in scaling.exponents.items():
            target = self._target(u, atom)
            if target is not None:
                vector[target] = vector.get(target, Fraction(0)) + value
        return vector

    def _target(self, unknown: int, atom: int | None) -> int | None:
        place = self.structure.unknowns[unknown]
        start = unknown - (place.digit if place.digit is not None else 0)
        if place.digit is None:
            return unknown
        if atom is None:
            return start + len(self.structure.parts[place.part].digits)
        digit = self.governor(unknown, atom)
        return None if digit is None else start + digit


def _by_unknown(equations: Iterable[Form]) -> dict[int, list[Form]]:
    touching: dict[int, list[Form]] = {}
    for form in equations:
        for u, _ in form:
            touching.setdefault(u, []).append(form)
    return touching


def _entries(log: Iterable[Plain]) -> dict[int, list[tuple[Form, frozenset[int]]]]:
    """For each unknown, the forms along digits it occurs in, with the atoms seen from there."""
    entries: dict[int, dict[tuple[Form, frozenset[int]], None]] = {}
    for entry in log:
        seen = frozenset(aligned(entry))
        for digit in entry.axes[0]:
            for u, _ in digit.form:
                entries.setdefault(u, {})[(digit.form, seen)] = None
    return {u: list(found) for u, found in entries.items()}


def governing_digit(axes: Sequence[Sequence[int]], digit: int | None, atom: int) -> int | None:
    """The number of the digit of ``atom`` that a digit looks at, if there is one."""
    starts = list(accumulate(map(len, axes), initial=0))
    axis = None if digit is None else bisect_right(starts, digit) - 1
    place = governing(axes, axis, atom)
    return None if place is None else starts[place[0]] + place[1]


def find_scalings(search: Search) -> list[Scaling]:
    """All scalings, each on its largest index set."""
    found: list[Scaling] = []
    tasks: list[tuple[int | None, frozenset[int]]] = []
    for atom in search.block:
        if atom is not None:
            tasks.extend((atom, index) for index in search.index_sets(atom))
    tasks.sort(key=lambda task: -len(task[1]))
    for atom, index in [*tasks, (None, frozenset())]:
        found.extend(_new_scalings(search, atom, index, found))
    return found


def _new_scalings(
    search: Search, atom: int | None, index: frozenset[int], found: Sequence[Scaling]
) -> list[Scaling]:
    wider = [s for s in found if s.index >= index and (atom is None or atom in s.index)]
    known, known_signs = System(two=False), System(two=True)
    for scaling in wider:
        vector = search.induced(scaling, atom)
        if scaling.domain != "sign":
            known.add(vector, {})
        if scaling.domain != "positive":
            known_signs.add(vector, {})
    fresh = [v for v in search.space(atom, index, 0) if known.add(v, {})]
    whole = [_integral(v) for v in _shortened(fresh)]
    signs = search.space(atom, index, 1)
    free, bound = _by_parity(whole, signs)
    scalings = [Scaling(atom, index, vector, "nonzero") for vector in free]
    scalings += [Scaling(atom, index, vector, "positive") for vector in bound]
    for exponents in free:
        known_signs.add({u: Fraction(value) for u, value in exponents.items()}, {})
    for sign in signs:
        if known_signs.add(sign, {}):
            scalings.append(Scaling(atom, index, dict.fromkeys(sorted(sign), 1), "sign"))
    return scalings


def _shortened(vectors: list[Vector]) -> list[Vector]:
    """The same span with fewer entries, by adding and subtracting vectors."""
    improved = True
    while improved:
        improved = False
        for i, j in permutations(range(len(vectors)), 2):
            if 2 * len(vectors[i].keys() & vectors[j].keys()) <= len(vectors[j]):
                continue  # too little in common to become shorter
            for sign in (1, -1):
                candidate = dict(combined(_form(vectors[i]), _form(vectors[j]), sign))
                if len(candidate) < len(vectors[i]):
                    vectors[i] = candidate
                    improved = True
    return vectors


def _form(vector: Vector) -> Form:
    return tuple(sorted(vector.items()))


def _integral(vector: Vector) -> dict[int, int]:
    """The primitive integer multiple whose first entry is positive."""
    scale = lcm(*(value.denominator for value in vector.values()))
    whole = {u: int(value * scale) for u, value in sorted(vector.items())}
    divisor = gcd(*whole.values())
    sign = 1 if next(iter(whole.values())) > 0 else -1
    return {u: sign * value // divisor for u, value in whole.items()}


def _by_parity(
    vectors: Sequence[dict[int, int]], signs: Sequence[Vector]
) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
    """Splits a lattice basis into vectors whose parity is a sign symmetry, and the others.

    Vectors are added to each other where that brings a parity into the space of signs.
    """
    span = System(two=True)
    for sign in signs:
        span.add(sign, {})
    residues: dict[int, tuple[Vector, dict[int, int]]] = {}
    free, bound = [], []
    for vector in vectors:
        rest = span.reduce({u: Fraction(v) for u, v in vector.items()})
        total = dict(vector)
        while pivots := [u for u in rest if u in residues]:
            row, partner = residues[min(pivots)]
            rest = span.clean(
                {u: rest.get(u, Fraction(0)) + row.get(u, Fraction(0)) for u in {*rest, *row}}
            )
            for u, value in partner.items():
                total[u] = total.get(u, 0) + value
        if rest:
            residues[min(rest)] = (rest, total)
            bound.append(vector)
        else:
            free.append({u: value for u, value in sorted(total.items()) if value})
    return free, bound
