"""The smallest copy of a network: least squares of the weights over all its rescalings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.errors import CosetError
from coset.printing import brief
from coset.symmetry.action import scale_tensor_
from coset.symmetry.elements import Element, ScalingFactor
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.balancing import without_dead_units
from coset.symmetry.removing.crossings import doubled
from coset.symmetry.removing.monomials import Monomials, Numbers, monomials
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

    __repr__ = brief


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

    __repr__ = brief


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
            scales run away; or if weights do not fit the group or are not finite.

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
    plan = group.remembered(
        ("mass", include_bias, exclude_normalised),
        lambda: _planned(group, include_bias, exclude_normalised),
    )
    stack, single = doubled(group, weights)
    members = next((len(tensor) for tensor in stack.values()), 1)
    squares = {name: stack[name].square() for name in plan.counted}
    sums = plan.problem.sums(squares)
    balance, start, alive = without_dead_units(plan.problem, sums, members)
    solution = balance.solve(start)
    end, constant = solution.state, _constant(plan, squares, sums, members)
    mass, initial = constant + end.mass, constant + start.mass
    excess = 100 * np.maximum(initial / np.where(mass > 0, mass, 1.0) - 1, 0.0)
    scales = plan.problem.tables(group, np.exp(end.logs))
    minimum = MassMinimum(
        weights=_rescaled(group, weights, stack, scales),
        element=_element(group, scales, members),
        mass=torch.from_numpy(mass),
        initial_mass=torch.from_numpy(initial),
        excess=torch.from_numpy(excess),
        iterations=solution.iterations,
        residual=torch.from_numpy(end.residual),
        dead=_named(group, plan.problem, ~alive),
        excluded=plan.excluded,
    )
    return _of_one(minimum) if single else minimum


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


@dataclass(frozen=True)
class _Plan:
    """What depends on the group alone.

    Attributes:
        counted: Tensors whose squares count.
        excluded: Tensors left out because a normalisation divides them out.
        problem: How the squares depend on the scales.
        rest: Tensors of which some part does not.
    """

    counted: tuple[str, ...]
    excluded: tuple[str, ...]
    problem: Monomials
    rest: tuple[str, ...]


def _planned(group: SymmetryGroup, include_bias: bool, exclude_normalised: bool) -> _Plan:
    factors = [f for f in group.scalings if f.domain != "sign"]
    candidates = [n for n in group.shapes if _counts(n, include_bias)]
    divided = {i.tensor for i in group.invariances} if exclude_normalised else set()
    counted = _bounded(
        factors, [n for n in candidates if n not in divided], allowed=exclude_normalised
    )
    problem = monomials(group, factors, counted)
    whole = {t.tensor for t in problem.terms if t.site is None or not t.site.block}
    return _Plan(
        tuple(counted),
        tuple(n for n in candidates if n not in counted),
        problem,
        tuple(n for n in counted if n not in whole),
    )


def _constant(
    plan: _Plan, squares: Mapping[str, Tensor], sums: Sequence[Numbers], members: int
) -> Numbers:
    """The mass of every member that no scale changes."""
    constant = np.zeros(members)
    for name in plan.rest:
        moving = [s for s, t in zip(sums, plan.problem.terms, strict=True) if t.tensor == name]
        finite = squares[name].nan_to_num(posinf=0.0)  # masks weigh nothing
        total = finite.reshape(members, -1).sum(1).cpu().numpy()
        constant += np.maximum(total - sum(s.reshape(members, -1).sum(1) for s in moving), 0.0)
    return constant


def _of_one(minimum: MassMinimum) -> MassMinimum:
    """The minimum of weights, from that of a stack of one."""
    element = minimum.element
    return replace(
        minimum,
        weights={name: tensor[0] for name, tensor in minimum.weights.items()},
        element=Element(
            {name: table[0] for name, table in element.permutations.items()},
            {name: table[0] for name, table in element.scales.items()},
        ),
        mass=minimum.mass[0],
        initial_mass=minimum.initial_mass[0],
        excess=minimum.excess[0],
        residual=minimum.residual[0],
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


def _rescaled(
    group: SymmetryGroup, weights: Weights, stack: Weights, scales: Mapping[str, Tensor]
) -> Weights:
    """The stack, which is changed, with the names and types of the weights given."""
    for factor in group.scalings:
        if factor.name in scales:
            for site in factor.sites:
                pairs = [(site, scales[factor.name])]
                scale_tensor_(stack[site.tensor], 1, pairs, batched=True)
    result = {}
    for name, tensor in weights.items():
        found = stack.get(group.aliases.get(name, name))
        result[name] = tensor.clone() if found is None else found.to(tensor.dtype)
    return result


def _element(group: SymmetryGroup, scales: Mapping[str, Tensor], members: int) -> Element:
    """The elements with these scales that leave order and signs as they are."""
    identity = group.remembered("identity", group.identity)
    return Element(
        {name: t.expand(members, *t.shape) for name, t in identity.permutations.items()},
        {n: scales.get(n, t.expand(members, *t.shape)) for n, t in identity.scales.items()},
    )


def _named(
    group: SymmetryGroup, problem: Monomials, dead: NDArray[np.bool_]
) -> tuple[DeadUnit, ...]:
    if not dead.any():
        return ()
    return tuple(
        DeadUnit(name, tuple(unit), member)
        for name, table in problem.tables(group, dead).items()
        for member, *unit in table.nonzero().tolist()
    )
