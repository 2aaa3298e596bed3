"""Units that can be exchanged at no cost: counted, and put back near their old places."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.ascent import Ascent, Move
from coset.alignment.gains import combine
from coset.alignment.plans import Plan


def settle_ties(ascent: Ascent) -> int:
    """Puts units that have equals nearest to their old places, and counts them.

    Two units are equal if all numbers compared agree: in the weights (two dead units) or in the
    network they are matched to.  Exchanging them changes the objective by nothing, so among all
    best permutations the one with the most fixed points inside each class is taken.
    """
    count = 0
    for name, plan in ascent.plans.items():
        candidates = _exchangeable(ascent, plan)
        if not bool(candidates.any()):
            continue
        tied = torch.zeros_like(candidates)
        for rows in ascent.table.rows(name):
            for copy in range(plan.copies):
                tied[copy] |= _equal_to_another(rows[copy], candidates[copy])
        count += int(tied.sum())
        if plan.copies == 1 and not plan.children and not plan.curved:
            for side in range(2):
                _return_home(ascent, plan, ascent.table.rows(name)[side][0], tied[0])
    return count


def _exchangeable(ascent: Ascent, plan: Plan) -> Bool[Tensor, "b h"]:
    """Units that may have an equal: equal units have equal sums of gains."""
    gains = combine(ascent.table.own(plan.factor.name), len(plan.signs))
    found = np.zeros((plan.copies, plan.factor.size), dtype=bool)
    if gains is not None:
        matrix = gains.at((1,) * gains.signs)
        scale = max(matrix.max(), -matrix.min())
        for axis in (-1, -2):
            rounding = plan.factor.size**0.5 * ascent.precision * scale
            found |= _repeated(matrix.sum(axis), rounding)
    return torch.from_numpy(found)


def _repeated(sums: NDArray[np.floating[Any]], tolerance: float) -> NDArray[np.bool_]:
    """Which entries of each row have another one near them."""
    order = sums.argsort(-1)
    near = np.diff(np.take_along_axis(sums, order, -1), axis=-1) <= tolerance
    found = np.zeros(sums.shape, dtype=bool)
    pad = np.zeros((len(sums), 1), dtype=bool)
    either = np.concatenate([near, pad], -1) | np.concatenate([pad, near], -1)
    np.put_along_axis(found, order, either, -1)
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
    ascent: Ascent, plan: Plan, rows: Float[Tensor, "h f"], tied: Bool[Tensor, " h"]
) -> None:
    """Among units with equal rows, leaves as many as possible where they were."""
    if not bool(tied.any()):
        return
    name = plan.factor.name
    places = tied.nonzero().squeeze(-1)
    labels = _classes(rows, tied)
    before = ascent.permutations[name]
    after = before.clone()
    for label in labels.unique().tolist():
        own = places[labels == label]
        after[own] = _homecoming(own, before[own])
    if not torch.equal(after, before):
        order = before.argsort()[after]
        ascent.apply(plan, Move({name: order}, {}, 0.0, 0.0))


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
