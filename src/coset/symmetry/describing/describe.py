"""A symmetry group as text: a table of its factors, and why each axis is free, tied or pinned."""

import difflib
import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Protocol

from coset.errors import CosetError
from coset.printing import several
from coset.symmetry.elements import (
    PermutationFactor,
    Pinned,
    ScaleInvariance,
    ScalingFactor,
    Site,
    Tables,
)

WIDTH = 110
_NAME = 44
"""Columns a name may take."""
_LINES = 2
"""Lines that the places of one factor may take in the table."""


class Described(Protocol):
    """What a description needs to know of a group."""

    @property
    def permutations(self) -> tuple[PermutationFactor, ...]: ...  # noqa: D102
    @property
    def scalings(self) -> tuple[ScalingFactor, ...]: ...  # noqa: D102
    @property
    def invariances(self) -> tuple[ScaleInvariance, ...]: ...  # noqa: D102
    @property
    def pinned(self) -> tuple[Pinned, ...]: ...  # noqa: D102
    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...  # noqa: D102
    @property
    def aliases(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def reasons(self) -> Mapping[str, tuple[str, ...]]: ...  # noqa: D102
    @property
    def tables(self) -> Tables: ...  # noqa: D102
    def log_order(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class _Entry:
    """One factor of the table."""

    name: str
    kind: str
    size: int
    where: tuple[str, ...]
    inside: str | None = None

    @property
    def names(self) -> list[str]:
        """The lines of the first column."""
        below = [] if self.inside is None else _broken(f"  inside {self.inside}", "    ")
        return [*_broken(self.name, "  "), *below]

    @property
    def module(self) -> str:
        """The module that the factor is named after, with a dot."""
        base = self.name.partition(":")[0] if ":" in self.name else f"{self.name}."
        return f"{re.sub(r'[#][0-9]+', '', base).rpartition('.')[0]}."


def table(group: Described) -> str:
    """The factors as an aligned table of at most 110 columns, then what can be counted.

    Scalings of size one (a whole layer up, the next one down) are counted below the table.

    >>> import torch
    >>> from coset import discover
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    >>> print(table(discover(net, torch.zeros(1, 3))).splitlines()[2])
    0               permutation          5  0.weight axis 0, 0.bias axis 0, 2.weight axis 1
    """
    entries = [_permutation(group, factor) for factor in nested(group.permutations)]
    entries += [_scaling(group, f) for f in group.scalings if f.size > 1 or f.within]
    entries += _invariances(group)
    return "\n".join([*_aligned(entries), "", *_counts(group)])


def explain(group: Described, tensor: str | None = None) -> str:
    """For one tensor or for all: why each axis is free, tied or pinned.

    Raises:
        CosetError: If the group knows no tensor of that name.
    """
    if tensor is None:
        return "\n".join(_explained(group, name) for name in group.shapes)
    name = group.aliases.get(tensor, tensor)
    if name not in group.shapes:
        known = [*group.shapes, *group.aliases]
        close = difflib.get_close_matches(tensor, known, n=3, cutoff=0.4)
        raise CosetError(
            f"got no tensor called {tensor!r}",
            f"needed one of the {len(group.shapes)} tensors of the network",
            f"did you mean {' or '.join(map(repr, close))}?"
            if close
            else f"the first one is {next(iter(known), 'missing')!r}",
        )
    shared = "" if name == tensor else f"{tensor} is the same tensor as {name}\n"
    return shared + _explained(group, name)


def site_axes(site: Site, shape: Sequence[int]) -> list[list[int]]:
    """Which digits of a site belong to which axis of the tensor.

    >>> site_axes(Site("w", (), (3, 4, 5), (1,)), (12, 5))
    [[0, 1], [2]]
    """
    lengths = list(shape)
    for axis, outer, _, size in site.block:
        lengths[axis] = outer * size
    axes: list[list[int]] = []
    position = 0
    for length in lengths:
        own: list[int] = []
        missing = length
        while missing > 1:
            missing //= site.view[position]
            own.append(position)
            position += 1
        axes.append(own)
    return axes


def place(site: Site, shape: Sequence[int]) -> str:
    """Where a site lies: the tensor, its axis, and the rows when it is a part of a fused one."""
    axes = site_axes(site, shape)
    touched = [i for i, digits in enumerate(axes) if set(digits) & set(site.digits)]
    if not touched:
        return site.tensor + _cuts(site, None)
    named = " and ".join(f"axis {axis}{_cuts(site, axis)}" for axis in touched)
    return f"{site.tensor} {named}"


def _cuts(site: Site, axis: int | None) -> str:
    """The range of an axis that a block keeps, as `` [start:stop]``."""
    return "".join(
        f" [{start}:{start + size}]" + (f" in each of {outer}" if outer > 1 else "")
        for own, outer, start, size in site.block
        if axis in (None, own)
    )


def _permutation(group: Described, factor: PermutationFactor) -> _Entry:
    # parts of a tensor that are cut along another axis are one place
    where = tuple(dict.fromkeys(place(site, group.shapes[site.tensor]) for site in factor.sites))
    inside = factor.within[-1] if factor.within else None
    return _Entry(factor.name, "permutation", factor.size, where, inside)


def _scaling(group: Described, factor: ScalingFactor) -> _Entry:
    places = (f"{place(s, group.shapes[s.tensor])} ({s.power:+d})" for s in factor.sites)
    where = tuple(dict.fromkeys(places))
    inside = factor.within[-1] if factor.within else None
    return _Entry(factor.name, f"scaling, {factor.domain}", factor.size, where, inside)


def _invariances(group: Described) -> list[_Entry]:
    """One entry a kind: each invariance concerns a single tensor."""
    entries = []
    for kind in dict.fromkeys(found.groups for found in group.invariances):
        own = [found for found in group.invariances if found.groups == kind]
        where = [f"{f.tensor}" + ("" if kind == "layer" else f" axis {f.axis}") for f in own]
        name = f"{len(own)} tensor{'s' * (len(own) > 1)}, per {kind}"
        entries.append(_Entry(name, "invariance", sum(found.count for found in own), tuple(where)))
    return entries


def _aligned(entries: Sequence[_Entry]) -> list[str]:
    """The lines of the table."""
    names = max([len("factor"), *(len(name) for entry in entries for name in entry.names)])
    kinds = max([len("kind"), *(len(entry.kind) for entry in entries)])
    sizes = max([len("size"), *(len(str(entry.size)) for entry in entries)])
    room = WIDTH - names - kinds - sizes - 6
    lines = [f"{'factor':{names}}  {'kind':{kinds}}  {'size':>{sizes}}  acts on"]
    short = False
    for entry in entries:
        places, shortened = _listed(entry, room)
        short |= shortened
        cells = zip_longest(entry.names, [entry.kind], [str(entry.size)], places, fillvalue="")
        lines += [
            f"{name:{names}}  {kind:{kinds}}  {size:>{sizes}}  {where}".rstrip()
            for name, kind, size, where in cells
        ]
    lines.insert(1, "-" * max(map(len, lines)))
    if short:
        lines.append("(.name is in the module that the factor is named after, …name near it)")
    return lines


def _listed(entry: _Entry, room: int) -> tuple[list[str], bool]:
    """As many places as fit in the lines there are, and whether names had to be shortened."""
    if (lines := _filled(entry.where, room)) is not None:
        return lines, False
    where = [_relative(name, entry.module) for name in entry.where]
    for shown in range(len(where), 0, -1):
        rest = [f"and {len(where) - shown} more"] if shown < len(where) else []
        first = [_shortened(where[0], room - 1)] if shown == 1 else where[:shown]
        if (lines := _filled([*first, *rest], room)) is not None:
            return lines, where != list(entry.where)
    return [], False


def _filled(words: Sequence[str], room: int) -> list[str] | None:
    """Words filled into lines, never broken inside; nothing if they need too many lines."""
    lines = [""]
    for k, word in enumerate(words):
        text = word + ("," if k + 1 < len(words) else "")
        if len(text) > room:
            return None
        if lines[-1] and len(lines[-1]) + 1 + len(text) > room:
            lines.append("")
        lines[-1] += f" {text}" if lines[-1] else text
    return lines if len(lines) <= _LINES else None


def _relative(name: str, module: str) -> str:
    """A place as seen from a module.

    >>> _relative("block.up.weight axis 0", "block.up."), _relative("block.down.bias", "block.up.")
    ('.weight axis 0', '…down.bias')
    """
    if name.startswith(module):
        return f".{name.removeprefix(module)}"
    own, theirs = name.partition(" ")[0].split("."), module.split(".")
    pairs = zip(own[:-1], theirs, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return "…" + name[sum(len(word) + 1 for word in own[:common]) :] if common else name


def _broken(name: str, indent: str) -> list[str]:
    """A long name on two lines, broken before a dot."""
    if len(name) <= _NAME:
        return [name]
    dot = name.rfind(".", 0, _NAME)
    if dot <= 0 or len(name) - dot + len(indent) > _NAME:
        return [_shortened(name, _NAME)]
    return [name[:dot], indent + name[dot:]]


def _shortened(text: str, width: int) -> str:
    """Long names lose their middle.

    >>> _shortened("encoder.layers.0.linear", 16)
    'encod…s.0.linear'
    """
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def nested(factors: Sequence[PermutationFactor]) -> list[PermutationFactor]:
    """Each factor followed by those inside it."""
    inside: dict[str | None, list[PermutationFactor]] = {}
    for factor in factors:
        inside.setdefault(factor.within[-1] if factor.within else None, []).append(factor)
    ordered: list[PermutationFactor] = []
    waiting = inside.get(None, [])[::-1]
    while waiting:
        factor = waiting.pop()
        ordered.append(factor)
        waiting += inside.get(factor.name, [])[::-1]
    return ordered


def _counts(group: Described) -> list[str]:
    copies = group.tables.copies
    order = group.log_order()
    scales = Counter[str]()
    for factor in group.scalings:
        scales[factor.domain] += copies(factor) * factor.size
    told = ", ".join(f"{count} {domain}" for domain, count in scales.items())
    single = sum(factor.size == 1 and not factor.within for factor in group.scalings)
    lines = [
        f"permutations: {several(len(group.permutations), 'factor')}, log order {order:.2f} "
        f"(about 10^{order / math.log(10):.0f} elements)",
        f"scales: {several(len(group.scalings), 'factor')}" + (f" ({told})" if told else ""),
    ]
    if single:
        verb = "has size 1 and is" if single == 1 else "have size 1 and are"
        lines.append(f"  {single} of them {verb} not in the table")
    if group.invariances:
        count = sum(found.count for found in group.invariances)
        plural = "s" * (len(group.invariances) > 1)
        lines.append(f"invariances: {count} in {len(group.invariances)} tensor{plural}")
    return [*lines, *_pinned(group)]


def _pinned(group: Described) -> list[str]:
    if not group.pinned:
        return ["pinned axes: none"]
    reasons = Counter(pin.reason for pin in group.pinned)
    told = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return textwrap.wrap(f"pinned axes: {told}", WIDTH, subsequent_indent="  ")


def _explained(group: Described, name: str) -> str:
    shape = group.shapes[name]
    size = " × ".join(map(str, shape)) or "a number"
    lines = [f"{name} ({size})"]
    lines += [f"  {line}" for line in group.reasons.get(name, ())]
    if name not in group.reasons:
        lines += [f"  {line}" for line in _from_factors(group, name)]
    for scaling in group.scalings:
        for site in scaling.sites:
            if site.tensor == name:
                lines.append(
                    f"  scaled ({scaling.domain}, power {site.power:+d}) by {scaling.name}: "
                    f"{scaling.size} scale{'s' * (scaling.size > 1)} along "
                    f"{place(site, shape).removeprefix(name).strip() or 'the whole of it'}"
                )
    lines += [
        f"  its scale is divided out by a normalisation, per {found.groups}"
        for found in group.invariances
        if found.tensor == name
    ]
    lines += [
        f"  {pin.operation} was refused: {pin.reason}"
        for pin in group.pinned
        if pin.tensor == name and pin.axis is None and pin.operation != "graph"
    ]
    return "\n".join(lines if len(lines) > 1 else [*lines, "  no axis is longer than one"])


def _from_factors(group: Described, name: str) -> list[str]:
    """What the factors themselves tell, for groups written by hand."""
    shape = group.shapes[name]
    lines = [
        f"{place(site, shape).removeprefix(name).strip()}: free, moved by {factor.name}"
        for factor in group.permutations
        for site in factor.sites
        if site.tensor == name
    ]
    return lines or ["no permutation factor acts on it"]
