"""Sorting units by what is known of them, with ties broken column after column.

And which factors and sites come first: those of which most is known.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from coset.symmetry.analysis.digits import Block
from coset.symmetry.elements import PermutationFactor, Site
from coset.symmetry.removing.crossings import plainness, rows_of


def keys_of(entries: Tensor, site: Site, unordered: Iterable[int]) -> Tensor:
    """What to sort units by, ``(m, copies, units, length)``: entries in order where that is known.

    Along digits whose order is not fixed yet only the sorted values are the same everywhere.
    """
    own = [*site.parents, *site.digits]
    free = [d for d in range(len(site.view)) if d in set(unordered) and d not in own]
    if not free:
        return rows_of(entries, site)
    kept = [d for d in range(len(site.view)) if d not in free]
    front = entries.permute(0, *(1 + d for d in (*kept, *free)))
    values = front.flatten(1 + len(kept)).sort(-1, descending=True).values
    place = {d: k for k, d in enumerate(kept)}
    moved = Site(
        site.tensor,
        (),
        (*(site.view[d] for d in kept), values.shape[-1]),
        tuple(place[d] for d in site.digits),
        tuple(place[d] for d in site.parents),
    )
    return rows_of(values, moved)


def distinct(ranks: Tensor) -> bool:
    """Whether no two units have the same rank."""
    return ranks.shape[-1] < 2 or bool((ranks.sort(-1).values.diff(dim=-1) > 0).all())


def refined(ranks: Tensor, keys: Tensor, rounding: float) -> Tensor:
    """Breaks ties of dense ranks by keys, larger first, column after column.

    What differs by rounding alone, relative to the keys of its member, stays tied.
    """
    small = rounding * keys.square().flatten(1).mean(-1).sqrt().view(-1, 1, 1)
    start = 0
    while start < keys.shape[-1]:
        order = ranks.argsort(dim=-1, stable=True)
        tied = ranks.gather(-1, order).diff(dim=-1) == 0
        left = keys[..., start:]
        rows = left.gather(-2, order.unsqueeze(-1).expand_as(left))
        differs = (rows.diff(dim=-2).abs() > small.unsqueeze(-1)) & tied.unsqueeze(-1)
        columns = differs.flatten(0, -2).any(0).nonzero()
        if not len(columns):
            break
        start += int(columns[0]) + 1
        ranks = _split(ranks, keys[..., start - 1], small)
    return ranks


def _split(ranks: Tensor, column: Tensor, small: Tensor) -> Tensor:
    """Dense ranks after one more column; a gap that is not small comes between two ranks."""
    order = column.argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, ranks.gather(-1, order).argsort(dim=-1, stable=True))
    steps = (ranks.gather(-1, order).diff(dim=-1) != 0) | (
        column.gather(-1, order).diff(dim=-1).abs() > small
    )
    dense = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    return torch.empty_like(ranks).scatter_(-1, order, dense)


def readiness(
    factor: PermutationFactor, open_digits: dict[tuple[str, Block], set[int]]
) -> tuple[bool, bool]:
    """Sorts first what its main tensor decides, then what any tensor decides."""
    ready = [not _is_open(site, open_digits) for site in factor.sites]
    main = min(range(len(ready)), key=lambda k: _plainness_of_site(factor.sites[k]))
    return not ready[main], not any(ready)


def _plainness_of_site(site: Site) -> tuple[bool, int]:
    return len(site.view) == len(site.digits) + len(site.parents), plainness(site.tensor)


def _is_open(site: Site, open_digits: dict[tuple[str, Block], set[int]]) -> bool:
    own = {*site.parents, *site.digits}
    return bool(open_digits.get((site.tensor, site.block), {-1}) - own)


def openness(site: Site, open_digits: dict[tuple[str, Block], set[int]]) -> tuple[bool, bool, int]:
    """Sorts first the sites whose other axes are in order, weights before biases."""
    return (_is_open(site, open_digits), *_plainness_of_site(site))
