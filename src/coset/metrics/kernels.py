"""Kernels between weight vectors, and the rule for their bandwidths (Schrab et al., MMDAgg)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError


@dataclass(frozen=True)
class Distances:
    """L1 and L2 distances between all pairs of t vectors, in float64."""

    l1: Float[Tensor, "t t"]
    l2: Float[Tensor, "t t"]

    def plus(self, other: "Distances") -> "Distances":
        """The distances over the parameters of both."""
        return Distances(self.l1 + other.l1, torch.hypot(self.l2, other.l2))


@dataclass(frozen=True)
class Kernel:
    """k(x, y) = profile(‖x − y‖ / bandwidth).

    Attributes:
        name: For tables.
        distance: Which norm.
        bandwidth: The length by which the distance is divided.
        profile: From the scaled distance to the kernel's value.
    """

    name: str
    distance: Literal["l1", "l2"]
    bandwidth: float
    profile: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise CosetError(
                f"the bandwidth of the {self.name} kernel is {self.bandwidth}",
                "needed a positive number",
                "check the samples for NaN, or give kernels of your own",
            )

    def gram(self, distances: Distances) -> Float[Tensor, "t t"]:
        """The kernel's value for each pair, in a new matrix."""
        distance = distances.l1 if self.distance == "l1" else distances.l2
        return self.profile(distance / self.bandwidth)


def laplace(bandwidth: float) -> Kernel:
    """exp(−‖x − y‖₁ / h)."""
    return Kernel("Laplace", "l1", bandwidth, lambda d: torch.exp(-d))


def gaussian(bandwidth: float) -> Kernel:
    """exp(−‖x − y‖₂² / h²), without a factor two."""
    return Kernel("Gaussian", "l2", bandwidth, lambda d: torch.exp(-d.square()))


def inverse_multiquadric(bandwidth: float) -> Kernel:
    """(1 + ‖x − y‖₂² / h²)^(−½)."""
    return Kernel("inverse multiquadric", "l2", bandwidth, lambda d: (1 + d.square()).rsqrt())


def matern(bandwidth: float, order: int = 1, *, distance: Literal["l1", "l2"] = "l2") -> Kernel:
    """Matérn with smoothness ν = order + ½, d = ‖x − y‖ / h, a = √(2ν) d.

    exp(−a) · k! / (2k)! · Σ_{i=0…k} (k + i)! / (i! (k − i)!) · (2a)^(k − i), with k = order.

    >>> matern(1.0, 0).profile(torch.tensor(1.0))  # ν = ½: exp(−1)
    tensor(0.3679)
    """
    if order not in range(5):
        raise CosetError(f"order is {order}", "needed 0 to 4 (ν from ½ to 4½)", "change the order")
    coefficients = [
        math.factorial(order + i) / (math.factorial(i) * math.factorial(order - i))
        for i in range(order + 1)
    ]
    scale = math.factorial(order) / math.factorial(2 * order)

    def profile(scaled: Tensor) -> Tensor:
        a = math.sqrt(2 * order + 1) * scaled
        series = torch.zeros_like(a)
        for coefficient in coefficients:
            series = series * (2 * a) + coefficient
        return scale * series * torch.exp(-a)

    return Kernel(f"Matérn {order}½", distance, bandwidth, profile)


def default_kernels(l1: Float[Tensor, " d"], l2: Float[Tensor, " d"]) -> tuple[Kernel, ...]:
    """Ten Laplace and ten Gaussian kernels with the bandwidths that fit these distances."""
    return (
        *(laplace(bandwidth) for bandwidth in bandwidths(l1)),
        *(gaussian(bandwidth) for bandwidth in bandwidths(l2)),
    )


def bandwidths(distances: Float[Tensor, " d"], count: int = 10) -> list[float]:
    """A geometric grid from half the smallest distance to twice the largest.

    A smallest distance below 0.1 is replaced by the 5 % quantile, at least 0.1; the largest counts
    as at least 0.3.

    >>> bandwidths(torch.tensor([2.0, 3.0, 8.0]), count=3)  # 1, √16, 16
    [1.0, 4.0, 16.0]
    """
    smallest = float(distances.amin())
    if smallest < 0.1:
        place = math.floor(distances.numel() * 0.05)
        smallest = max(float(distances.kthvalue(place + 1).values), 0.1)
    low, high = smallest / 2, 2 * max(float(distances.amax()), 0.3)
    ratio = (high / low) ** (1 / (count - 1))
    return [low * ratio**i for i in range(count)]
