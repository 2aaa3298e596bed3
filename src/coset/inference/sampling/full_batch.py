"""What HMC and NUTS share: chains over the exact energy, begun, run and reported alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.checkpoint import Checkpoint
from coset.inference.diagnostics import report_of_chains
from coset.inference.sampling.adaptation import Warmup
from coset.inference.sampling.chains import History, Length, run
from coset.inference.sampling.hamiltonian import Energy, HamiltonianState, single_step_acceptance
from coset.inference.sampling.targets import Evaluated, FullBatch, require_finite, settle
from coset.inference.training.members import member_seeds, starting_points
from coset.posterior.families import Samples
from coset.vocabulary import Progress, Weights


class FullBatchSampler(Protocol):
    """A sampler that needs the exact energy."""

    @property
    def length(self) -> Length:
        """How long chains run."""
        ...

    @property
    def adaptation(self) -> Warmup:
        """How the warm-up goes."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Where the run is written down."""
        ...

    def step(
        self, energy: Energy, state: HamiltonianState, number: int, *, generator: torch.Generator
    ) -> tuple[HamiltonianState, Mapping[str, Float[Tensor, " m"]]]:
        """One step of all chains."""
        ...


@dataclass(frozen=True)
class _Bound:
    """A sampler tied to its energy: a kernel."""

    sampler: FullBatchSampler
    energy: Energy

    def step(
        self, state: HamiltonianState, number: int, *, generator: torch.Generator
    ) -> tuple[HamiltonianState, Mapping[str, Float[Tensor, " m"]]]:
        """One step of all chains."""
        return self.sampler.step(self.energy, state, number, generator=generator)


def sample(
    sampler: FullBatchSampler,
    problem: Problem,
    *,
    start: Weights | None,
    generator: torch.Generator,
    progress: Progress | None,
) -> Samples:
    """Runs a sampler's chains and reports how they went.

    Batch-norm statistics stay those of the first weights, and dropout is off: the energy is that of
    the network in evaluation mode.
    """
    problem, learnt = settle(problem, generator)
    seeds = member_seeds(sampler.length.chains, generator)
    chains = starting_points(problem, start, seeds)
    target = FullBatch.of(problem, chains)
    positions, buffers = (part.detach().clone() for part in target.target.split(chains))

    def energy(at: Float[Tensor, "m p"]) -> Evaluated:
        return target(at, buffers)

    first = energy(positions)
    require_finite(first.energy, first.gradient, where="at the first weights")
    acceptance = single_step_acceptance(
        energy, positions, first.energy, first.gradient, generator=generator
    )
    begun = sampler.adaptation.begin(positions, acceptance)
    state = HamiltonianState(positions, buffers, first.energy, first.gradient, begun)
    facts = {"kind": "chains", "method": repr(sampler), "parameters": positions.shape[1]}
    history = run(
        _Bound(sampler, energy),
        state,
        sampler.length,
        generator=generator,
        facts=facts,
        checkpoint=sampler.checkpoint,
        progress=progress,
    )
    return _finish(sampler, target, history, learnt)


def _finish(
    sampler: FullBatchSampler,
    target: FullBatch,
    history: History[HamiltonianState],
    learnt: Likelihood | None,
) -> Samples:
    size = sampler.adaptation.size(history.state.adaptation, sampler.length.steps)
    acceptance = float(history.records["acceptance"].mean())
    if acceptance < 1e-3:
        raise CosetError(
            f"got chains that refuse every step: a mean acceptance of {acceptance:.2g} "
            f"with a step size of {size:.3g}",
            "needed steps that are accepted",
            "leave step_size=None with a longer warm-up, or give a smaller one",
        )
    report = report_of_chains(target.target, history, {"step_size": size}, learnt)
    stack = target.target.join(
        history.positions.transpose(0, 1).flatten(0, 1),
        history.buffers.transpose(0, 1).flatten(0, 1),
    )
    return Samples(stack, report=report)
