"""The state of a walk, and how values follow what becomes of their atoms."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from coset.symmetry.analysis.atoms import Atoms, Family, Product, Sum
from coset.symmetry.analysis.digits import Axis, Block, Cut, Digit, Plain, Value, governing, join
from coset.symmetry.analysis.forms import ZERO, Form
from coset.symmetry.analysis.log import Log


class Algebra:
    """The state of one walk over the graph: atoms, co-occurrences, equations.

    Attributes:
        atoms: Shared by all walks over one graph.
        log: Which digits were seen together.
        scaled_log: The same, only for digits with a scale along them.
        equations: Forms that must vanish.
        shifts: For unknowns of running variances, the epsilon that scales with them.
        field: Which scales are followed: ``None``, ``"magnitude"``, ``"sign"`` or ``"ideal"``.
        reason: What the walk is looking at, for pins and explanations.
    """

    def __init__(self, atoms: Atoms, field: str | None = None) -> None:
        self.atoms = atoms
        self.field = field
        self.log = Log(atoms, self.settled)
        self.scaled_log: dict[Plain, None] = {}
        self.equations: list[Form] = []
        self.reason = ""
        self.shifts: dict[int, float] = {}

    # -- sizes -----------------------------------------------------------------------------------

    def length(self, axis: Axis) -> int:
        """Number of indices of a list of digits."""
        return prod(self.atoms.size[digit.atom] for digit in axis)

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of the tensor."""
        if isinstance(value, Plain):
            return tuple(self.length(axis) for axis in value.axes)
        shape = list(self.shape(value.parts[0]))
        shape[value.axis] = value.outer * sum(value.sizes)
        return tuple(shape)

    # -- resolving -------------------------------------------------------------------------------

    def resolve(self, value: Value) -> Value:
        """The value in terms of atoms as they are now."""
        if isinstance(value, Cut):
            parts = tuple(self.resolve(part) for part in value.parts)
            return join(value.axis, value.outer, value.sizes, parts)
        if all(self.atoms.stands(digit.atom) for axis in value.axes for digit in axis):
            return value  # by far the most common case
        axes = tuple(self._expand_products(axis) for axis in value.axes)
        value = replace(value, axes=axes)
        for i, axis in enumerate(axes):
            for j, digit in enumerate(axis):
                if isinstance(self.atoms.expansion(digit.atom), Sum):
                    return self.resolve(self._open_sum(value, i, j))
        if any(self.atoms.expansion(d.atom) is not None for axis in axes for d in axis):
            return self.resolve(
                replace(value, axes=tuple(tuple(map(self._instance, axis)) for axis in axes))
            )
        return value

    def _expand_products(self, axis: Axis) -> Axis:
        digits: list[Digit] = []
        for digit in axis:
            root = self.atoms.find(digit.atom)
            expansion = self.atoms.expansion(root)
            if isinstance(expansion, Product):
                halves = (
                    digit._replace(atom=expansion.outer),
                    digit._replace(atom=expansion.inner),
                )
                digits.extend(self._expand_products(halves))
            else:
                digits.append(digit._replace(atom=root))
        return tuple(digits)

    def _open_sum(self, value: Plain, i: int, j: int) -> Cut:
        """Cuts the value where digit ``j`` of axis ``i`` runs over a sum."""
        digit = value.axes[i][j]
        expansion = self.atoms.expansion(digit.atom)
        assert isinstance(expansion, Sum)
        inner = self.length(value.axes[i][j + 1 :])
        atoms = [[self.atoms.find(other.atom) for other in axis] for axis in value.axes]
        looking = [governing(atoms, axis, digit.atom) == (i, j) for axis in range(len(atoms))]
        parts = []
        for k, piece in enumerate(expansion.pieces):
            axes = []
            for i2, axis in enumerate(value.axes):
                digits: list[Digit] = []
                for j2, other in enumerate(axis):
                    if (i2, j2) == (i, j):
                        if piece is not None:
                            digits.append(other._replace(atom=piece))
                    elif looking[i2]:
                        choice = (digit.atom, k)
                        digits.append(other._replace(context=(*other.context, choice)))
                    else:
                        digits.append(other)
                axes.append(tuple(digits))
            parts.append(replace(value, axes=tuple(axes), constant=None))
        outer = self.length(value.axes[i][:j])
        return Cut(i, outer, tuple(size * inner for size in expansion.sizes), tuple(parts))

    def _instance(self, digit: Digit) -> Digit:
        """Chooses the instance of a family by the digit's context."""
        expansion = self.atoms.expansion(digit.atom)
        if not isinstance(expansion, Family):
            return digit
        for cut_atom, piece in digit.context:
            if cut_atom == expansion.over:
                return digit._replace(atom=expansion.instances[piece])
        # nothing tells which instance is meant: then all of them must be one
        first, *others = expansion.instances
        for other in others:
            self.unify((Digit(first),), (Digit(other),))
        return digit._replace(atom=first)

    @staticmethod
    def leaves(value: Value, block: Block = ()) -> Iterator[tuple[Block, Plain]]:
        """The plain parts of a value, each with the cuts that lead to it."""
        if isinstance(value, Plain):
            yield block, value
            return
        start = 0
        for size, part in zip(value.sizes, value.parts, strict=True):
            yield from Algebra.leaves(part, (*block, (value.axis, value.outer, start, size)))
            start += size

    # -- breaking and tying lists of digits ----------------------------------------------------

    def break_at(self, digits: Axis, sizes: Sequence[int]) -> list[Axis] | None:
        """Breaks a list of digits at given products.

        An atom is refined where a boundary falls inside it; ``atoms.version`` has then changed and
        the answer is stale: resolve and ask again.  ``None``: no such break exists.
        """
        rest, groups = list(digits), []
        for size in sizes:
            group: list[Digit] = []
            missing = size
            while missing > 1:
                if not rest:
                    return None
                digit = rest[0]
                length = self.atoms.size[digit.atom]
                if missing % length == 0:
                    group.append(rest.pop(0))
                    missing //= length
                elif length % missing == 0:
                    self.atoms.refine(digit.atom, missing, self.reason)
                    return [digits]
                else:
                    return None
            groups.append(tuple(group))
        return groups

    def unify(self, one: Axis, other: Axis) -> bool:
        """Ties two lists of digits; false if their digits do not fit each other.

        As with :meth:`break_at`, a changed ``atoms.version`` means: ask again.
        """
        atoms = self.atoms
        for a, b in zip(one, other, strict=False):
            if atoms.expansion(a.atom) is not None or atoms.expansion(b.atom) is not None:
                atoms.version += 1  # changed by an earlier step of this very walk
                return True
            small, large = sorted((a.atom, b.atom), key=lambda atom: atoms.size[atom])
            if atoms.size[small] == atoms.size[large]:
                atoms.union(small, large, self.reason)
            elif atoms.size[large] % atoms.size[small] == 0:
                atoms.refine(large, atoms.size[small], self.reason)
                return True
            else:
                return False
        return len(one) == len(other)

    def vanish(self, form: Form) -> None:
        """Adds the equation ``form = 0``."""
        if form:
            self.equations.append(form)

    # -- what was seen together ------------------------------------------------------------------

    def record(self, axis: Axis, others: Sequence[Axis]) -> None:
        """Notes that the digits of ``axis`` travel with those of ``others``."""
        if axis:
            self.log.add(Plain((_bare(axis), *map(_bare, others))))

    def record_scaled(self, axis: Axis, others: Sequence[Axis]) -> None:
        """Notes the same for scales, if there is one along ``axis``."""
        if any(digit.form for digit in axis):
            self.scaled_log[Plain((axis, *map(_bare, others)))] = None

    def record_axes(self, value: Value) -> None:
        """Notes every axis of a value with its other axes."""
        for _, leaf in self.leaves(value):
            for i, axis in enumerate(leaf.axes):
                others = [*leaf.axes[:i], *leaf.axes[i + 1 :]]
                self.record(axis, others)
                self.record_scaled(axis, others)

    def settled(self, entry: Plain) -> Iterator[Plain]:
        """The plain parts of a log entry, in terms of atoms as they are now."""
        for _, leaf in self.leaves(self.resolve(entry)):
            yield leaf

    def split(self, atom: int, sizes: Sequence[int]) -> None:
        """Cuts the range of an atom; whatever lived under it gets one instance a piece."""
        below = self.log.under(atom)
        self.atoms.split(atom, tuple(sizes), self.reason)
        for low in below:
            self.atoms.multiply(low, atom, len(sizes), self.reason)


def _bare(axis: Axis) -> Axis:
    if not any(digit.form for digit in axis):
        return axis
    return tuple(digit._replace(form=ZERO) for digit in axis)
