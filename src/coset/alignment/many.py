"""Aligns many networks to their moving mean.

With ``S`` the sum of all aligned networks, ``Σ_{a<b} <w_a, w_b> = (|S|² - Σ |w_a|²) / 2``.  So
taking one network out of the sum, matching it to the rest and putting it back improves all pairs at
once: a round costs as much as there are networks, not pairs.  Every network has one element that
takes it to the common frame, so elements between pairs compose without contradiction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.by_weights import ByWeights
from coset.alignment.checks import check_weights, seeded
from coset.alignment.match import By, check_by, moved_by
from coset.alignment.plans import matched_tensors
from coset.alignment.result import Outcome, member_of, transpositions_of
from coset.errors import CosetError
from coset.printing import brief
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.refusals import as_weights
from coset.weights.stacking import unstack


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
    generator = seeded(generator)
    stack = as_weights(stack, "the stack")
    lead = check_weights(group, stack, "the stack")
    if lead != 1:
        raise CosetError(
            "got the weights of one network",
            "needed a stack with a member axis",
            "build it with coset.stack",
        )
    _check_arguments(by, rounds, len(next(iter(stack.values()))))
    aligned = {name: tensor.clone() for name, tensor in stack.items()}
    state = _Sum(group, unstack(aligned), by, generator, in_place=True)
    frame = state.frame(rounds)
    return MatchMany(aligned, frame.element, frame.objective, frame)


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

    Raises:
        CosetError: If members cannot be read by number, or one of them does not fit the group.
    """
    generator = seeded(generator)
    readable = hasattr(members, "__len__") and hasattr(members, "__getitem__")
    if not readable or isinstance(members, Mapping):
        raise CosetError(
            f"got members of type {type(members).__name__}",
            "needed something with a length whose members[k] reads one network, again and again",
            "give a list or a class of your own; a stack goes to match_many",
        )
    _check_arguments(by, rounds, len(members))
    return _Sum(group, members, by, generator).frame(rounds)


def _check_arguments(by: By, rounds: int, count: int) -> None:
    check_by(by)
    if not isinstance(rounds, int) or rounds < 1 or not count:
        raise CosetError(f"got {count} networks and rounds={rounds}", "needed at least one of each")


class _Sum:
    """The sum of all aligned networks, and where each has gone.

    Args:
        group: The symmetries.
        members: The networks.
        by: How each is matched.
        generator: For ways that use random numbers.
        in_place: Whether members are written to and follow their networks into the frame; else
            each is moved anew whenever it is read.
    """

    def __init__(
        self,
        group: SymmetryGroup,
        members: Sequence[Weights],
        by: By,
        generator: torch.Generator,
        *,
        in_place: bool = False,
    ) -> None:
        self.group = group
        self.members = members
        self.by = by
        self.generator = generator
        self.in_place = in_place
        self.elements: dict[int, Element] = {}  # of the networks that have moved
        self.total: Weights = {}
        self.squares = [0.0] * len(members)
        self.names = sorted(matched_tensors(group))

    def frame(self, rounds: int) -> Frame:
        """Goes through all networks until none moves, and says where they are."""
        objective, moved = [self._begin()], []
        for k in range(rounds):
            moved.append(self._round(first=k == 0))
            objective.append(self._objective())
            if not moved[-1] or not isinstance(self.by, ByWeights):
                break
        identity, count = self.group.identity(), len(self.members)
        tables = [self.elements.get(k, identity) for k in range(count)]
        kinds = {name: tensor.dtype for name, tensor in self.members[0].items()}
        return Frame(
            Element(
                {
                    n: torch.stack([e.permutations[n] for e in tables])
                    for n in identity.permutations
                },
                {n: torch.stack([e.scales[n] for e in tables]) for n in identity.scales},
            ),
            {name: (total / count).to(kinds[name]) for name, total in self.total.items()},
            torch.tensor(objective, dtype=torch.float64),
            tuple(moved),
        )

    def _begin(self) -> float:
        """Adds up the networks as they are; returns the objective."""
        for k in range(len(self.members)):
            member = self._member(k)
            if check_weights(self.group, member, f"member {k}"):
                raise CosetError(
                    f"got a stack as member {k}",
                    "needed the weights of one network",
                    "put stacks together and give them to match_many, or unstack them",
                )
            self._add(member)
            self.squares[k] = self._square(member)
        return self._objective()

    def _objective(self) -> float:
        """The sum of inner products over all pairs."""
        return (self._square(self.total) - sum(self.squares)) / 2

    def _round(self, *, first: bool) -> int:
        """Matches every network to the mean of those that are already in the frame."""
        if first:
            self.total = {}
        changed = 0
        for k in range(len(self.members)):
            aligned = self._aligned(k)
            better = None if first and k == 0 else self._better(k, aligned, first)
            if better is not None:
                changed += 1
                if not first:
                    self._add(aligned, -1.0)
                aligned = self._place(k, better, aligned)
            if first or better is not None:
                self._add(aligned)
        return changed

    def _aligned(self, k: int) -> Weights:
        """A network where it is now."""
        if self.in_place or k not in self.elements:
            return self._member(k)
        return self.group.act(self.elements[k], self._member(k))

    def _member(self, k: int) -> Weights:
        return as_weights(self.members[k], f"member {k}")

    def _place(self, k: int, better: Outcome, aligned: Weights) -> Weights:
        """Moves a network on."""
        before = self.elements.get(k)
        found = better.element
        self.elements[k] = found if before is None else self.group.compose(before, found)
        moved = moved_by(self.group, better, aligned)
        if _stretches(found):
            self.squares[k] = self._square(moved)
        if self.in_place:
            for name, tensor in self.members[k].items():
                tensor.copy_(moved[name])
        return moved

    def _better(self, k: int, aligned: Weights, first: bool) -> Outcome | None:
        """What moves a network nearer to the mean of the others, if anything does."""
        others = k if first else len(self.members) - 1
        target = {
            name: total.to(aligned[name].dtype, copy=True) for name, total in self.total.items()
        }
        for name, tensor in target.items():  # in the networks' own type: mixed ones are slow
            if not first:
                tensor.sub_(aligned[name])
            tensor.div_(others)
        by = self.by
        if isinstance(by, ByWeights) and not first:
            by = replace(by, anchored=False, restarts=0, scales="keep")  # from where it is
        found = by.solve(self.group, aligned, target, generator=self.generator)
        return None if _moves_nothing(found.element) else found

    def _add(self, weights: Weights, factor: float = 1.0) -> None:
        for name in self.group.shapes:
            tensor = weights[name]
            if name in self.total:
                self.total[name].add_(tensor, alpha=factor)
            else:
                self.total[name] = tensor.to(torch.float64) * factor

    def _square(self, weights: Weights) -> float:
        """The squared norm over the tensors matched."""
        flat = (weights[name].double().reshape(-1) for name in self.names)
        return sum(float(torch.dot(numbers, numbers)) for numbers in flat)


def _moves_nothing(element: Element) -> bool:
    return all(
        torch.equal(table, torch.arange(table.shape[-1]).expand_as(table))
        for table in element.permutations.values()
    ) and all(bool((table == 1).all()) for table in element.scales.values())


def _stretches(element: Element) -> bool:
    """Whether norms change: permutations and signs keep them."""
    return any(bool((table.abs() != 1).any()) for table in element.scales.values())
