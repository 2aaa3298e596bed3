"""The leapfrog integrator and the state that Hamiltonian samplers share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from coset.inference.sampling.adaptation import Adaptation
from coset.inference.sampling.targets import Evaluated, FullBatch

DIVERGENT = 1000.0
"""An energy error beyond which the integrator has lost the trajectory (as in Stan)."""


@dataclass(frozen=True)
class Energy:
    """What chains move in.

    Attributes:
        evaluate: Energies and gradients at positions.
    """

    evaluate: Callable[[Float[Tensor, "m p"]], Evaluated]

    @staticmethod
    def of(target: FullBatch, buffers: Float[Tensor, "m q"]) -> "Energy":
        """That of a posterior, with fixed buffers."""
        return Energy(lambda at: target(at, buffers))

    def __call__(self, positions: Float[Tensor, "m p"]) -> Evaluated:
        """Energies and gradients."""
        return self.evaluate(positions)


@dataclass(frozen=True)
class Point:
    """Chains in phase space."""

    positions: Float[Tensor, "m p"]
    momenta: Float[Tensor, "m p"]
    energy: Float[Tensor, " m"]
    gradient: Float[Tensor, "m p"]

    def hamiltonian(self, inverse_mass: Float[Tensor, " p"]) -> Float[Tensor, " m"]:
        """``U(w) + ½ r M⁻¹ r``."""
        return self.energy + (inverse_mass * self.momenta.square()).sum(1) / 2


def choose(which: Bool[Tensor, " m"], yes: Point, no: Point) -> Point:
    """One of two points, chain by chain."""
    if bool(which.all()):  # most often: no copies
        return yes
    if not bool(which.any()):
        return no
    rows = which[:, None]
    return Point(
        torch.where(rows, yes.positions, no.positions),
        torch.where(rows, yes.momenta, no.momenta),
        torch.where(which, yes.energy, no.energy),
        torch.where(rows, yes.gradient, no.gradient),
    )


@dataclass(frozen=True)
class HamiltonianState:
    """The chains and what the warm-up has learnt."""

    positions: Float[Tensor, "m p"]
    buffers: Float[Tensor, "m q"]
    energy: Float[Tensor, " m"]
    gradient: Float[Tensor, "m p"]
    adaptation: Adaptation


def leapfrog(
    energy: Energy,
    point: Point,
    step: float | Float[Tensor, "m 1"],
    inverse_mass: Float[Tensor, " p"],
    count: int = 1,
) -> Point:
    """``count`` leapfrog steps: half a kick, a drift, half a kick; neighbouring halves joined.

    >>> square = Energy(lambda w: Evaluated(w.square().sum(1) / 2, w, w[:, :0]))
    >>> one = torch.ones(1, 1)
    >>> after = leapfrog(square, Point(one, 0 * one, one[0] / 2, one), 0.1, one[0])
    >>> after.positions.item()  # 1 - 0.1² / 2
    0.995...
    """
    momenta, drift = point.momenta - step / 2 * point.gradient, step * inverse_mass
    positions = torch.addcmul(point.positions, drift, momenta)
    for _ in range(count - 1):
        _kick(momenta, energy(positions).gradient, step)
        positions.addcmul_(drift, momenta)
    last = energy(positions)
    _kick(momenta, last.gradient, step / 2)
    return Point(positions, momenta, last.energy, last.gradient)


def _kick(
    momenta: Float[Tensor, "m p"],
    gradient: Float[Tensor, "m p"],
    step: float | Float[Tensor, "m 1"],
) -> None:
    if isinstance(step, Tensor):
        momenta.addcmul_(step, gradient, value=-1)
    else:
        momenta.sub_(gradient, alpha=step)


def fresh_momenta(
    positions: Float[Tensor, "m p"],
    inverse_mass: Float[Tensor, " p"],
    *,
    generator: torch.Generator,
) -> Float[Tensor, "m p"]:
    """Momenta from ``N(0, M)``."""
    noise = torch.randn(
        positions.shape, dtype=positions.dtype, device=positions.device, generator=generator
    )
    return noise * inverse_mass.rsqrt()


def single_step_acceptance(
    energy: Energy,
    positions: Float[Tensor, "m p"],
    value: Float[Tensor, " m"],
    gradient: Float[Tensor, "m p"],
    *,
    generator: torch.Generator,
) -> Callable[[float, Tensor], float]:
    """The mean acceptance of one leapfrog step as a function of its size and the inverse mass."""
    seed = int(torch.randint(2**62, (), generator=generator))

    def acceptance(step: float, inverse_mass: Tensor) -> float:
        fixed = torch.Generator(generator.device).manual_seed(seed)
        momenta = fresh_momenta(positions, inverse_mass, generator=fixed)
        before = Point(positions, momenta, value, gradient)
        after = leapfrog(energy, before, step, inverse_mass)
        error = after.hamiltonian(inverse_mass) - before.hamiltonian(inverse_mass)
        return float(acceptance_of(error).mean())

    return acceptance


def acceptance_of(error: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """``min(1, exp(-error))``; an error that is not finite is never accepted.

    >>> acceptance_of(torch.tensor([-1.0, float("nan")]))
    tensor([1., 0.])
    """
    return torch.where(error.isfinite(), (-error).clamp_max(0).exp(), 0.0)
