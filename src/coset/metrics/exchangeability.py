"""Are the units of a layer exchangeable under a posterior, as permutation symmetry demands?

The law of a unit's incoming weights must be the same for every unit of its layer (Laurent et al.
2024, the corollary on equal marginals).  Members must be independent draws for the p-values to
hold: samples of one chain are not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_at_least, check_finite, check_floating

_STEPS, _WORK = 100_000, 1e9
"""Steps, and numbers added up, that working a law out may take: about a second."""

_LARGE = 5
"""Members a unit from which the statistic has the chi-square law (Cochran 1954)."""

_FALLS, _ENTRIES = 9_999, 1 << 22
"""Random falls of all balls, and balls that fall at a time."""


@dataclass(frozen=True)
class Exchangeability:
    """A test that all units of a layer have one law.

    Attributes:
        counts: How many members have their largest weight in each unit.
        statistic: Chi-square of the counts against equal counts.
        p_value: Of the statistic; small when the units differ.  If they do not, it is at most
            ``α`` with a probability of at most ``α`` (nearly, with very many members).
    """

    counts: Int[Tensor, " h"]
    statistic: float
    p_value: float


def exchangeability(
    stack: Mapping[str, Tensor],
    tensor: str,
    *,
    position: int | None = None,
    generator: torch.Generator | None = None,
) -> Exchangeability:
    """Count in which unit members have their largest weight: exchangeable ones share alike.

    Takes argmax_i max_j w_ij of each member and tests Σ_i (count_i − m/h)² / (m/h) against its law
    for m balls in h boxes (:func:`coset.metrics.exchangeability.uniformity`).

    Args:
        stack: Weights with a leading member axis.
        tensor: The layer's weight, units first after the members: (m, h, …).
        position: Compare the units at this one flat position of their filter, argmax_i w_ij, in
            place of the maximum over the whole filter.
        generator: Chooses among units that are equally high, each with the same chance; ``None``:
            a fresh one of seed 0.

    >>> stack = {"w": torch.eye(4).unsqueeze(-1)}  # each member prefers a unit of its own
    >>> result = exchangeability(stack, "w")
    >>> result.counts.tolist(), result.statistic, result.p_value
    ([1, 1, 1, 1], 0.0, 1.0)
    """
    filters = _filters(stack, tensor)
    _, units, size = filters.shape
    if position is None:
        height = filters.amax(-1)
    elif 0 <= position < size:
        height = filters[..., position]
    else:
        raise CosetError(
            f"position is {position}", f"needed 0 to {size - 1}: a filter's entry", "change it"
        )
    random = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.rand(height.shape, generator=random).to(height.device)
    highest = order.where(height == height.amax(-1, keepdim=True), -1.0).argmax(-1)
    counts = torch.bincount(highest, minlength=units)
    return Exchangeability(counts, *uniformity(counts))


def uniformity(counts: Int[Tensor, " h"]) -> tuple[float, float]:
    """Chi-square of counts against equal counts, and its p-value.

    The law of the statistic is that of ``m`` balls which fall into ``h`` boxes.  It is worked out
    where that is quick, which it is for a hundred members and five hundred units; beyond, it is the
    chi-square law of ``h - 1`` degrees of freedom from five members a unit on, and 9,999 random
    falls (the p-value is then at least 1e-4) for fewer.

    >>> uniformity(torch.tensor([6, 4]))  # 1 - C(10, 5) / 2¹⁰: any split but five and five
    (0.4, 0.753...)
    """
    numbers = counts.to("cpu", torch.int64)
    expected = numbers.double().mean()
    statistic = float(((numbers - expected).square() / expected).sum())
    members, boxes = int(numbers.sum()), len(numbers)
    squares = int(numbers.square().sum())
    steps = boxes * members
    if 0 < steps <= _STEPS and steps * squares**1.5 <= _WORK:
        return statistic, _exactly(squares, members, boxes)
    if members < _LARGE * boxes:
        return statistic, _by_falls(squares, members, boxes)
    freedom = torch.tensor((boxes - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return statistic, float(torch.special.gammaincc(freedom, half))


def _exactly(squares: int, members: int, boxes: int) -> float:
    """``P(Σ c_i² ≥ squares)`` for balls that fall into boxes, box by box.

    Independent Poisson counts, given their sum, are the counts of balls in boxes.  The table holds
    the probability of each sum and each ``Σ c²`` so far, whose last column is "enough".
    """
    balls = torch.arange(members + 1, dtype=torch.float64)
    rate = members / boxes
    poisson = (balls * math.log(rate) - rate - torch.lgamma(balls + 1)).exp()
    few = math.isqrt(squares - 1) + 1  # so many balls in one box are enough by themselves
    more = (balls[:, None] - balls[None, :]).long()  # from a column's sum to a row's
    enough = poisson[more.clamp_min(0)].where(more >= few, 0.0)
    chances = poisson[:few].tolist()
    table = torch.zeros(members + 1, squares + 1, dtype=torch.float64)
    table[0, 0] = 1.0
    for _ in range(boxes):
        fresh = torch.zeros_like(table)
        for count, chance in enumerate(chances):
            before = table[: members + 1 - count]
            kept = squares - count * count
            fresh[count:, count * count : squares].add_(before[:, :kept], alpha=chance)
            fresh[count:, squares].add_(before[:, kept:].sum(1), alpha=chance)
        fresh[:, squares] += enough @ table.sum(1)
        table = fresh
    return min(1.0, float(table[members, squares] / table[members].sum()))


def _by_falls(squares: int, members: int, boxes: int) -> float:
    """The same from random falls of a generator of its own, the observed one counted in."""
    random = torch.Generator().manual_seed(0)
    reached, left = 0, _FALLS
    while left:
        rows = min(left, max(1, _ENTRIES // members))
        fallen = torch.randint(boxes, (rows, members), generator=random).sort(1).values
        begins = torch.ones_like(fallen)
        begins[:, 1:] = fallen.diff(dim=1) != 0
        groups = begins.flatten().cumsum(0) - 1  # balls of one row that lie in one box
        sizes = torch.bincount(groups)
        owner = torch.arange(rows).repeat_interleave(begins.sum(1))
        found = torch.zeros(rows, dtype=torch.int64).index_add_(0, owner, sizes.square())
        reached, left = reached + int((found >= squares).sum()), left - rows
    return (1 + reached) / (1 + _FALLS)


@dataclass(frozen=True)
class UnitLaws:
    """A test that compares the whole laws of the units' filters, not only their maxima.

    Attributes:
        distance: Squared distance of each unit's mean feature from the mean over all units.
        statistic: Sum of the distances.
        p_value: By permuting units within members, which is exact for exchangeable units.
    """

    distance: Float[Tensor, " h"]
    statistic: float
    p_value: float


def compare_unit_laws(
    stack: Mapping[str, Tensor],
    tensor: str,
    *,
    features: int = 256,
    permutations: int = 499,
    generator: torch.Generator,
) -> UnitLaws:
    """Compare the laws of the units' filters by the discrepancy of each unit to all together.

    The statistic is Σ_i ‖φ̄_i − φ̄‖², φ being random Fourier features of a Gaussian kernel whose
    bandwidth is the median distance of filters, φ̄_i their mean over the members for unit i.

    >>> generator = torch.Generator().manual_seed(0)
    >>> first_unit_is_large = torch.tensor([[9.0], [0.0], [0.1]]).expand(40, 3, 1)
    >>> result = compare_unit_laws({"w": first_unit_is_large}, "w", generator=generator)
    >>> result.p_value, int(result.distance.argmax())
    (0.002, 0)
    """
    check_at_least("features", features, 1)
    check_at_least("permutations", permutations, 1)
    filters = _filters(stack, tensor)
    mapped = _fourier_features(filters.double(), features, generator)
    centre = mapped.mean((0, 1))

    def distances(values: Tensor) -> Tensor:
        return (values.mean(0) - centre).square().sum(-1)

    observed = distances(mapped)
    members, units, _ = mapped.shape
    reached = 0
    for _ in range(permutations):
        draw = torch.rand(members, units, generator=generator).argsort(-1).to(mapped.device)
        permuted = mapped.gather(1, draw.unsqueeze(-1).expand_as(mapped))
        reached += int(distances(permuted).sum() >= observed.sum() * (1 - 1e-12))
    return UnitLaws(observed, float(observed.sum()), (1 + reached) / (1 + permutations))


def _fourier_features(
    filters: Float[Tensor, "m h d"], features: int, generator: torch.Generator
) -> Float[Tensor, "m h f"]:
    """√(2/f) cos(ω·w / bandwidth + b), with ω Gaussian and b uniform on a circle."""
    size = filters.shape[-1]
    flat = filters.flatten(0, 1)
    some = flat[torch.randperm(len(flat), generator=generator)[:500].to(flat.device)]
    spread = torch.pdist(some)
    spread = spread[spread > 0]
    bandwidth = float(spread.median()) if spread.numel() else 1.0
    frequencies = torch.randn(size, features, generator=generator).to(filters)
    phases = 2 * math.pi * torch.rand(features, generator=generator).to(filters)
    return math.sqrt(2 / features) * torch.cos(filters @ frequencies / bandwidth + phases)


def _filters(stack: Mapping[str, Tensor], tensor: str) -> Float[Tensor, "m h d"]:
    if not isinstance(stack, Mapping):
        raise CosetError(
            f"the stack is a {type(stack).__name__}",
            "needed a dictionary of tensors with a member axis",
            "build it with coset.stack",
        )
    if tensor not in stack:
        raise CosetError(
            f"the stack has no tensor {tensor!r}",
            f"needed one of {sorted(stack)}",
            "check the name",
        )
    values = stack[tensor].detach()
    check_floating(tensor, values)
    check_finite(tensor, values)
    if values.ndim < 2 or values.shape[1] < 2:
        raise CosetError(
            f"{tensor} has shape {tuple(values.shape)}",
            "needed (members, units, …) with two units or more",
            "give a stack, with the member axis first",
        )
    return values.reshape(*values.shape[:2], -1)
