"""Who was seen with whom, kept in terms of atoms as they are now."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from coset.symmetry.analysis.atoms import Atoms
from coset.symmetry.analysis.digits import Plain


class Log:
    """Entries are pseudo-values: axis 0 holds the digits in question, the others travel with them.

    Entries are indexed by atom, so that a tie or a cut rewrites only what it touches.
    """

    def __init__(self, atoms: Atoms, resolve: Callable[[Plain], Iterable[Plain]]) -> None:
        self._atoms = atoms
        self._resolve = resolve
        self._entries: dict[Plain, None] = {}
        self._holding: dict[int, dict[Plain, None]] = {}
        self._changes_seen = len(atoms.changes)

    def __iter__(self) -> Iterator[Plain]:
        """All entries, up to date."""
        self._catch_up()
        return iter(self._entries)

    def add(self, entry: Plain) -> None:
        """Notes an entry."""
        for leaf in self._resolve(entry):
            if leaf not in self._entries:
                self._entries[leaf] = None
                for atom in _atoms_of(leaf):
                    self._holding.setdefault(atom, {})[leaf] = None

    def under(self, atom: int) -> list[int]:
        """The atoms that had ``atom`` beside them wherever they occurred."""
        self._catch_up()
        beside = {
            digit.atom: None for entry in self._holding.get(atom, ()) for digit in entry.axes[0]
        }
        return [
            low
            for low in beside
            if low != atom
            and all(
                sees(entry, atom)
                for entry in self._holding[low]
                if any(digit.atom == low for digit in entry.axes[0])
            )
        ]

    def _catch_up(self) -> None:
        """Rewrites the entries whose atoms were tied or cut since the last time."""
        while self._changes_seen < len(self._atoms.changes):
            atom = self._atoms.changes[self._changes_seen]
            self._changes_seen += 1
            for entry in list(self._holding.get(atom, ())):
                del self._entries[entry]
                for other in _atoms_of(entry):
                    del self._holding[other][entry]
                self.add(entry)


def _atoms_of(entry: Plain) -> set[int]:
    return {digit.atom for axis in entry.axes for digit in axis}


def sees(entry: Plain, atom: int) -> bool:
    """Whether the first axis of an entry can look at ``atom`` without ambiguity.

    The one of its own axis counts if there is one; an atom met twice elsewhere is ambiguous.
    """
    own = sum(digit.atom == atom for digit in entry.axes[0])
    if own:
        return own == 1
    return sum(digit.atom == atom for axis in entry.axes[1:] for digit in axis) == 1


def aligned(entry: Plain) -> set[int]:
    """The atoms that the first axis of an entry can look at without ambiguity."""
    own = Counter(digit.atom for digit in entry.axes[0])
    elsewhere = Counter(digit.atom for axis in entry.axes[1:] for digit in axis)
    once = {atom for atom, count in own.items() if count == 1}
    return once | {atom for atom, count in elsewhere.items() if count == 1 and atom not in own}


def dependencies(log: Iterable[Plain]) -> dict[int, set[int]]:
    """For each atom the atoms it may depend on: those found beside it wherever it occurs."""
    above: dict[int, set[int]] = {}
    for entry in log:
        allowed = aligned(entry)
        for atom in {digit.atom for digit in entry.axes[0]}:
            above[atom] = above[atom] & allowed if atom in above else set(allowed)
    for atom, found in above.items():
        found.discard(atom)
    return above
