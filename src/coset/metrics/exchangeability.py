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


@dataclass(frozen=True)
class Exchangeability:
    """A test that all units of a layer have one law.

    Attributes:
        counts: How many members have their largest weight in each unit.
        statistic: Chi-square of the counts against equal counts.
        p_value: Of the statistic; small when the units differ.
    """

    counts: Int[Tensor, " h"]
    statistic: float
    p_value: float


def exchangeability(
    stack: Mapping[str, Tensor], tensor: str, *, position: int | None = None
) -> Exchangeability:
    """Count in which unit members have their largest weight: exchangeable ones share alike.

    Takes argmax_i max_j w_ij of each member and tests Σ_i (count_i − m/h)² / (m/h) against a
    chi-square law of h − 1 degrees of freedom.

    Args:
        stack: Weights with a leading member axis.
        tensor: The layer's weight, units first after the members: (m, h, …).
        position: Compare the units at this one flat position of their filter, argmax_i w_ij, in
            place of the maximum over the whole filter.

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
    counts = torch.bincount(height.argmax(-1), minlength=units)
    return Exchangeability(counts, *uniformity(counts))


def uniformity(counts: Int[Tensor, " h"]) -> tuple[float, float]:
    """Chi-square of counts against equal counts, and its p-value.

    >>> uniformity(torch.tensor([6, 4]))  # 1/5 + 1/5, p = erfc(√0.2)
    (0.4, 0.527...)
    """
    expected = counts.double().mean()
    statistic = float(((counts - expected).square() / expected).sum())
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return statistic, float(torch.special.gammaincc(freedom, half))


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
