"""The no-U-turn sampler (Hoffman and Gelman 2014), multinomial (Betancourt 2017), many chains."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.errors import require_counts, require_kinds
from coset.inference.known_noise import with_known_noise
from coset.inference.run_record import Checkpoint
from coset.inference.sampling.full_batch import begin_step, check_settings, end_step, sample
from coset.inference.sampling.hamiltonian import Energy, HamiltonianState
from coset.inference.sampling.trees import grow
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights


@dataclass(frozen=True)
class NUTS:
    """Hamiltonian Monte Carlo whose trajectories stop by themselves where they would turn back.

    A trajectory doubles, forwards or backwards in time, until its ends approach each other; the
    next state is drawn from all its points in proportion to ``exp(-H)``, with a preference for the
    newer half.  All chains double together; those that have stopped wait.

    Attributes:
        max_depth: Most doublings: a trajectory has at most ``2^max_depth`` leapfrog steps.
        step_size: Of a leapfrog step; ``None``: adapted in the warm-up.
        target_acceptance: What the adaptation aims at.
        adapt_mass: Whether the warm-up estimates a diagonal mass, if it has 40 steps or more.
        warmup: Steps before the first that is kept.
        draws: States kept of each chain.
        thinning: Steps from one kept state to the next.
        chains: Chains run side by side.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    max_depth: int = 7
    step_size: float | None = None
    target_acceptance: float = 0.8
    adapt_mass: bool = True
    warmup: int = 150
    draws: int = 150
    thinning: int = 1
    chains: int = 4
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(max_depth=self.max_depth)
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
            CosetError: If energies are not finite at the start, or every step is refused.
        """
        known, learnt = with_known_noise(problem, generator)
        return sample(
            self, known, learnt=learnt, start=start, generator=generator, progress=progress
        )

    def step(
        self, energy: Energy, state: HamiltonianState, number: int, *, generator: torch.Generator
    ) -> tuple[HamiltonianState, Mapping[str, Float[Tensor, " m"]]]:
        """One trajectory of every chain."""
        mass = state.adaptation.inverse_mass
        begin, size = begin_step(self, state, number, generator=generator)
        tree = grow(energy, begin, size, mass, self.max_depth, generator=generator)
        acceptance = tree.acceptance / tree.leaves.clamp_min(1)
        moved = end_step(self, energy, state, number, tree.chosen, acceptance, generator=generator)
        return moved, {
            "acceptance": acceptance,
            "energy": begin.hamiltonian(mass),
            "divergent": tree.divergent.to(acceptance),
            "leapfrog_steps": tree.leaves,
            "cut_off": tree.growing.to(acceptance),
        }
