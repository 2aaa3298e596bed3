"""Units that can be exchanged at no cost: counted, and put back near their old places."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.plans import Plan


class Settled(Protocol):
    """What is asked of an ascent when ties are settled."""

    plans: Mapping[str, Plan]

    @property
    def permutations(self) -> Mapping[str, Tensor]:
        """For each factor the unit that is in each place."""
        ...

    def glance(self, name: str, side: int) -> Iterator[NDArray[np.floating[Any]]]:
        """Some numbers of each unit in ``to`` (0) or the weights (1): different if units are."""
        ...

    def rows(self, name: str) -> tuple[Float[Tensor, "b h f"], Float[Tensor, "b h f"]]:
        """All numbers of each unit, in ``to`` and in the aligned weights."""
        ...

    def reorder(self, name: str, order: Int[Tensor, " h"]) -> None:
        """Moves units of one factor."""
        ...


def settle_ties(ascent: Settled) -> int:
    """Puts units that have equals nearest to their old places, and counts them.

    Two units are equal if all numbers compared agree: in the weights (two dead units) or in the
    network they are matched to.  Exchanging them changes the objective by nothing, so among all
    best permutations the one with the most fixed points inside each class is taken.
    """
    count = 0
    for name, plan in ascent.plans.items():
        if not plan.terms:
            continue
        candidates = _exchangeable(ascent, name)
        if not bool(candidates.any()):
            continue
        tied = torch.zeros_like(candidates)
        for rows in ascent.rows(name):
            for copy in range(plan.copies):
                tied[copy] |= _equal_to_another(rows[copy], candidates[copy])
        count += int(tied.sum())
        if plan.copies == 1 and not plan.children and not plan.curved:
            for side in range(2):
                _return_home(ascent, name, ascent.rows(name)[side][0], tied[0])
    return count


def _exchangeable(ascent: Settled, name: str) -> Bool[Tensor, "b h"]:
    """Units that may have an equal, on either side: those that agree at a glance."""
    sides = []
    for side in range(2):
        columns = ascent.glance(name, side)
        alike = _repeated(next(columns))
        while alike.any() and (column := next(columns, None)) is not None:
            alike &= _repeated(column)
        sides.append(alike)
    return torch.from_numpy(sides[0] | sides[1])


def _repeated(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Which entries of each row occur more than once.

    >>> _repeated(np.array([[3.0, 1.0, 3.0]])).tolist()
    [[True, False, True]]
    """
    found = np.zeros(values.shape, dtype=bool)
    ordered = np.sort(values, -1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        for row, value in zip(found, values, strict=True):
            _, label, count = np.unique(value, return_inverse=True, return_counts=True)
            row[:] = count[label] > 1
    return found


def _equal_to_another(rows: Float[Tensor, "h f"], among: Bool[Tensor, " h"]) -> Bool[Tensor, " h"]:
    labels = _classes(rows, among)
    found = torch.zeros_like(among)
    found[among] = labels.bincount()[labels] > 1
    return found


def _classes(rows: Float[Tensor, "h f"], among: Bool[Tensor, " h"]) -> Int[Tensor, " k"]:
    labels: Tensor = torch.unique(rows[among], dim=0, return_inverse=True)[1]
    return labels


def _return_home(
    ascent: Settled, name: str, rows: Float[Tensor, "h f"], tied: Bool[Tensor, " h"]
) -> None:
    """Among units with equal rows, leaves as many as possible where they were."""
    if not bool(tied.any()):
        return
    places = tied.nonzero().squeeze(-1)
    labels = _classes(rows, tied)
    before = ascent.permutations[name]
    after = before.clone()
    for label in labels.unique().tolist():
        own = places[labels == label]
        after[own] = _homecoming(own, before[own])
    if not torch.equal(after, before):
        order = before.argsort()[after]
        ascent.reorder(name, order)


def _homecoming(places: Int[Tensor, " k"], units: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
    """The units in an order that puts each in its own place where that is among the places.

    >>> _homecoming(torch.tensor([1, 4, 6]), torch.tensor([6, 1, 3])).tolist()
    [1, 3, 6]
    """
    home = torch.isin(places, units)
    rest = units[~torch.isin(units, places)].sort().values
    order = places.clone()
    order[~home] = rest
    return order
