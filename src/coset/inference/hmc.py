"""Hamiltonian Monte Carlo (Neal 2011), full batch, many chains at once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.errors import CosetError, require_counts, require_kinds
from coset.inference.known_noise import with_known_noise
from coset.inference.run_record import Checkpoint
from coset.inference.sampling.full_batch import begin_step, check_settings, end_step, sample
from coset.inference.sampling.hamiltonian import (
    DIVERGENT,
    Energy,
    HamiltonianState,
    acceptance_of,
    choose,
    leapfrog,
)
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights


@dataclass(frozen=True)
class HMC:
    """Follows Hamilton's equations for a while, then accepts or refuses where that led.

    With momenta ``r ~ N(0, M)`` a proposal is a leapfrog trajectory of ``H = U(w) + ½ r M⁻¹ r``,
    accepted with probability ``min(1, exp(H - H'))``.  Lengths of trajectories are drawn evenly
    between zero and twice ``trajectory``, so that no direction returns to where it began.

    Attributes:
        trajectory: Mean length of a trajectory, in standard deviations once the mass is adapted.
            A quarter turn, π/2, crosses a Gaussian.
        max_steps: Most leapfrog steps of a trajectory.
        step_size: Of a leapfrog step; ``None``: adapted in the warm-up.
        target_acceptance: What the adaptation aims at.  Smooth energies want about 0.65; the kinks
            of ReLU, whose errors shrink only in proportion to the step, about 0.5.
        adapt_mass: Whether the warm-up estimates a diagonal mass, if it has 40 steps or more.
        warmup: Steps before the first that is kept.
        draws: States kept of each chain.
        thinning: Steps from one kept state to the next.
        chains: Chains run side by side.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    trajectory: float = math.pi / 2
    max_steps: int = 128
    step_size: float | None = None
    target_acceptance: float = 0.6
    adapt_mass: bool = True
    warmup: int = 200
    draws: int = 250
    thinning: int = 1
    chains: int = 4
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(max_steps=self.max_steps)
        if not 0 < self.trajectory < math.inf:
            raise CosetError(f"got a trajectory of {self.trajectory}", "needed a positive length")
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
            CosetError: If energies are not finite at the start, or every proposal is refused.
        """
        known, learnt = with_known_noise(problem, generator)
        return sample(
            self, known, learnt=learnt, start=start, generator=generator, progress=progress
        )

    def step(
        self, energy: Energy, state: HamiltonianState, number: int, *, generator: torch.Generator
    ) -> tuple[HamiltonianState, Mapping[str, Float[Tensor, " m"]]]:
        """One proposal of every chain."""
        mass = state.adaptation.inverse_mass
        before, size = begin_step(self, state, number, generator=generator)
        # of one type whatever torch's default and the weights are
        drawn = torch.rand(1 + len(state.energy), dtype=torch.float32, generator=generator)
        share, *uniform = drawn.to(mass).unbind()
        count = min(self.max_steps, max(1, round(2 * self.trajectory * float(share) / size)))
        after = leapfrog(energy, before, size, mass, count)
        total = before.hamiltonian(mass)
        error = after.hamiltonian(mass) - total
        acceptance = acceptance_of(error)
        chosen = choose(torch.stack(uniform) < acceptance, after, before)
        moved = end_step(self, energy, state, number, chosen, acceptance, generator=generator)
        divergent = ~(error < DIVERGENT)
        return moved, {
            "acceptance": acceptance,
            "energy": total,
            "divergent": divergent.to(acceptance),
            "leapfrog_steps": torch.full_like(acceptance, count),
        }
