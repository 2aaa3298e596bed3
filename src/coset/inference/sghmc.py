"""Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014)."""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.known_noise import with_known_noise
from coset.inference.run_record import Checkpoint
from coset.inference.sampling.stochastic import (
    Cyclical,
    Step,
    StochasticState,
    check_settings,
    sample,
)
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights


@dataclass(frozen=True)
class SGHMC:
    """Langevin dynamics with velocity and friction: momentum descent with noise.

    One step is a kick, half a drift, friction with noise, half a drift (BAOA: Leimkuhler and
    Matthews 2013), where the original, eq. 15, takes Euler steps::

        v ← v - h ∇Û(w)
        w ← w + h v / 2
        v ← (1 - α) v + √((1 - (1 - α)²) T) ξ
        w ← w + h v / 2

    It costs one gradient like the original, and positions on a Gaussian have exactly its variance
    at full batch, whatever the step.  A batch of a share ``b`` of the data adds about
    ``h²λ (1 - b) / (b (1 - (1 - α)²))`` of the variance.

    Attributes:
        step_size: ``h``; ``None``: from the largest curvature ``λ`` found during the burn-in,
            ``h²λ ≤ ½`` and such that batches add about 10 % to the variance.
        friction: ``α``, the share of the velocity lost in a step.  Less crosses slow directions
            sooner, but lets more of the noise of batches in, and so asks for smaller steps.
        temperature: ``T``; one is the posterior, less a cold one.
        schedule: Cycles in place of burn-in, draws and thinning.
        burn_in: Steps before the first that is kept.
        draws: States kept of each chain.
        thinning: Steps from one kept state to the next.
        chains: Chains run side by side.
        batch_size: Examples a step.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    step_size: float | None = None
    friction: float = 0.05
    temperature: float = 1.0
    schedule: Cyclical | None = None
    burn_in: int = 2000
    draws: int = 250
    thinning: int = 50
    chains: int = 4
    batch_size: int = 256
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 < self.friction <= 1:
            raise CosetError(
                f"got a friction of {self.friction}", "needed more than 0 and at most 1"
            )

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Samples:
        """Runs the chains from ``start`` (one network or a stack), or from fresh weights.

        Raises:
            CosetError: If an energy or gradient stops being finite.
        """
        known, learnt = with_known_noise(problem, generator)
        return sample(
            self, known, learnt=learnt, start=start, generator=generator, progress=progress
        )

    def choose_step(self, curvature: float, batch: float) -> float:
        """``√(min(½, 0.1 (1 - (1 - α)²) b / (1 - b)) / λ)``.

        >>> SGHMC().choose_step(curvature=50.0, batch=1.0)
        0.1
        """
        share = 0.5
        if batch < 1:
            share = min(share, 0.1 * self._refreshed * batch / (1 - batch))
        return math.sqrt(share / curvature)

    def move(
        self,
        state: StochasticState,
        gradient: Float[Tensor, "m p"],
        noise: Float[Tensor, "m p"],
        step: Step,
    ) -> StochasticState:
        """One step of all chains."""
        half = step.size / 2
        velocity = torch.add(state.velocity, gradient, alpha=-step.size)
        positions = torch.add(state.positions, velocity, alpha=half)
        velocity = velocity.mul_(1 - self.friction)
        velocity = velocity.add_(noise, alpha=math.sqrt(self._refreshed * step.temperature))
        return replace(state, positions=positions.add_(velocity, alpha=half), velocity=velocity)

    @property
    def _refreshed(self) -> float:
        """Variance of a velocity that one step renews."""
        return 1 - (1 - self.friction) ** 2
