"""What a matching returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from coset.alignment.transpositions import transpositions
from coset.printing import brief
from coset.symmetry.elements import Element
from coset.vocabulary import Weights


@dataclass(frozen=True)
class Outcome:
    """What a way of matching found.

    Attributes:
        element: The element.
        ties: Units that could be exchanged at no cost.
        sweeps: How many times all factors were gone through.
        aligned: Returns the tensors that the group acts on after the element, where they are at
            hand.
    """

    element: Element
    ties: int = 0
    sweeps: int = 0
    aligned: Callable[[], Weights] | None = None


@dataclass(frozen=True)
class Match:
    """Weights moved along their orbit to lie near others.

    Attributes:
        element: What was done: ``group.act(element, weights)`` are the aligned weights.
        weights: The aligned weights; the network computes the same function.
        ties: Units that could be exchanged with another at no cost (dead or equal ones).  They
            stay as near to their old places as possible, and ``transpositions`` depends on it.
        sweeps: How many times all factors were gone through.
        std: The aligned standard deviations, when Gaussians were matched.
        compared: What objective and distance are taken of: pairs of target and aligned weights.
        names: The tensors that count in the objective: those that the group moves.
        parameters: The tensors that count in the distance: all of them.  Running statistics count
            in neither.
    """

    element: Element
    weights: Weights
    ties: int = 0
    sweeps: int = 0
    std: Weights | None = None
    compared: tuple[tuple[Weights, Weights], ...] = field(default=(), repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)
    parameters: tuple[str, ...] = field(default=(), repr=False)

    __repr__ = brief

    @cached_property
    def objective(self) -> float:
        """``<to, aligned>`` summed over the tensors matched, in double precision."""
        return sum(
            float((to[name].double() * own[name].double()).sum())
            for to, own in self.compared
            for name in self.names
        )

    @cached_property
    def squared_distance(self) -> float:
        """``|to - aligned|²`` over all parameters, also those that the group does not move.

        Between Gaussians the squared Wasserstein distance of their marginals.
        """
        return sum(
            # equal infinities of masks lie no distance apart
            float((to[name].double() - own[name].double()).square().nansum())
            for to, own in self.compared
            for name in self.parameters
        )

    @property
    def distance(self) -> float:
        """The squared distance to the target after alignment, as ``squared_distance``."""
        return self.squared_distance

    @property
    def transpositions_of(self) -> dict[str, int]:
        """For each permutation factor the number of transpositions, summed over its copies."""
        return transpositions_of(self.element.permutations)

    @property
    def transpositions(self) -> int:
        """The number of transpositions in all: Cayley's distance to the identity."""
        return sum(self.transpositions_of.values())

    @property
    def pair_distance(self) -> tuple[float, int]:
        """Squared distance of all parameters after alignment, and the number of transpositions.

        The two numbers that say how far apart two networks are (Xiao, Liu, Bamler 2023).
        """
        return self.squared_distance, self.transpositions


def transpositions_of(permutations: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of transpositions of each table, summed over its copies."""
    return {
        name: int(sum(transpositions(row) for row in table.reshape(-1, table.shape[-1])))
        for name, table in permutations.items()
    }


def member_of(element: Element, k: int) -> Element:
    """One element of those along a member axis."""
    return Element(
        {name: table[k] for name, table in element.permutations.items()},
        {name: table[k] for name, table in element.scales.items()},
    )
