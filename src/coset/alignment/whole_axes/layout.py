"""Finds out whether the factors of a group move whole axes, and lays these out."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from coset.alignment.plans import lone_signs, make_plans, matched_tensors
from coset.alignment.whole_axes.axes import Axes, Axis, AxisTerm, slot_of
from coset.alignment.whole_axes.strips import Strip
from coset.symmetry.elements import Site
from coset.symmetry.group import SymmetryGroup


def axes_of(group: SymmetryGroup) -> Axes | None:
    """The layout of a group, or ``None`` if some factor moves something else than whole axes."""
    return group.remembered("axes to match", lambda: _axes_of(group))


def _axes_of(group: SymmetryGroup) -> Axes | None:
    plans = make_plans(group)
    if lone_signs(group) or group.aliases:
        return None
    if any(p.copies > 1 or p.children or p.curved or p.factor.within for p in plans.values()):
        return None
    sites = [site for factor in group.permutations for site in factor.sites]
    sites += [site for factor in group.scalings for site in factor.sites]
    if any(site.block or site.parents or len(site.digits) > 1 for site in sites):
        return None
    views = _views(group, sites)
    moved = {tensor: _moved(group, tensor, view) for tensor, view in views.items()}
    if any(axes is None for axes in moved.values()):
        return None
    known = {tensor: axes for tensor, axes in moved.items() if axes is not None}
    return _laid_out(group, views, known)


def _laid_out(
    group: SymmetryGroup,
    views: Mapping[str, tuple[int, ...]],
    moved: Mapping[str, tuple[Axis, ...]],
) -> Axes:
    """Everything in its place: signs in slots, vectors in strips, the rest in terms."""
    plans, matched = make_plans(group), matched_tensors(group)
    along = {
        name: [(t, a) for t, axes in moved.items() for a in axes if a.factor == name]
        for name in plans
    }
    signs = {
        name: tuple(dict.fromkeys(a.sign for t, a in own if a.sign and t in matched))
        for name, own in along.items()
    }
    vectors = {n for n, v in views.items() if len(v) == len(group.shapes[n]) == 1}
    slots = {n: [(t, a, slot_of(a.sign, signs[n])) for t, a in own] for n, own in along.items()}
    strips, scales, terms = {}, {}, {}
    for name, own in slots.items():
        depth = max((k for t, _, k in own if t in matched), default=-1) + 1
        rows = {t: k for t, _, k in own if t in vectors}
        strips[name] = Strip.of(rows, matched, depth)
        tables = {s.name: slot_of(s.name, signs[name]) for s in group.scalings if s.along == name}
        scales[name] = Strip.of(tables, frozenset(), depth)
        terms[name] = tuple(
            _term(t, axis, k, views[t], moved[t])
            for t, axis, k in own
            if t in matched and t not in vectors
        )
    return Axes(views, moved, signs, strips, scales, terms, plans)


def _views(group: SymmetryGroup, sites: Iterable[Site]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for site in sites:
        if len(site.view) > len(found.get(site.tensor, ())):
            found[site.tensor] = site.view
    return found


def _moved(group: SymmetryGroup, tensor: str, view: tuple[int, ...]) -> tuple[Axis, ...] | None:
    """The axes that factors move, in order; ``None`` if they are no axes of the view."""
    signs: dict[int | None, str] = {}
    for scaling in group.scalings:
        for site in scaling.sites:
            if scaling.domain != "positive" and site.tensor == tensor and site.power % 2:
                place = place_of(site, view)
                if place in signs:
                    return None  # two signs meet
                signs[place] = scaling.name
    axes: list[Axis] = []
    for factor in group.permutations:
        for site in factor.sites:
            if site.tensor == tensor:
                place = place_of(site, view)
                if place is None or any(axis.place == place for axis in axes):
                    return None
                axes.append(Axis(place, factor.name, signs.pop(place, None)))
    return None if signs else tuple(sorted(axes, key=lambda axis: axis.place))


def place_of(site: Site, view: Sequence[int]) -> int | None:
    """Where the digit of a site is among the axes of a view of the same tensor."""
    (digit,) = site.digits
    size, stride = site.view[digit], prod(site.view[digit + 1 :])
    for place, length in enumerate(view):
        if (length, prod(view[place + 1 :])) == (size, stride):
            return place
    return None


def _term(
    tensor: str, own: Axis, slot: int, view: tuple[int, ...], axes: Sequence[Axis]
) -> AxisTerm:
    units, middle = view[own.place], 0 < own.place < len(view) - 1
    return AxisTerm(
        tensor,
        own,
        slot,
        frozenset(axis.factor for axis in axes if axis is not own),
        prod(view) // units,
        (*(d for d in range(len(view)) if d != own.place), own.place) if middle else (),
        (-1, units) if own.place else (units, -1),
    )
