"""Sorting units by what is known of them, with ties broken column after column."""

from collections.abc import Iterable

import torch
from torch import Tensor

from coset.symmetry.elements import Site
from coset.symmetry.removing.crossings import rows_of


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


def rounded(keys: Tensor, grid: float) -> Tensor:
    """Keys as multiples of a grid, so that what differs by rounding alone is tied."""
    size = keys.square().flatten(1).mean(-1).sqrt()
    # a power of two: norms of exactly one stay in the middle of their cell
    unit = torch.where(size > 0, size, 1.0).log2().floor().exp2() * grid
    return (keys / unit.view(-1, 1, 1, 1)).round()


def distinct(ranks: Tensor) -> bool:
    """Whether no two units have the same rank."""
    return ranks.shape[-1] < 2 or bool((ranks.sort(-1).values.diff(dim=-1) > 0).all())


def refined(ranks: Tensor, keys: Tensor) -> Tensor:
    """Breaks ties of dense ranks by keys, larger first, column after column."""
    while True:
        order = ranks.argsort(dim=-1, stable=True)
        tied = ranks.gather(-1, order).diff(dim=-1) == 0
        rows = keys.gather(-2, order.unsqueeze(-1).expand_as(keys))
        differs = (rows.diff(dim=-2) != 0) & tied.unsqueeze(-1)
        columns = differs.flatten(0, -2).any(0).nonzero()
        if not len(columns):
            return ranks
        column = keys[..., int(columns[0])]
        order = column.argsort(dim=-1, descending=True, stable=True)
        order = order.gather(-1, ranks.gather(-1, order).argsort(dim=-1, stable=True))
        steps = (ranks.gather(-1, order).diff(dim=-1) != 0) | (
            column.gather(-1, order).diff(dim=-1) != 0
        )
        dense = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
        ranks = torch.empty_like(ranks).scatter_(-1, order, dense)
