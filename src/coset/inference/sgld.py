"""Stochastic-gradient Langevin dynamics (Welling and Teh 2011)."""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
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
class SGLD:
    """Gradient descent on the energy with as much noise as makes it a sampler.

    ``w ← w - ε/2 ∇Û(w) + √(ε T) ξ`` with ``ξ ~ N(0, I)`` and the gradient of a batch, scaled to all
    data.  On a Gaussian of curvature ``λ`` the variance comes out as ``1 / (λ (1 - ελ/4))`` at full
    batch; a batch of a share ``b`` of the data adds about ``ελ (1 - b) / 4b`` of it.

    Without velocity it walks at random: a direction of variance ``σ²`` takes about ``10 λσ² / b``
    steps to forget where it was, so that on networks :class:`SGHMC` gets further in the same time.

    Attributes:
        step_size: ``ε``; ``None``: ``0.2 b / λ`` with the largest curvature ``λ`` found during the
            burn-in, so that variances are right to about 5 %.
        temperature: ``T``; one is the posterior, less a cold one, zero gradient descent.
        schedule: Cycles in place of burn-in, draws and thinning.
        burn_in: Steps before the first that is kept.
        draws: States kept of each chain.
        thinning: Steps from one kept state to the next.
        chains: Chains run side by side.
        batch_size: Examples a step.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    step_size: float | None = None
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
        """``0.2 b / λ``.

        >>> SGLD().choose_step(curvature=10.0, batch=1.0)
        0.02
        """
        return 0.2 * batch / curvature

    def move(
        self,
        state: StochasticState,
        gradient: Float[Tensor, "m p"],
        noise: Float[Tensor, "m p"],
        step: Step,
    ) -> StochasticState:
        """One step of all chains."""
        kick = math.sqrt(step.size * step.temperature)
        drift = torch.add(state.positions, gradient, alpha=-step.size / 2)
        return replace(state, positions=drift.add_(noise, alpha=kick))
