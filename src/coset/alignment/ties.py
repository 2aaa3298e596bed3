"""Units that can be exchanged at no cost: counted, and put back near their old places."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.plans import Plan
from coset.alignment.transpositions import transpositions


class Settled(Protocol):
    """What is asked of an ascent when ties are settled."""

    plans: Mapping[str, Plan]

    @property
    def permutations(self) -> Mapping[str, Tensor]:
        """For each factor the unit that is in each place."""
        ...

    def distinct(self, name: str) -> bool:
        """Whether all units of a factor are known to differ, in ``to`` and in the weights."""
        ...

    def glance(self, name: str, side: int) -> Iterator[NDArray[np.floating[Any]]]:
        """Some numbers of each unit in ``to`` (0) or the weights (1): different if units are."""
        ...

    def rows(self, name: str) -> tuple[Float[Tensor, "b h f"], Float[Tensor, "b h f"]]:
        """All numbers of each unit, in ``to`` and in the aligned weights."""
        ...

    def reorder(self, name: str, order: Int[Tensor, "*b h"]) -> None:
        """Moves units of one factor; the order is in the shape of its permutations."""
        ...


def settle_ties(ascent: Settled) -> int:
    """Puts units that have equals nearest to their old places, and counts them.

    Two units are equal if all numbers compared agree: in the weights (two dead units) or in the
    network they are matched to.  Exchanging them changes the objective by nothing, so among all
    such exchanges one with the fewest transpositions is taken.  Heads and the like are exchanged
    with all that is in them, and units inside heads only with those of the same head.  Units of a
    factor that acts twice on one tensor (recurrent matrices) are counted and stay where they are;
    units that are equal but for their sign count as different.
    """
    count = 0
    for name, plan in ascent.plans.items():
        known = not plan.terms or ascent.distinct(name)
        alike = None if known else _exchangeable(ascent, name)
        if alike is None:
            continue
        candidates = torch.from_numpy(alike)
        to, own = (_classes(rows, candidates) for rows in ascent.rows(name))
        tied = _shared(to) | _shared(own)
        count += int(tied.sum())
        if plan.curved or not bool(tied.any()):
            continue
        table = ascent.permutations[name]
        before = table.reshape(plan.copies, -1)
        copies = zip(before.tolist(), to.tolist(), own.tolist(), strict=True)
        after = torch.tensor([nearest_home(*copy) for copy in copies])
        if not torch.equal(after, before):
            ascent.reorder(name, before.argsort(-1).gather(-1, after).reshape(table.shape))
    return count


def _exchangeable(ascent: Settled, name: str) -> NDArray[np.bool_] | None:
    """Units that may have an equal, on either side: those that agree at a glance, if any do."""
    to, own = _alike(ascent.glance(name, 0)), _alike(ascent.glance(name, 1))
    return own if to is None else to if own is None else to | own


def _alike(columns: Iterator[NDArray[np.floating[Any]]]) -> NDArray[np.bool_] | None:
    """Which units have another one with the same number in every column, if any have."""
    alike = None
    for column in columns:
        repeated = _repeated(column)
        if repeated is None:
            return None
        alike = repeated if alike is None else alike & repeated
    return alike


def _repeated(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_] | None:
    """Which entries of each row occur more than once, if any do.

    >>> _repeated(np.array([[3.0, 1.0, 3.0]])).tolist()
    [[True, False, True]]
    """
    rows = values.tolist()
    for row in rows:
        if len(set(row)) < len(row):  # for few numbers faster than to sort them
            break
    else:
        return None
    counts = [Counter(row) for row in rows]
    return np.array([[n[x] > 1 for x in row] for row, n in zip(rows, counts, strict=True)])


def _classes(rows: Float[Tensor, "b h f"], among: Bool[Tensor, "b h"]) -> Int[Tensor, "b h"]:
    """For each unit the first one of its copy that has equal rows; only some are looked at."""
    labels = torch.arange(rows.shape[1]).repeat(len(rows), 1)
    for copy, chosen, found in zip(rows, among, labels, strict=True):
        places = chosen.nonzero().squeeze(-1)
        if len(places):
            same: Tensor = torch.unique(copy[places], dim=0, return_inverse=True)[1].cpu()
            first = torch.full_like(places, len(copy)).scatter_reduce(0, same, places, "amin")
            found[places] = first[same]
    return labels


def _shared(labels: Int[Tensor, "b h"]) -> Bool[Tensor, "b h"]:
    """Which labels occur more than once in their row."""
    counts = torch.zeros_like(labels).scatter_add(1, labels, torch.ones_like(labels))
    return counts.gather(1, labels) > 1


def nearest_home(
    permutation: Sequence[int], places: Sequence[int], units: Sequence[int]
) -> list[int]:
    """The permutation with equals exchanged so that it has as many cycles as can be found.

    Going along a permutation from place to unit to place, one may turn off wherever a place or a
    unit has equals.  So classes are crossings and what lies between them are roads, as many into a
    crossing as out of it; taking out short round trips first leaves the most of them.  With one
    class, every road leads back to its beginning and this is exact; the problem with many classes
    is a hard one, and what is returned is never worse than what was given.

    Args:
        permutation: For each place its unit.
        places: For each place its class.
        units: For each place the class of the unit in it.

    >>> nearest_home([2, 3, 1, 0], [0, 0, 2, 3], [0, 0, 2, 3])  # the first two are equal
    [3, 2, 1, 0]
    """
    after = list(permutation)
    for trip in _round_trips(_roads(permutation, places, units)):
        for here, following in zip(trip, [*trip[1:], trip[0]], strict=True):
            after[here] = following
    swaps = transpositions(torch.tensor([after, list(permutation)]))
    assert isinstance(swaps, Tensor)
    return after if swaps[0] < swaps[1] else list(permutation)


_Crossing = tuple[str, int]
_Roads = dict[_Crossing, dict[_Crossing, list[list[int]]]]
"""From crossing to crossing: the places on each of the roads between them."""


def _roads(permutation: Sequence[int], places: Sequence[int], units: Sequence[int]) -> _Roads:
    """What lies between classes with more than one member."""
    steps: dict[_Crossing, list[tuple[_Crossing, list[int]]]] = {}
    for place, unit in enumerate(permutation):
        steps.setdefault(("place", places[place]), []).append((("unit", units[place]), []))
        steps.setdefault(("unit", units[place]), []).append((("place", places[unit]), [unit]))
    roads: _Roads = {}
    for begin, ways in steps.items():
        for following, passed in ways if len(ways) > 1 else ():
            end, road = following, list(passed)
            while len(steps[end]) == 1:
                end, more = steps[end][0]
                road += more
            roads.setdefault(begin, {}).setdefault(end, []).append(road)
    return roads


def _round_trips(roads: _Roads) -> Iterator[list[int]]:
    """Takes all roads out in round trips, those over the fewest crossings first."""
    length = 1
    while roads:
        for begin in list(roads):
            while begin in roads and (trip := _round_trip(roads, begin, length)):
                passed = []
                for here, there in pairwise(trip):
                    passed += roads[here][there].pop()
                    if not roads[here][there]:
                        del roads[here][there]
                    if not roads[here]:
                        del roads[here]
                yield passed
        length += 1


def _round_trip(roads: _Roads, begin: _Crossing, most: int) -> list[_Crossing] | None:
    """A shortest way back over at most so many roads."""
    came: dict[_Crossing, _Crossing] = {}
    edge = [begin]
    for _ in range(most):
        reached = []
        for here in edge:
            for there in roads[here]:
                if there == begin:
                    trip = [here]
                    while trip[-1] != begin:
                        trip.append(came[trip[-1]])
                    return [*reversed(trip), begin]
                if there not in came:
                    came[there] = here
                    reached.append(there)
        edge = reached
    return None
