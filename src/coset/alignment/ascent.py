"""Coordinate ascent over linear assignments (Ainsworth, Hayase, Srinivasa 2023), made dependable.

One factor is solved at a time, exactly, all others being held; the objective ``<to, aligned>``
never falls.  What differs from the published loop: an anchored start, strict improvement beyond
rounding, factors are looked at again only when a neighbour has moved, factors that live under
others are solved together with them, and signs are solved along with permutations.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, combinations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.alignment.gains import Allowed, GainTable, combine
from coset.alignment.plans import (
    MOST_SIGNS,
    Plan,
    Term,
    lone_signs,
    matched_tensors,
    most_anchored,
)
from coset.alignment.proposals import Move, Proposer, cycles
from coset.alignment.soft import SoftPermutations
from coset.symmetry.action import permute_tensor, region, scale_tensor_
from coset.symmetry.elements import Element, Site
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


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
        self._scalings = {scaling.name: scaling for scaling in group.scalings}
        self._matched = matched_tensors(group) & set(to)
        self._places = group.remembered("places of factors", lambda: _places(group))
        self._tables = group.remembered("tables moved", lambda: _moved_tables(group))
        single = any(w.dtype == torch.float32 for w in to.values())
        self.precision = 1e-6 if single else 1e-12
        self.proposer = Proposer(plans, self.table, self.permutations, self.scales, self.precision)

    @property
    def element(self) -> Element:
        """What has been done so far."""
        return Element(dict(self.permutations), dict(self.scales))

    def objective(self) -> float:
        """``<to, aligned>`` over the tensors that are matched, to working precision."""
        return sum(
            float(torch.dot(self.to[name].view(-1), self.aligned[name].view(-1)))
            for name in sorted(self._matched)
        )

    def anchored_start(self) -> None:
        """Solves every factor once, from what is already known to fit.

        Always the factor that is best known: see :func:`coset.alignment.plans.most_anchored`.
        Units that live under several factors (channels that two grouped layers cut in different
        ways) are compared once all of these are in place.
        """
        solved: set[str] = set()
        decided: set[str] = set()
        below = {child for plan in self.plans.values() for child in plan.children}
        waiting = [name for name in self.plans if name not in below]

        def anchored(term: Term, parent: str) -> bool:
            return term.others <= solved and term.within <= solved | {parent}

        while waiting:
            terms = [[t for t in self._compared(self.plans[n]) if anchored(t, n)] for n in waiting]
            k = most_anchored([[term.features for term in found] for found in terms])
            name = waiting.pop(k)
            allowed = partial(anchored, parent=name)
            weight: Counter[str] = Counter()
            for term in terms[k]:
                weight.update({sign: term.features for sign in term.whole - decided})
            layers = [sign for sign, _ in weight.most_common(MOST_SIGNS)]
            moves = self._moves(self.plans[name], allowed, layers)
            self._take(self.plans[name], moves.values(), allowed)
            decided.update(sign for sign in layers if _tells(moves, sign))
            solved |= {name, *self.plans[name].children}

    def _compared(self, plan: Plan) -> list[Term]:
        """The terms that a step compares: the factor's own and those of its children."""
        children = [self.plans[name] for name in plan.children]
        return [*plan.own, *(term for child in children for term in child.terms)]

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
            waiting |= self.flip_layers()
            if not waiting:
                return count
        return most

    def step(self, name: str) -> bool:
        """Moves one factor, with those below it, to its best place; says whether it moved."""
        return self._take(self.plans[name], self._moves(self.plans[name]).values())

    def _moves(
        self, plan: Plan, allowed: Allowed | None = None, layers: Sequence[str] = ()
    ) -> dict[frozenset[str], Move]:
        """The best places of a factor and those below it, by the layers that are flipped with it.

        Args:
            plan: The factor.
            allowed: Only these terms count.
            layers: Signs of whole layers that may be flipped along with it.
        """
        self.solves += 1
        find = self.proposer.together if plan.children else self.proposer.alone
        chosen = [frozenset(c) for n in range(len(layers) + 1) for c in combinations(layers, n)]
        moves = {flipped: find(plan, allowed, flipped) for flipped in chosen}
        return {flipped: move for flipped, move in moves.items() if move is not None}

    def _take(self, plan: Plan, moves: Iterable[Move], allowed: Allowed | None = None) -> bool:
        """Does the best of some moves of a factor, if it is better than to stay."""
        move = max(moves, key=lambda m: m.gained, default=None)
        if move is None or move.gained <= move.noise:
            return False
        if not plan.curved or allowed is not None:
            self.apply(plan, move)
            return True
        for part in chain((move,), cycles(plan, move)):
            if self._rises(plan, part):
                self.apply(plan, part)
                return True
        return False

    def _rises(self, plan: Plan, move: Move) -> bool:
        """Whether the exact objective is higher after a move."""
        new = self._after(plan, move)
        changed = {term.site.tensor for term in self._compared(plan)}
        changed |= {term.site.tensor for term in plan.terms}
        before = sum(inner(self.to[n], self.aligned[n]) for n in sorted(changed))
        after = sum(inner(self.to[n], new[n]) for n in sorted(changed))
        return after - before > move.noise

    def in_doubt(self) -> bool:
        """Whether soft permutations are of use and some units have several near-optimal places."""
        if not any(term.others for plan in self.plans.values() for term in plan.terms):
            return False
        return self.leaves_doubts()

    def leaves_doubts(self) -> bool:
        """Whether two units would be worth more if one could be in the places of both.

        ``2 A[i, j] > A[i, i] + A[j, j]`` says that unit ``j`` is nearer to place ``i`` than the two
        are to their own, in the mean.  Between copies, where ``A[i, j]`` is ``<w_i, w_j>``, never.
        """
        return any(map(self._in_doubt, self.plans.values()))

    def _in_doubt(self, plan: Plan) -> bool:
        gains = combine(self.table.own(plan.factor.name), len(plan.signs))
        if gains is None or plan.children:
            return False  # heads and groups are told apart by what is in them
        best = gains.best()
        half = best.diagonal(axis1=-2, axis2=-1) / 2
        doubt = best - half[..., :, None] - half[..., None, :]
        return bool((doubt > self.precision * np.abs(half).max()).any())

    def soft_start(self, order: Sequence[str], rounds: int) -> None:
        """Moves all factors to where soft permutations point to after some rounds from here."""
        soft = SoftPermutations(self.plans, self.table)
        soft.soften(order, rounds)
        for name, gains in soft.gains.items():
            self.apply(self.plans[name], self.proposer.best(self.plans[name], gains))

    def flip_layers(self) -> set[str]:
        """Flips whole layers where that alone is better; returns the factors to look at again."""
        concerned: set[str] = set()
        for scaling in lone_signs(self.group):
            kept = torch.zeros(self.scales[scaling.name].shape, dtype=torch.float64)
            sites = [s for s in scaling.sites if s.power % 2 and s.tensor in self._matched]
            size = 0.0
            for site in sites:
                one, other = (region(w[site.tensor], 0, site) for w in (self.to, self.aligned))
                products = one.double() * other.double()
                kept += along(products, site).reshape(kept.shape)
                size += float(products.abs().sum())
            flips = torch.where(kept < -self.precision * size, -1.0, 1.0).double()
            if bool((flips < 0).any()):
                move = Move({}, {scaling.name: flips}, 0.0, 0.0)
                self._do(tuple({s.tensor for s in scaling.sites}), move)
                touched = {s.tensor for s in sites}
                concerned |= {
                    name
                    for name, plan in self.plans.items()
                    if any(term.site.tensor in touched for term in plan.terms)
                }
        return concerned

    # -- doing it --------------------------------------------------------------------------------

    def _after(self, plan: Plan, move: Move) -> Weights:
        """The tensors that a move changes, as they are after it."""
        return self._changed(self._touched(plan, move), move)

    def _touched(self, plan: Plan, move: Move) -> tuple[str, ...]:
        flipped = [s.tensor for name in move.flips for s in self._scalings[name].sites]
        return tuple(dict.fromkeys([*plan.tensors, *flipped]))

    def _changed(self, names: Sequence[str], move: Move) -> Weights:
        new = {}
        for name in names:
            sites = [
                (site, table)
                for mover, table in move.permutations.items()
                for site in self._places[mover].get(name, ())
            ]
            tensor, fresh = _permuted(self.aligned[name], sites)
            scales = [
                (site, flip)
                for scaling, flip in move.flips.items()
                for site in self._scalings[scaling].sites
                if site.tensor == name
            ]
            if scales:
                tensor = tensor.clone() if not fresh or not tensor.is_contiguous() else tensor
                scale_tensor_(tensor, 0, scales, False)
            new[name] = tensor.contiguous()
        return new

    def rows(self, name: str) -> tuple[Float[Tensor, "b h f"], Float[Tensor, "b h f"]]:
        """All numbers of each unit, in ``to`` and in the aligned weights."""
        return self.table.rows(name)

    def reorder(
        self,
        name: str,
        order: Int[Tensor, "*b h"],
        flips: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Moves units of one factor, signs with them, and flips them where they arrive.

        Args:
            name: The factor.
            order: For each place where its new unit is now.
            flips: Signs along the factor by name, place by place.
        """
        self.apply(self.plans[name], Move({name: order}, flips or {}, 0.0, 0.0))

    def apply(self, plan: Plan, move: Move) -> None:
        """Does a move."""
        self._do(self._touched(plan, move), move)
        plain = plan.copies == 1 and not plan.children and not move.flips and not plan.curved
        for name, order in move.permutations.items():
            self.table.moved(name, order.reshape(-1) if plain else None)

    def _do(self, names: Sequence[str], move: Move) -> None:
        self.aligned.update(self._changed(names, move))
        self._compose(move)
        self.table.flipped(move.flips)

    def _compose(self, move: Move) -> None:
        """The element followed by the move."""
        for mover, table in move.permutations.items():
            for own, site in self._tables[mover]:
                held = self.permutations if own in self.permutations else self.scales
                held[own] = _permuted(held[own], [(site, table)])[0]
        for name, flip in move.flips.items():
            self.scales[name] = self.scales[name] * flip


def _tells(moves: Mapping[frozenset[str], Move], sign: str) -> bool:
    """Whether it makes a difference to flip a layer, or signs of units make up for it."""
    flipped = [move for flips, move in moves.items() if sign in flips]
    kept = [move for flips, move in moves.items() if sign not in flips]
    if not flipped or not kept:
        return False
    best, other = (max(found, key=lambda m: m.gained) for found in (flipped, kept))
    return abs(best.gained - other.gained) > max(best.noise, other.noise)


def _places(group: SymmetryGroup) -> dict[str, dict[str, list[Site]]]:
    """For each factor the tensors it moves, with the sites."""
    found: dict[str, dict[str, list[Site]]] = {f.name: {} for f in group.permutations}
    for factor in group.permutations:
        for site in factor.sites:
            found[factor.name].setdefault(site.tensor, []).append(site)
    return found


def _moved_tables(group: SymmetryGroup) -> dict[str, list[tuple[str, Site]]]:
    """For each permutation factor the tables of an element that it moves."""
    found: dict[str, list[tuple[str, Site]]] = {f.name: [] for f in group.permutations}
    for factor in group.permutations:
        for mover, site in group.tables.sites(factor):
            found[mover].append((factor.name, site))
    for scaling in group.scalings:
        for mover, site in group.tables.sites(scaling):
            found[mover].append((scaling.name, site))
    return found


def _permuted(tensor: Tensor, sites: Sequence[tuple[Site, Tensor]]) -> tuple[Tensor, bool]:
    """As :func:`permute_tensor`, faster for whole axes."""
    shape = tuple(tensor.shape)
    if not all(site.view == shape and not site.parents for site, _ in sites):
        return permute_tensor(tensor, 0, sites, False)
    if any(site.block or len(site.digits) != 1 for site, _ in sites):
        return permute_tensor(tensor, 0, sites, False)
    for site, table in sites:
        tensor = tensor.index_select(site.digits[0], table.to(tensor.device))
    return tensor, bool(sites)


def along(products: Tensor, site: Site) -> Tensor:
    """Sums of a view over all digits that the site's scales do not run along."""
    kept = [*site.parents, *site.digits]
    rest = [d for d in range(products.dim()) if d not in kept]
    summed = products.sum(rest) if rest else products
    return summed.permute([sorted(kept).index(d) for d in kept])


def inner(one: Tensor, other: Tensor) -> float:
    """The inner product of two tensors, in double precision."""
    return float(torch.dot(one.reshape(-1).double(), other.reshape(-1).double()))
