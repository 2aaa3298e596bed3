"""The smallest copy of a network: least squares of the weights over all its rescalings."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.errors import CosetError
from coset.symmetry.action import scale_tensor_
from coset.symmetry.elements import Element, ScalingFactor
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.balancing import balance, kept, mass_of, solve
from coset.symmetry.removing.monomials import Monomials, monomials
from coset.vocabulary import Weights


@dataclass(frozen=True)
class DeadUnit:
    """A unit whose scale has no best value: nothing comes in, or nothing goes out.

    Attributes:
        scaling: The scaling factor.
        unit: Its index there.
        member: Which member of the stack; 0 for single weights.
    """

    scaling: str
    unit: tuple[int, ...]
    member: int = 0


@dataclass(frozen=True)
class MassMinimum:
    """The smallest rescaled copy, for weights or for every member of a stack.

    Attributes:
        weights: The copy, the same function.
        element: ``act(element, given)`` is ``weights``; it has a member axis if a stack was given.
        mass: Its squared norm ``m*``.
        initial_mass: That of the weights given, ``M``.
        excess: ``100 (M / m* − 1)``, in percent.
        iterations: Sweeps and Newton steps.
        residual: The largest ``|in − out| / (in + out)`` over units, in squared norms.
        dead: Units left out of the problem and of both masses.
        excluded: Tensors left out because a normalisation divides them out.
    """

    weights: Weights
    element: Element
    mass: Tensor
    initial_mass: Tensor
    excess: Tensor
    iterations: int
    residual: Tensor
    dead: tuple[DeadUnit, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class MassProfile:
    """Masses of the members of a zoo.

    Attributes:
        mass: As trained.
        minimum: Of the smallest equivalent network.
        excess: ``100 (mass / minimum − 1)``, in percent.
    """

    mass: Tensor
    minimum: Tensor
    excess: Tensor


def minimise_mass(
    group: SymmetryGroup,
    weights: Weights,
    *,
    include_bias: bool = False,
    exclude_normalised: bool = False,
) -> MassMinimum:
    r"""Rescales a network to its smallest squared norm, without a change of its function.

    .. math:: m^* = \min_u M(u), \qquad M(u) = \sum_e w_e^2 \exp(2\, a_e \cdot u)

    over the logarithms :math:`u` of all positive scales, :math:`a_e` the powers with which they act
    on weight :math:`e`.  The problem is convex; the minimum is unique if every unit lies on a path
    of weights from an input to an output, and there the squared norms of the incoming and of the
    outgoing weights of every unit agree.  Closed-form sweeps over the factors come first, Newton
    steps finish.  (Laurent, Aldea and Franchi, ICLR 2024.)

    Args:
        group: The symmetries of the network.
        weights: Weights or a stack, whose members are minimised side by side.
        include_bias: Count biases and thresholds too; by default only weights, those of norms
            included, count.  Running statistics never do.
        exclude_normalised: Leave out tensors whose scale a normalisation divides out, and what can
            be shrunk for free once they are.

    Raises:
        CosetError: If there is no minimum because a normalisation divides a tensor out, or because
            scales run away; or if names or shapes do not fit the group.

    >>> from torch import nn
    >>> from coset import discover
    >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    >>> group = discover(net, torch.zeros(1, 1))
    >>> given = {"0.weight": torch.tensor([[8.0]]), "0.bias": torch.zeros(1)}
    >>> given |= {"2.weight": torch.tensor([[2.0]]), "2.bias": torch.zeros(1)}
    >>> minimum = minimise_mass(group, given)  # 8 · 2 = 4 · 4
    >>> [float(m) for m in (minimum.initial_mass, minimum.mass, minimum.excess)]
    [68.0, 32.0, 112.5]
    """
    copies = group.act(group.identity(), weights)
    single = any(weights[name].dim() == len(shape) for name, shape in group.shapes.items())
    stack = {n: (copies[n].unsqueeze(0) if single else copies[n]).double() for n in group.shapes}
    factors = [f for f in group.scalings if f.domain != "sign"]
    counted = [n for n in group.shapes if _counts(n, include_bias)]
    if exclude_normalised:
        normalised = {invariance.tensor for invariance in group.invariances}
        counted = [n for n in counted if n not in normalised]
    counted = _bounded(factors, counted, allowed=exclude_normalised)
    excluded = tuple(n for n in group.shapes if n not in counted and _counts(n, include_bias))
    problem = monomials(group, factors, {n: stack[n] for n in counted}, torch.square)
    alive, constant = _split(problem, {n: stack[n] for n in counted})
    solution = solve(problem, alive)
    scales = problem.tables(group, solution.logs.exp())
    mass, initial = (
        constant + mass_of(solution.terms, logs)
        for logs in (solution.logs, torch.zeros_like(solution.logs))
    )
    moved = _rescaled(group, weights, stack, scales, single)
    element = _element(group, {n: t[0] if single else t for n, t in scales.items()})
    dead = _named(group, problem, ~alive)
    excess = 100 * (initial / mass - 1).clamp_min(0)
    numbers = [mass, initial, excess, solution.residual]
    mass, initial, excess, residual = (x[0] for x in numbers) if single else numbers
    return MassMinimum(
        moved, element, mass, initial, excess, solution.iterations, residual, dead, excluded
    )


def mass_profile(
    group: SymmetryGroup,
    stack: Weights,
    *,
    include_bias: bool = False,
    exclude_normalised: bool = False,
    chunk: int = 1024,
) -> MassProfile:
    """Mass, smallest mass and excess of every member of a zoo.

    Args:
        group: The symmetries of the network.
        stack: The members.
        include_bias: See `minimise_mass`.
        exclude_normalised: See `minimise_mass`.
        chunk: Members at a time.
    """
    members = next(iter(stack.values())).shape[0]
    found = [
        minimise_mass(
            group,
            {name: tensor[start : start + chunk] for name, tensor in stack.items()},
            include_bias=include_bias,
            exclude_normalised=exclude_normalised,
        )
        for start in range(0, members, chunk)
    ]
    return MassProfile(
        torch.cat([minimum.initial_mass for minimum in found]),
        torch.cat([minimum.mass for minimum in found]),
        torch.cat([minimum.excess for minimum in found]),
    )


def _counts(name: str, include_bias: bool) -> bool:
    """Weights count, biases (whatever is added or compared with) on request, statistics never."""
    last = name.rpartition(".")[2]
    if last.startswith("running_"):
        return False
    added = any(word in last for word in ("bias", "beta", "shift", "threshold"))
    return include_bias or not added


def _bounded(factors: list[ScalingFactor], counted: list[str], *, allowed: bool) -> list[str]:
    """The tensors that cannot be shrunk for free; refuses others unless they are allowed.

    There is a free way down if some direction ``d`` has ``a · d ≤ 0`` on every part and is negative
    on one: a linear programme over one number for each factor.
    """
    from scipy.optimize import linprog

    while True:
        rows: dict[tuple[str, object], list[float]] = {}
        for k, factor in enumerate(factors):
            for site in factor.sites:
                if site.tensor in counted:
                    key = (site.tensor, site.block)
                    rows.setdefault(key, [0.0] * len(factors))[k] += site.power
        if not rows:
            return counted
        matrix = np.array(list(rows.values()))
        if _balances(matrix):
            return counted
        found = linprog(matrix.sum(0), A_ub=matrix, b_ub=[0.0] * len(rows), bounds=(-1, 1))
        shrinking = matrix @ found.x < -1e-7
        free = {tensor for (tensor, _), down in zip(rows, shrinking, strict=True) if down}
        if not free:
            return counted
        if not allowed:
            raise CosetError(
                f"got a network where {', '.join(sorted(free)[:4])} can be made as small as one "
                "likes without a change of its function, because a normalisation divides them out",
                "needed a network whose mass has a minimum",
                "pass exclude_normalised=True to leave such tensors out",
            )
        counted = [name for name in counted if name not in free]


def _balances(matrix: NDArray[np.float64]) -> bool:
    """Whether some positive weights of the rows balance every factor: then there is no way down.

    Tries the weights nearest to one, which is cheap and enough for plain networks.
    """
    ones = np.ones(len(matrix))
    nearest = ones - matrix @ np.linalg.lstsq(matrix, ones, rcond=None)[0]
    return bool((nearest > 1e-6).all())


def _split(problem: Monomials, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Which scales of which members have both incoming and outgoing weights, and the fixed mass."""
    members = next((t.shape[0] for t in tensors.values()), 1)
    total = torch.zeros(members, dtype=torch.float64)
    for tensor in tensors.values():
        total = total + tensor.square().flatten(1).sum(1).to(total.device)
    moving = [term.values.flatten(1).sum(1) for term in problem.terms]
    constant = (total - torch.stack(moving).sum(0)).clamp_min(0) if moving else total
    alive = torch.ones(members, problem.count, dtype=torch.bool)
    if problem.terms:
        touched = torch.zeros(problem.count + 1, dtype=torch.bool)
        for term in problem.terms:
            for index, _ in term.touches:
                touched[index.flatten()] = True
        while True:
            incoming, outgoing = balance(problem, kept(problem, alive), torch.zeros_like(alive))
            now = alive & ((incoming > 0) & (outgoing > 0) | ~touched[:-1])
            if torch.equal(now, alive):
                break
            alive = now
    return alive, constant


def _rescaled(
    group: SymmetryGroup,
    weights: Weights,
    stack: Weights,
    scales: Mapping[str, Tensor],
    single: bool,
) -> Weights:
    moved: Weights = {}
    for factor in group.scalings:
        if factor.name in scales:
            for site in factor.sites:
                if site.tensor not in moved:
                    moved[site.tensor] = stack[site.tensor].clone()
                pairs = [(site, scales[factor.name])]
                scale_tensor_(moved[site.tensor], 1, pairs, batched=True)
    result = {}
    for name, tensor in weights.items():
        main = group.aliases.get(name, name)
        found = moved.get(main)
        if found is None:
            result[name] = tensor.clone()
        else:
            result[name] = (found[0] if single else found).to(tensor.dtype)
    return result


def _element(group: SymmetryGroup, scales: Mapping[str, Tensor]) -> Element:
    """The element with these scales that leaves order and signs as they are."""
    identity = group.identity()
    lead = next((t.shape[: t.dim() - identity.scales[n].dim()] for n, t in scales.items()), ())

    def of_all(table: Tensor) -> Tensor:
        return table.expand(*lead, *table.shape)

    return Element(
        {name: of_all(table) for name, table in identity.permutations.items()},
        {name: scales.get(name, of_all(table)) for name, table in identity.scales.items()},
    )


def _named(group: SymmetryGroup, problem: Monomials, dead: Tensor) -> tuple[DeadUnit, ...]:
    if not bool(dead.any()):
        return ()
    return tuple(
        DeadUnit(name, tuple(unit), member)
        for name, table in problem.tables(group, dead).items()
        for member, *unit in table.nonzero().tolist()
    )
