"""Aligns many networks to their moving mean.

With ``S`` the sum of all aligned networks, ``Σ_{a<b} <w_a, w_b> = (|S|² - Σ |w_a|²) / 2``.  So
taking one network out of the sum, matching it to the rest and putting it back improves all pairs at
once: a round costs as much as there are networks, not pairs.  Every network has one element that
takes it to the common frame, so elements between pairs compose without contradiction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.by_weights import ByWeights, Outcome
from coset.alignment.checks import check_weights
from coset.alignment.match import By, moved_by
from coset.alignment.plans import matched_tensors
from coset.alignment.result import member_of, transpositions_of
from coset.errors import CosetError
from coset.printing import brief
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.stacking import unstack

_PRECISION = 1e-7


@dataclass(frozen=True)
class Frame:
    """Where each of many networks goes, without the networks themselves.

    Attributes:
        element: One element for each, along a member axis.
        mean: The mean of the aligned networks.
        objective: After each round the sum of ``<w_a, w_b>`` over all pairs, over the tensors
            matched; the first is before anything was moved.
        moved: How many networks each round moved.
    """

    element: Element
    mean: Weights
    objective: Float[Tensor, " r"]
    moved: tuple[int, ...]

    __repr__ = brief

    def between(self, group: SymmetryGroup, one: int, other: int) -> Element:
        """The element that takes network ``one`` to where network ``other`` was."""
        back = group.inverse(member_of(self.element, other))
        return group.compose(member_of(self.element, one), back)

    def transpositions(self) -> list[int]:
        """The number of transpositions of each network's element."""
        count = len(next(iter(self.element.permutations.values()), ()))
        return [
            sum(transpositions_of(member_of(self.element, k).permutations).values())
            for k in range(count)
        ]


@dataclass(frozen=True)
class MatchMany:
    """Many networks in one frame.

    Attributes:
        weights: The aligned stack.
        element: One element for each member, along a member axis.
        objective: After each round the sum of ``<w_a, w_b>`` over all pairs.
        frame: The same without the weights, with the mean.
    """

    weights: Weights
    element: Element
    objective: Float[Tensor, " r"]
    frame: Frame

    __repr__ = brief


def match_many(
    group: SymmetryGroup,
    stack: Weights,
    *,
    by: By = ByWeights(),
    rounds: int = 100,
    generator: torch.Generator | None = None,
) -> MatchMany:
    """Aligns the members of a stack with each other.

    Args:
        group: The symmetries of the network.
        stack: The networks.
        by: How each is matched to the mean of the others.
        rounds: The most rounds; it stops when no network moves.
        generator: For ways that use random numbers; ``None``: a fresh one of seed 0.

    Raises:
        CosetError: If the stack does not fit the group or has numbers that are not finite.
    """
    lead = check_weights(group, stack, "the stack")
    if lead != 1:
        raise CosetError(
            "got the weights of one network",
            "needed a stack with a member axis",
            "build it with coset.stack",
        )
    frame = match_stream(group, unstack(stack), by=by, rounds=rounds, generator=generator)
    return MatchMany(group.act(frame.element, stack), frame.element, frame.objective, frame)


def match_stream(
    group: SymmetryGroup,
    members: Sequence[Weights],
    *,
    by: By = ByWeights(),
    rounds: int = 100,
    generator: torch.Generator | None = None,
) -> Frame:
    """The same for networks that are read one at a time, for zoos larger than memory.

    Only the sum of all networks and one element for each are kept.

    Args:
        group: The symmetries of the network.
        members: Anything with a length whose ``members[k]`` reads the weights of one network.
        by: How each is matched to the mean of the others.  Ways other than :class:`ByWeights`
            begin anew whenever they are called, so they go through all networks once only.
        rounds: The most rounds over all networks.
        generator: For ways that use random numbers; ``None``: a fresh one of seed 0.
    """
    if not isinstance(by, By):
        raise CosetError(
            f"got by of type {type(by).__name__}",
            "needed a way of matching with a method solve(group, weights, to, generator=...)",
            "give ByWeights(), ByActivations(...), BySinkhorn() or ByStraightThrough(...)",
        )
    if rounds < 1 or not len(members):
        raise CosetError(
            f"got {len(members)} networks and rounds={rounds}", "needed at least one of each"
        )
    state = _Sum(group, members, by, generator or torch.Generator().manual_seed(0))
    objective = [state.begin()]
    moved = []
    for k in range(rounds):
        changed = state.round(first=k == 0)
        moved.append(changed)
        objective.append(state.objective())
        if not changed or not isinstance(by, ByWeights):
            break
    tables = [state.elements[k] for k in range(len(members))]
    element = Element(
        {n: torch.stack([e.permutations[n] for e in tables]) for n in tables[0].permutations},
        {n: torch.stack([e.scales[n] for e in tables]) for n in tables[0].scales},
    )
    mean = {name: (total / len(members)) for name, total in state.total.items()}
    kinds = {name: tensor.dtype for name, tensor in members[0].items()}
    return Frame(
        element,
        {name: tensor.to(kinds[name]) for name, tensor in mean.items()},
        torch.tensor(objective, dtype=torch.float64),
        tuple(moved),
    )


class _Sum:
    """The sum of all aligned networks, and where each has gone."""

    def __init__(
        self,
        group: SymmetryGroup,
        members: Sequence[Weights],
        by: By,
        generator: torch.Generator,
    ) -> None:
        self.group = group
        self.members = members
        self.by = by
        self.generator = generator
        self.elements = [group.identity() for _ in range(len(members))]
        self.total: Weights = {}
        self.squares = [0.0] * len(members)
        self.names = sorted(matched_tensors(group))

    def begin(self) -> float:
        """Adds up the networks as they are; returns the objective."""
        for k in range(len(self.members)):
            member = self.members[k]
            check_weights(self.group, member, f"member {k}")
            self._add(member)
            self.squares[k] = self._square(member)
        return self.objective()

    def objective(self) -> float:
        """The sum of inner products over all pairs."""
        return (self._square(self.total) - sum(self.squares)) / 2

    def round(self, *, first: bool) -> int:
        """Matches every network to the mean of those that are already in the frame."""
        if first:
            self.total = {}
        changed = 0
        for k in range(len(self.members)):
            aligned = self.group.act(self.elements[k], self.members[k])
            if first and k == 0:
                self._add(aligned)
                continue
            if not first:
                self._add(aligned, -1.0)
            others = k if first else len(self.members) - 1
            target = {n: (t / others).to(aligned[n].dtype) for n, t in self.total.items()}
            better = self._better(aligned, target, first)
            if better is not None:
                changed += 1
                self.elements[k] = self.group.compose(self.elements[k], better.element)
                aligned = moved_by(self.group, better, aligned)
                if _stretches(better.element):
                    self.squares[k] = self._square(aligned)
            self._add(aligned)
        return changed

    def _better(self, aligned: Weights, target: Weights, first: bool) -> Outcome | None:
        """What moves a network nearer to its target, if anything does."""
        by = self.by
        if isinstance(by, ByWeights) and not first:
            by = replace(by, anchored=False, restarts=0, scales="keep")  # from where it is
        found = by.solve(self.group, aligned, target, generator=self.generator)
        if _moves_nothing(found.element):
            return None
        if not isinstance(by, ByWeights) or (first and by.scales != "keep"):
            return found
        before = self._inner(aligned, target)
        after = self._inner(moved_by(self.group, found, aligned), target)
        return found if after > before + _PRECISION * abs(before) else None

    def _add(self, weights: Weights, factor: float = 1.0) -> None:
        for name, tensor in weights.items():
            if name in self.group.shapes:
                if name not in self.total:
                    self.total[name] = torch.zeros_like(tensor, dtype=torch.float64)
                self.total[name].add_(tensor, alpha=factor)

    def _inner(self, one: Weights, other: Weights) -> float:
        return sum(float((one[n].double() * other[n].double()).sum()) for n in self.names)

    def _square(self, weights: Weights) -> float:
        return self._inner(weights, weights)


def _moves_nothing(element: Element) -> bool:
    return all(
        torch.equal(table, torch.arange(table.shape[-1]).expand_as(table))
        for table in element.permutations.values()
    ) and all(bool((table == 1).all()) for table in element.scales.values())


def _stretches(element: Element) -> bool:
    """Whether norms change: permutations and signs keep them."""
    return any(bool((table.abs() != 1).any()) for table in element.scales.values())
