"""Finds out along which axes of which tensors scales run, and lays these out."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from coset.alignment.assignment import Indices
from coset.alignment.plans import matched_tensors
from coset.alignment.scales.tables import Runs, ScaledAxes, Table
from coset.symmetry.elements import ScalingFactor, Site
from coset.symmetry.group import SymmetryGroup


def stretching(group: SymmetryGroup) -> tuple[ScalingFactor, ...]:
    """Scalings that may change sizes, not only signs."""
    return tuple(scaling for scaling in group.scalings if scaling.domain != "sign")


def scaled_sites(factor: ScalingFactor, group: SymmetryGroup) -> list[Site]:
    """Where a factor scales what is matched."""
    matched = matched_tensors(group)
    return [site for site in factor.sites if site.tensor in matched and site.power]


def scaled_axes(group: SymmetryGroup) -> ScaledAxes | None:
    """The layout of a group's scales, or ``None`` if some run along something else."""
    return group.remembered("scaled axes", lambda: _scaled_axes(group))


def _scaled_axes(group: SymmetryGroup) -> ScaledAxes | None:
    sites = {factor.name: scaled_sites(factor, group) for factor in stretching(group)}
    every = [site for own in sites.values() for site in own]
    if any(site.block or site.parents or len(site.digits) != 1 for site in every):
        return None
    views: dict[str, tuple[int, ...]] = {}
    for site in every:
        views[site.tensor] = max(site.view, views.get(site.tensor, ()), key=len)
    places = {(s.tensor, s.view, s.digits): place_of(s, views[s.tensor]) for s in every}
    if any(place is None for place in places.values()):
        return None
    kept = {
        n: tuple(sorted({p for key, p in places.items() if key[0] == n and p is not None}))
        for n in views
    }
    vectors = tuple(n for n, view in views.items() if len(group.shapes[n]) == len(view) == 1)
    tables = _laid_out(vectors, views, kept)

    def entries(site: Site) -> Indices:
        place, table = places[site.tensor, site.view, site.digits], tables[site.tensor]
        assert place is not None
        part = table.parts[table.kept.index(place)]
        return np.arange(part.start, part.stop)

    acting = {name: [(s.power, entries(s)) for s in own] for name, own in sites.items() if own}
    factors = dict(zip(acting, Runs.of(len(own[0][1]) for own in acting.values()), strict=True))
    laid = [
        (np.arange(factors[name].start, factors[name].stop), where, np.full(len(where), power))
        for name, own in acting.items()
        for power, where in own
    ]
    units, where, powers = (
        np.concatenate(parts) if laid else np.empty(0, np.int64)
        for parts in (zip(*laid, strict=True) if laid else ((), (), ()))
    )
    return ScaledAxes(tables, vectors, factors, units, where, powers.astype(np.float64))


def _laid_out(
    vectors: Sequence[str],
    views: Mapping[str, tuple[int, ...]],
    kept: Mapping[str, tuple[int, ...]],
) -> dict[str, Table]:
    """The tables of all tensors: vectors first, then those of one axis, then the others."""
    rest = sorted((n for n in views if n not in vectors), key=lambda n: len(kept[n]) > 1)
    names = [*vectors, *rest]
    places = iter(Runs.of(views[n][place] for n in names for place in kept[n]))
    return {n: Table(views[n], kept[n], tuple(next(places) for _ in kept[n])) for n in names}


def place_of(site: Site, view: Sequence[int]) -> int | None:
    """Where the digit of a site is among the axes of a view of the same tensor."""
    (digit,) = site.digits
    size, stride = site.view[digit], prod(site.view[digit + 1 :])
    for place, length in enumerate(view):
        if (length, prod(view[place + 1 :])) == (size, stride):
            return place
    return None
