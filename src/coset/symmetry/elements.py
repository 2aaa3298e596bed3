"""The nouns of a symmetry group: where it acts, what it is made of, one element of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

from torch import Tensor

from coset.printing import brief
from coset.symmetry.analysis.digits import Block

Domain = Literal["positive", "sign", "nonzero"]


@dataclass(frozen=True)
class Site:
    """One place in a tensor where a factor acts.

    Attributes:
        tensor: The tensor's name.
        block: The part of it, as cuts ``(axis, outer, start, size)`` applied in order: the index
            of the axis is seen as (outer, rest), and the range of the rest is kept.
        view: Sizes of the digits of the block, all axes in order, row-major.
        digits: Which of them the factor moves or scales; several are one joint index.
        parents: Digits whose index chooses the permutation or the scale, in the order of
            the factor's ``within``.
        power: For scales, the exponent here.
        shift: For running variances, the epsilon that is scaled along.
    """

    tensor: str
    block: Block
    view: tuple[int, ...]
    digits: tuple[int, ...]
    parents: tuple[int, ...] = ()
    power: int = 0
    shift: float = 0.0

    @cached_property
    def place(self) -> "Site":
        """The same for every power: scales of one place may be multiplied before they act."""
        return replace(self, power=1)

    @cached_property
    def indexed(self) -> tuple[int, ...]:
        """The digits that a factor's table has axes for, in its order."""
        return (*self.parents, *self.digits)

    @cached_property
    def spread(self) -> tuple[int, ...]:
        """The shape of a table that multiplies the view: one along digits that do not matter."""
        return tuple(n if d in self.indexed else 1 for d, n in enumerate(self.view))


@dataclass(frozen=True)
class PermutationFactor:
    """All permutations of a set of units.

    Attributes:
        name: A name made from the first tensor it acts on.
        size: Number of units in one copy.
        sites: Where it acts.
        within: The factors it lives under; there is one permutation for each of their indices.
    """

    name: str
    size: int
    sites: tuple[Site, ...]
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingFactor:
    """A scale for each unit of a set, undone elsewhere.

    Attributes:
        name: A name made from the first tensor it acts on.
        size: Number of scales in one copy.
        sites: Where it acts, with the exponents.
        domain: ``"positive"`` scales, ``"nonzero"`` ones of either sign, or ``"sign"`` flips.
        within: The permutation factors whose index chooses the scales.
        along: The permutation factor that moves the scales among each other, if there is one.
    """

    name: str
    size: int
    sites: tuple[Site, ...]
    domain: Domain
    within: tuple[str, ...] = ()
    along: str | None = None


@dataclass(frozen=True)
class ScaleInvariance:
    """Rows of a tensor whose scale a normalisation divides out.

    Attributes:
        name: The tensor's name without its last word.
        tensor: The tensor.
        groups: Each ``"filter"``, each ``"channel-group"``, or the ``"layer"`` as a whole.
        axis: The axis whose index numbers the filters or groups.
        count: How many scales are free.
        bias: A bias that has to be scaled along, if there is one.
    """

    name: str
    tensor: str
    groups: Literal["filter", "channel-group", "layer"]
    axis: int = 0
    count: int = 1
    bias: str | None = None


@dataclass(frozen=True)
class Pinned:
    """An axis that may not be permuted.

    Attributes:
        tensor: The tensor's name.
        axis: The axis; ``None`` for a tensor that the output never reads.
        operation: What refused it, with the line of the user's code.
        reason: Why.
    """

    tensor: str
    axis: int | None
    operation: str
    reason: str


@dataclass(frozen=True)
class Element:
    """One element: a table of permutations and a table of scales for each factor.

    A table has one axis for each factor in ``within``, then one of the factor's size; all tables
    may carry a leading member axis.
    """

    permutations: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]

    __repr__ = brief


@dataclass(frozen=True)
class Tables:
    """Shapes of the tables, and how permutations act on them.

    A table is moved like a weight when elements are composed, so it has sites of its own.
    """

    permutations: tuple[PermutationFactor, ...]
    scalings: tuple[ScalingFactor, ...]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each permutation factor."""
        return {factor.name: factor.size for factor in self.permutations}

    def shape(self, factor: PermutationFactor | ScalingFactor) -> tuple[int, ...]:
        """The shape of a factor's table."""
        return (*(self.sizes[name] for name in factor.within), factor.size)

    def copies(self, factor: PermutationFactor | ScalingFactor) -> int:
        """How many independent permutations (or vectors of scales) the factor has."""
        return prod(self.shape(factor)[:-1])

    def sites(self, factor: PermutationFactor | ScalingFactor) -> list[tuple[str, Site]]:
        """The permutations that act on a factor's table, outer ones first."""
        shape = self.shape(factor)
        place = {name: i for i, name in enumerate(factor.within)}
        own = factor.along if isinstance(factor, ScalingFactor) else factor.name
        if own is not None:
            place[own] = len(shape) - 1
        return [
            (
                mover.name,
                Site(
                    "",
                    (),
                    shape,
                    (place[mover.name],),
                    tuple(place[name] for name in mover.within),
                ),
            )
            for mover in self.permutations
            if mover.name in place
        ]
