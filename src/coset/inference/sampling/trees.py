"""Trajectories that double until they turn, for many chains at once and without recursion.

The leaves of a new half are visited in the order of time.  Whether one of its subtrees turns is
known from momenta remembered at the subtrees' beginnings, at most one a level (Phan, Pradhan and
Jankowiak 2019).  Leaves have the same number in every chain, so these places are the same too.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from coset.inference.sampling.hamiltonian import (
    DIVERGENT,
    Energy,
    Point,
    acceptance_of,
    choose,
    leapfrog,
)


@dataclass(frozen=True)
class Tree:
    """A trajectory of every chain.

    Attributes:
        left: Its first point in time.
        right: Its last point.
        chosen: The point drawn from it so far.
        momenta: Sum of the momenta of all its points.
        log_weight: Log of the sum of ``exp(H₀ - H)`` over its points.
        acceptance: Sum over leaves of ``min(1, exp(H₀ - H))``.
        leaves: Leapfrog steps taken.
        divergent: Whether the integrator lost it.
        growing: Whether it may be doubled again.
    """

    left: Point
    right: Point
    chosen: Point
    momenta: Float[Tensor, "m p"]
    log_weight: Float[Tensor, " m"]
    acceptance: Float[Tensor, " m"]
    leaves: Float[Tensor, " m"]
    divergent: Bool[Tensor, " m"]
    growing: Bool[Tensor, " m"]


def grow(
    energy: Energy,
    begin: Point,
    step: float,
    inverse_mass: Float[Tensor, " p"],
    max_depth: int,
    *,
    generator: torch.Generator,
) -> Tree:
    """Doubles trajectories from ``begin`` until they turn, diverge or reach the largest depth."""
    zero = torch.zeros_like(begin.energy)
    no = torch.zeros_like(zero, dtype=torch.bool)
    tree = Tree(begin, begin, begin, begin.momenta, zero, zero, zero, no, ~no)
    total = begin.hamiltonian(inverse_mass)
    for depth in range(max_depth):
        if not bool(tree.growing.any()):
            break
        forwards = _uniform(zero, generator) < 0.5
        edge = choose(forwards, tree.right, tree.left)
        signed = torch.where(forwards, zero + step, zero - step)[:, None]
        half = _half(
            energy, edge, signed, inverse_mass, depth, total, tree.growing, generator=generator
        )
        tree = _joined(tree, half, forwards, inverse_mass, _uniform(zero, generator))
    return tree


def _half(
    energy: Energy,
    edge: Point,
    step: Float[Tensor, "m 1"],
    inverse_mass: Float[Tensor, " p"],
    depth: int,
    total: Float[Tensor, " m"],
    growing: Bool[Tensor, " m"],
    *,
    generator: torch.Generator,
) -> Tree:
    """The ``2^depth`` leaves beyond ``edge``; stops a chain whose subtree turns or diverges."""
    zero = torch.zeros_like(total)
    half = Tree(
        *(edge, edge, edge),
        torch.zeros_like(edge.momenta),
        torch.full_like(zero, -torch.inf),
        *(zero, zero),
        torch.zeros_like(growing),
        growing,
    )
    marks: dict[int, tuple[Tensor, Tensor]] = {}
    for leaf in range(2**depth):
        if not bool(half.growing.any()):
            break
        half = _next_leaf(energy, half, step, inverse_mass, total, _uniform(zero, generator))
        level, opened = (leaf >> 1).bit_count(), _trailing_ones(leaf)
        if leaf % 2 == 0:
            marks[level] = (half.right.momenta, half.momenta)
        for place in range(level, level - opened, -1):
            first, before = marks[place]
            between = half.momenta - before + first
            turns = _turns(inverse_mass, first, half.right.momenta, between)
            half = replace(half, growing=half.growing & ~turns)
    return half


def _next_leaf(
    energy: Energy,
    half: Tree,
    step: Float[Tensor, "m 1"],
    inverse_mass: Float[Tensor, " p"],
    total: Float[Tensor, " m"],
    uniform: Float[Tensor, " m"],
) -> Tree:
    going = half.growing
    everywhere = bool(going.all())
    point = choose(going, leapfrog(energy, half.right, step, inverse_mass), half.right)
    momenta = half.momenta + point.momenta
    error = (point.hamiltonian(inverse_mass) - total).nan_to_num(nan=torch.inf)
    log_weight = torch.logaddexp(half.log_weight, -error)
    taken = going & (uniform.log() < -error - log_weight)
    divergent = going & (error > DIVERGENT)
    return replace(
        half,
        right=point,
        chosen=choose(taken, point, half.chosen),
        momenta=momenta if everywhere else torch.where(going[:, None], momenta, half.momenta),
        log_weight=torch.where(going, log_weight, half.log_weight),
        acceptance=half.acceptance + torch.where(going, acceptance_of(error), 0.0),
        leaves=half.leaves + going,
        divergent=half.divergent | divergent,
        growing=going & ~divergent,
    )


def _joined(
    tree: Tree,
    half: Tree,
    forwards: Bool[Tensor, " m"],
    inverse_mass: Float[Tensor, " p"],
    uniform: Float[Tensor, " m"],
) -> Tree:
    """The trajectory with its new half, where that is complete."""
    whole = tree.growing & half.growing
    left = choose(whole & ~forwards, half.right, tree.left)
    right = choose(whole & forwards, half.right, tree.right)
    taken = whole & (uniform.log() < half.log_weight - tree.log_weight)
    momenta = torch.where(whole[:, None], tree.momenta + half.momenta, tree.momenta)
    turns = _turns(inverse_mass, left.momenta, right.momenta, momenta)
    return Tree(
        left,
        right,
        choose(taken, half.chosen, tree.chosen),
        momenta,
        torch.where(whole, torch.logaddexp(tree.log_weight, half.log_weight), tree.log_weight),
        tree.acceptance + half.acceptance,
        tree.leaves + half.leaves,
        tree.divergent | half.divergent,
        whole & ~turns,
    )


def _turns(
    inverse_mass: Float[Tensor, " p"],
    first: Float[Tensor, "m p"],
    last: Float[Tensor, "m p"],
    between: Float[Tensor, "m p"],
) -> Bool[Tensor, " m"]:
    """Whether the ends of a stretch move towards each other (half their momenta counted)."""
    direction = inverse_mass * (between - (first + last) / 2)
    return ((first * direction).sum(1) <= 0) | ((last * direction).sum(1) <= 0)


def _trailing_ones(number: int) -> int:
    """Subtrees that a leaf completes.

    >>> [_trailing_ones(leaf) for leaf in range(8)]
    [0, 1, 0, 2, 0, 1, 0, 3]
    """
    return (number ^ (number + 1)).bit_length() - 1


def _uniform(like: Float[Tensor, " m"], generator: torch.Generator) -> Float[Tensor, " m"]:
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
