"""Why each axis of each tensor is free, tied or pinned: the ties of the analysis, as plain text."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from math import prod

from coset.symmetry.analysis.atoms import Chains
from coset.symmetry.analysis.digits import Block
from coset.symmetry.analysis.factors import Factory
from coset.symmetry.analysis.walk import Structure
from coset.symmetry.elements import PermutationFactor


def axis_reasons(
    structure: Structure,
    factory: Factory,
    permutations: Sequence[PermutationFactor],
    unread: Collection[int],
) -> dict[str, tuple[str, ...]]:
    """For every tensor one line a digit of an axis, with the chain of operations behind it."""
    teller = _Teller(structure, factory, permutations)
    lines: dict[str, list[str]] = {}
    for i, part in enumerate(structure.parts):
        own = lines.setdefault(part.tensor, [])
        for axis, digits in enumerate(part.axes):
            where = f"axis {axis}{_range(part.block, axis)}"
            if i in unread:
                own.append(f"{where}: never read by the output")
                continue
            sizes = " × ".join(str(structure.atoms.size[atom]) for atom in digits)
            for k, atom in enumerate(digits):
                mark = f", digit {k} of {sizes}" if len(digits) > 1 else ""
                own.append(f"{where}{mark}: {teller.told(part.tensor, axis, atom)}")
    return {tensor: tuple(dict.fromkeys(own)) for tensor, own in lines.items()}


def _range(block: Block, axis: int) -> str:
    """The range that cuts leave of an axis."""
    cuts = [cut for cut in block if cut[0] == axis]
    return "".join(
        f" [{start}:{start + size}]" + (f" in each of {outer}" if outer > 1 else "")
        for _, outer, start, size in cuts
    )


class _Teller:
    """Tells why one digit of one axis is free or pinned."""

    def __init__(
        self,
        structure: Structure,
        factory: Factory,
        permutations: Sequence[PermutationFactor],
    ) -> None:
        self.atoms = structure.atoms
        self.chains: Chains = self.atoms.chains()
        self.factors = dict(_by_class(structure, factory, permutations))
        self.class_of = factory.class_of
        self.places: dict[int, Counter[str]] = {}
        for part in structure.parts:
            for axis, digits in enumerate(part.axes):
                for atom in digits:
                    self.places.setdefault(atom, Counter())[f"{part.tensor} axis {axis}"] += 1
        self.owner: dict[int, str] = {}
        self.copies: dict[tuple[int, str], int] = {}
        for atom, label in enumerate(self.atoms.label):
            if label.startswith("parameter "):
                self.owner[atom] = " ".join(label.split(" ")[1:4])
                self.copies.setdefault((self.atoms.find(atom), self.owner[atom]), atom)

    def told(self, tensor: str, axis: int, atom: int) -> str:
        """The reason, with what ties this axis to another one or to what refuses it."""
        name = f"{tensor} axis {axis}"
        own = self.copies.get((atom, name), atom)
        if self.atoms.pin_of(atom) is None and atom in self.class_of:
            return self._free(own, name, atom)
        return self._pinned(own, atom)

    def _free(self, own: int, name: str, atom: int) -> str:
        factors = self.factors[self.class_of[atom]]
        first = factors[0]
        inside = f" inside {first.within[-1]}" if first.within else ""
        copies = f" and {len(factors) - 1} more of its kind" if len(factors) > 1 else ""
        text = f"free: {first.size} units{inside}, moved by {first.name}{copies}"
        others = self.places[atom].keys() - {name}
        chain = self.chains.nearest(own, lambda other: self.owner.get(other) in others)
        if not others:
            again = self.places[atom][name] > 1
            return f"{text}; tied to {'another part of this' if again else 'no other'} axis"
        if not chain:
            return f"{text}; tied to {min(others)}"
        more = f", and with it to {len(others) - 1} more" if len(others) > 1 else ""
        return f"{text}; tied to {self.owner[chain[-1][0]]} by {_operation(chain[-1][1])}{more}"

    def _pinned(self, own: int, atom: int) -> str:
        chain = self.chains.nearest(own, self.chains.refused.__contains__)
        refused = own if not chain else chain[-1][0]
        reason = self.chains.refused.get(refused, self.atoms.pin_of(atom) or "no factor moves it")
        reason, _, operation = reason.partition(" (")
        steps = [
            f"tied to {_readable(self.atoms.label[other])} by {_operation(why)}"
            for other, why in chain or ()
        ]
        by = operation.rstrip(")")
        told = f"pinned: {reason}" + (f" of {_operation(by)}" if by and by != "output" else "")
        return "; ".join([told, *steps])


def _by_class(
    structure: Structure, factory: Factory, permutations: Sequence[PermutationFactor]
) -> Iterator[tuple[int, list[PermutationFactor]]]:
    """The factors of each class: several if it lives under refused axes."""
    remaining = iter(permutations)
    for k, own in enumerate(factory.classes):
        copies = prod(structure.atoms.size[atom] for atom in own.fixed)
        yield k, list(islice(remaining, copies))


def _readable(label: str) -> str:
    """An atom's label without the words of the analysis.

    >>> _readable("parameter linear1.weight axis 1")
    'linear1.weight axis 1'
    >>> _readable("fresh: a convolution window")
    'a convolution window'
    """
    kind, _, rest = label.partition(" ")
    return rest if kind in ("parameter", "fresh:") else f"the {label}"


def _operation(why: str) -> str:
    """An operation by the name people use.

    >>> _operation("_native_batch_norm_legit_no_training at net.py:7")
    'batch_norm at net.py:7'
    """
    name, at, source = why.partition(" at ")
    name = "batch_norm" if "native_batch_norm" in name else name.lstrip("_")
    return f"{name}{at}{source}"
