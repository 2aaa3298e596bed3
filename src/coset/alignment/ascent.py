"""Coordinate ascent over linear assignments (Ainsworth, Hayase, Srinivasa 2023), made dependable.

One factor is solved at a time, exactly, all others being held; the objective ``<to, aligned>``
never falls.  What differs from the published loop: an anchored start, strict improvement beyond
rounding, factors are looked at again only when a neighbour has moved, factors that live under
others are solved together with them, and signs are solved along with permutations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.assignment import best_permutations
from coset.alignment.gains import Gains, GainTable, sign_choices
from coset.alignment.plans import Plan, Term
from coset.symmetry.action import permute_tensor, scale_tensor_
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights

Allowed = Callable[[Term], bool]


@dataclass(frozen=True)
class Move:
    """New places of some factors' units, and flips: an element that is the identity elsewhere."""

    permutations: Mapping[str, Tensor]
    flips: Mapping[str, Tensor]
    gained: float
    noise: float


class Ascent:
    """The working state: weights as they are aligned now, and the element that took them there."""

    def __init__(
        self,
        group: SymmetryGroup,
        plans: Mapping[str, Plan],
        to: Weights,
        aligned: Weights,
        element: Element,
    ) -> None:
        self.group = group
        self.plans = plans
        self.to = to
        self.aligned = dict(aligned)
        self.permutations = dict(element.permutations)
        self.scales = dict(element.scales)
        self.table = GainTable(plans, to, self.aligned)
        self.solves = 0
        self._movers = {f.name: group.tables.sites(f) for f in group.permutations}
        self._movers |= {f.name: group.tables.sites(f) for f in group.scalings}
        kinds = {to[site.tensor].dtype for plan in plans.values() for site in plan.factor.sites}
        self.precision = 1e-6 if torch.float32 in kinds else 1e-12

    @property
    def element(self) -> Element:
        """What has been done so far."""
        return Element(dict(self.permutations), dict(self.scales))

    def objective(self) -> float:
        """``<to, aligned>`` over the tensors that are matched, in double precision."""
        names = {term.site.tensor for plan in self.plans.values() for term in plan.terms}
        return sum(inner(self.to[name], self.aligned[name]) for name in sorted(names))

    def anchored_start(self) -> None:
        """Solves every factor once, from what is already known to fit.

        Always the factor with the most anchored numbers a unit: those in tensors where all other
        axes are either fixed (inputs, outputs) or belong to factors solved before.
        """
        solved: set[str] = set()
        waiting = [name for name, plan in self.plans.items() if not self._below(plan)]

        def anchored(term: Term) -> bool:
            return term.others <= solved

        while waiting:
            counts = [self._evidence(self.plans[name], anchored) for name in waiting]
            name = waiting.pop(counts.index(max(counts)))
            self.step(name, anchored)
            solved |= {name, *self.plans[name].children}

    def _below(self, plan: Plan) -> bool:
        """Whether a factor is solved together with the one it lives under."""
        return any(plan.factor.name in other.children for other in self.plans.values())

    def _evidence(self, plan: Plan, anchored: Allowed) -> int:
        below = [self.plans[child] for child in plan.children]
        terms = [*plan.own, *(term for child in below for term in child.terms)]
        return sum(term.features for term in terms if anchored(term))

    def sweep(self, order: Sequence[str], *, most: int) -> int:
        """Solves factors in turn until none can be improved; returns the number of sweeps."""
        waiting = set(order)
        for count in range(1, most + 1):
            for name in order:
                if name in waiting:
                    waiting.discard(name)
                    if self.step(name):
                        waiting |= self.plans[name].neighbours - {name}
                        if self.plans[name].curved:
                            waiting.add(name)
            if not waiting:
                return count
        return most

    def step(self, name: str, allowed: Allowed | None = None) -> bool:
        """Moves one factor, with those below it, to its best place; says whether it moved.

        With ``allowed`` only those terms count.
        """
        plan = self.plans[name]
        self.solves += 1
        move = self._together(plan, allowed) if plan.children else self._alone(plan, allowed)
        if move is None or move.gained <= move.noise:
            return False
        if plan.curved and allowed is None:
            new = self._after(plan, move)
            gained = sum(
                inner(self.to[n], new[n]) - inner(self.to[n], self.aligned[n])
                for n in {t.site.tensor for t in self._terms(plan)}
            )
            if gained <= move.noise:
                return False
        self.apply(plan, move)
        return True

    # -- what to do ------------------------------------------------------------------------------

    def _alone(self, plan: Plan, allowed: Allowed | None) -> Move | None:
        name = plan.factor.name
        gains = self.table.gains(name, allowed)
        if gains is None:
            return None
        best, choice = gains.best()
        places = self.permutations[name].reshape(plan.copies, -1).argsort(-1)
        chosen, values = best_permutations(best, places)
        current = gains.current().double()
        flips = _flips_of(plan, choice, chosen)
        return Move(
            {name: chosen.reshape(self.permutations[name].shape)},
            {n: flip.reshape(self.scales[n].shape) for n, flip in flips.items()},
            float(values.sum() - current.sum()),
            self.precision * float(best.abs().amax(-1).sum()),
        )

    def _together(self, plan: Plan, allowed: Allowed | None) -> Move | None:
        """A factor and its children: first the best inside every pair, then the best pairs."""
        units = plan.factor.size
        shape = (plan.copies, units, units)
        parts: list[tuple[Plan, Gains, Tensor, Tensor | None]] = []
        values = torch.zeros(shape, dtype=torch.float64)
        current = 0.0
        own = self.table.own_gains(plan, allowed)
        choice = None
        if own is not None:
            best, choice = own.best()
            values += best.double()
            current += float(own.current().double().sum())
        for child in (self.plans[name] for name in plan.children):
            gains = self.table.pair_gains(plan, child, allowed)
            if gains is None:
                continue
            best, inner_choice = gains.best()
            chosen, inside = best_permutations(best)
            values += inside.reshape(shape)
            stays = gains.current().double().sum(-1).reshape(shape)
            current += float(stays.diagonal(dim1=1, dim2=2).sum())
            parts.append((child, gains, chosen, inner_choice))
        if own is None and not parts:
            return None
        outer, total = best_permutations(values)
        name = plan.factor.name
        permutations = {name: outer.reshape(self.permutations[name].shape)}
        flips = {} if choice is None else _flips_of(plan, choice, outer)
        for child, _, chosen, inner_choice in parts:
            index = _pair_index(outer)
            picked = chosen[index]
            permutations[child.factor.name] = picked
            if inner_choice is not None:
                flips |= _flips_of(child, inner_choice[index], picked)
        permutations = {n: t.reshape(self.permutations[n].shape) for n, t in permutations.items()}
        flips = {n: flip.reshape(self.scales[n].shape) for n, flip in flips.items()}
        noise = self.precision * float(values.abs().amax(-1).sum())
        return Move(permutations, flips, float(total.sum()) - current, noise)

    # -- doing it --------------------------------------------------------------------------------

    def _terms(self, plan: Plan) -> list[Term]:
        children = [self.plans[name] for name in plan.children]
        return [term for p in (plan, *children) for term in p.terms]

    def _after(self, plan: Plan, move: Move) -> Weights:
        """The tensors that a move changes, as they are after it."""
        new = {}
        for name in plan.tensors:
            sites = [
                (site, table)
                for mover, table in move.permutations.items()
                for site in self.plans[mover].factor.sites
                if site.tensor == name
            ]
            tensor, fresh = permute_tensor(self.aligned[name], 0, sites, False)
            scales = [
                (site, flip)
                for scaling in self.group.scalings
                if (flip := move.flips.get(scaling.name)) is not None
                for site in scaling.sites
                if site.tensor == name
            ]
            if scales:
                tensor = tensor.clone() if not fresh or not tensor.is_contiguous() else tensor
                scale_tensor_(tensor, 0, scales, False)
            new[name] = tensor.contiguous()
        return new

    def apply(self, plan: Plan, move: Move) -> None:
        """Does a move."""
        self.aligned.update(self._after(plan, move))
        self._compose(move)
        plain = plan.copies == 1 and not plan.children and not move.flips and not plan.curved
        for name, order in move.permutations.items():
            self.table.moved(name, order.reshape(-1) if plain else None)

    def _compose(self, move: Move) -> None:
        """The element followed by the move."""
        for held in (self.permutations, self.scales):
            for own in held:
                sites = [
                    (site, move.permutations[name])
                    for name, site in self._movers[own]
                    if name in move.permutations
                ]
                if sites:
                    held[own] = permute_tensor(held[own], 0, sites, False)[0]
        for name, flip in move.flips.items():
            self.scales[name] = self.scales[name] * flip


def inner(one: Tensor, other: Tensor) -> float:
    """The inner product of two tensors, in double precision."""
    return float(torch.dot(one.reshape(-1).double(), other.reshape(-1).double()))


def _flips_of(plan: Plan, choice: Tensor | None, chosen: Tensor) -> dict[str, Tensor]:
    """The signs of each unit's new place, from the choice made for each pair."""
    if choice is None:
        return {}
    picked = choice.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    table = torch.tensor(sign_choices(len(plan.signs)), dtype=torch.float64)
    flips = table[picked]
    return {
        sign.name: flips[..., k]
        for k, sign in enumerate(plan.signs)
        if bool((flips[..., k] < 0).any())
    }


def _pair_index(outer: Tensor) -> Tensor:
    """Where the pairs ``(i, outer[i])`` of each copy lie in the order (copy, i, j)."""
    copies, units = outer.shape
    first = torch.arange(copies * units).reshape(copies, units) * units
    return (first + outer).reshape(-1)
