"""What to do next: the best places of a factor, alone or with those below it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import best_permutations
from coset.alignment.gains import Allowed, Gains, GainTable, Part, combine, sign_choices
from coset.alignment.plans import MOST_SIGNS, Plan


@dataclass(frozen=True)
class Move:
    """New places of some factors' units, and flips: an element that is the identity elsewhere."""

    permutations: Mapping[str, Tensor]
    flips: Mapping[str, Tensor]
    gained: float
    noise: float


@dataclass(frozen=True)
class Solved:
    """The best permutations of a child for every pair of its parent's units."""

    values: Tensor
    chosen: Tensor
    signs: Tensor


@dataclass(frozen=True)
class Inside:
    """A child and its gain matrices for every pair of its parent's units."""

    plan: Plan
    parts: Sequence[Part]

    def solve(self, flipped: Collection[str], above: Sequence[int]) -> Solved:
        """The best inside every pair, for signs of the parent that are the same for all pairs."""
        gains = combine(self.parts, len(self.plan.signs), flipped=flipped, above=above)
        assert gains is not None
        chosen, values = best_permutations(gains.best())
        signs = gains.signs_at(chosen)
        return Solved(torch.from_numpy(values), torch.from_numpy(chosen), signs)

    def current(self, shape: tuple[int, int, int]) -> float:
        """The gain as things are."""
        gains = combine(self.parts, len(self.plan.signs))
        assert gains is not None
        stays = gains.current().sum(-1).reshape(shape)
        return float(stays.diagonal(axis1=1, axis2=2).sum())


@dataclass(frozen=True)
class Proposer:
    """Finds moves from the state of an ascent, which it shares and never changes.

    Attributes:
        plans: Of all factors.
        table: Where gains come from.
        permutations: Tables of the element so far.
        scales: The same for scales.
        precision: Relative rounding of gains.
    """

    plans: Mapping[str, Plan]
    table: GainTable
    permutations: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    precision: float

    def alone(self, plan: Plan, allowed: Allowed | None, flipped: frozenset[str]) -> Move | None:
        """The best place of one factor, all others being held."""
        parts = self.table.own(plan.factor.name, allowed)
        now = combine(parts, len(plan.signs))
        gains = combine(parts, len(plan.signs), flipped=flipped) if flipped else now
        if gains is None or now is None:
            return None
        return self.best(plan, gains, float(now.current().sum()), flipped)

    def best(
        self, plan: Plan, gains: Gains, current: float = 0.0, flipped: Collection[str] = ()
    ) -> Move:
        """The best place of one factor for some gains.

        Args:
            plan: The factor.
            gains: What its units are worth in all places.
            current: What they are worth where they are.
            flipped: Layers that are flipped along with it.
        """
        name, best = plan.factor.name, gains.best()
        places = self.permutations[name].reshape(plan.copies, -1).numpy().argsort(-1)
        chosen, values = best_permutations(best, places)
        return Move(
            self._shaped({name: torch.from_numpy(chosen)}),
            self._signs(_flips_of(plan, gains.signs_at(chosen)), flipped),
            float(values.sum()) - current,
            self.precision * float(np.abs(best).max(-1).sum()),
        )

    def together(self, plan: Plan, allowed: Allowed | None, flipped: frozenset[str]) -> Move | None:
        """A factor and its children: first the best inside every pair, then the best pairs."""
        below = frozenset(plan.children)
        name, count = plan.factor.name, len(plan.signs)
        own = self.table.own(
            name, lambda t: not t.others & below and (allowed is None or allowed(t))
        )
        inside = [
            Inside(self.plans[child], self.table.pairs(plan, self.plans[child], allowed))
            for child in plan.children
        ]
        inside = [child for child in inside if child.parts]
        if not own and not inside:
            return None
        shape = (plan.copies, plan.factor.size, plan.factor.size)
        mine = combine(own, count, flipped=flipped)
        choices = sign_choices(min(count, MOST_SIGNS))
        choices = [(*choice, *[1] * (count - len(choice))) for choice in choices]
        options, solved = [], []
        for signs in choices:
            values = torch.zeros(shape, dtype=torch.float64)
            if mine is not None:
                values = torch.from_numpy(mine.at(signs)).double()
            found = [child.solve(flipped, signs) for child in inside]
            options.append(sum((f.values.reshape(shape) for f in found), values))
            solved.append(found)
        values, choice = _first_best(torch.stack(options))
        order, total = best_permutations(values.numpy())
        outer = torch.from_numpy(order)
        index = _pair_index(outer)
        taken = choice.reshape(-1)[index]
        permutations = {name: outer}
        flips = _flips_of(plan, torch.tensor(choices, dtype=torch.float64)[taken])
        for k, child in enumerate(inside):
            permutations[child.plan.factor.name] = _pick(
                [f[k].chosen for f in solved], taken, index
            )
            flips |= _flips_of(child.plan, _pick([f[k].signs for f in solved], taken, index))
        now = combine(own, count)
        current = sum((child.current(shape) for child in inside), 0.0)
        current += 0.0 if now is None else float(now.current().sum())
        return Move(
            self._shaped(permutations),
            self._signs(flips, flipped),
            float(total.sum()) - current,
            self.precision * float(values.abs().amax(-1).sum()),
        )

    def _shaped(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: t.reshape(self.permutations[name].shape) for name, t in tables.items()}

    def _signs(self, flips: Mapping[str, Tensor], layers: Collection[str]) -> dict[str, Tensor]:
        signs = {name: flip.reshape(self.scales[name].shape) for name, flip in flips.items()}
        return signs | {name: -torch.ones_like(self.scales[name]) for name in layers}


def cycles(plan: Plan, move: Move) -> Iterator[Move]:
    """The parts of a move of one factor that can be done apart: its cycles, and lone flips.

    Where the objective is not linear a move may go too far as a whole.
    """
    if plan.factor.within or plan.children:
        return
    ((name, order),) = move.permutations.items()
    for cycle in cycles_of(order.tolist()):
        part, flips = torch.arange(len(order)), {}
        part[cycle] = order[cycle]
        for sign, table in move.flips.items():
            flips[sign] = torch.ones_like(table)
            flips[sign][cycle] = table[cycle]
        if len(cycle) > 1 or any(bool((flip < 0).any()) for flip in flips.values()):
            yield Move({name: part}, flips, move.gained, move.noise)


def cycles_of(order: Sequence[int]) -> list[list[int]]:
    """The cycles of a permutation, those of one place included.

    >>> cycles_of([2, 1, 0, 4, 3])
    [[0, 2], [1], [3, 4]]
    """
    seen: set[int] = set()
    found = []
    for first in range(len(order)):
        cycle: list[int] = []
        place = first
        while place not in seen:
            seen.add(place)
            cycle.append(place)
            place = order[place]
        if cycle:
            found.append(cycle)
    return found


def _first_best(options: Tensor) -> tuple[Tensor, Tensor]:
    best = options.amax(0)
    return best, (options == best).int().argmax(0)


def _pick(options: Sequence[Tensor], taken: Tensor, index: Tensor) -> Tensor:
    return torch.stack(list(options))[taken, index]


def _flips_of(plan: Plan, signs: Tensor) -> dict[str, Tensor]:
    """The signs of the units' new places, by name, where there is one to flip."""
    return {
        sign.name: signs[..., k]
        for k, sign in enumerate(plan.signs)
        if bool((signs[..., k] < 0).any())
    }


def _pair_index(outer: Tensor) -> Tensor:
    """Where the pairs ``(i, outer[i])`` of each copy lie in the order (copy, i, j)."""
    copies, units = outer.shape
    first = torch.arange(copies * units).reshape(copies, units) * units
    return (first + outer).reshape(-1)
