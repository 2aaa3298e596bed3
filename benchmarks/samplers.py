"""Samplers against blackjax, numpyro, pyro and posteriors: MLP 784-50-10, 1,000 digits of MNIST.

``COSET_DATA`` names a folder with MNIST; with ``--noise`` the inputs are uniform random numbers and
the targets follow from ten of them, so that no axis of the inputs is empty.

Leapfrog steps are timed as HMC runs them, 32 in a row, in single precision, for one chain and for
four at once.  All but pyro also draw the momenta and compare the energies of both ends, as a step
of HMC does.  Effective draws are those of four chains after each library's own adaptation, at most
32 leapfrog steps a draw: of the log-posterior and of the predictions on 16 inputs, by one estimator
for all; seconds and effective draws are summed over three seeds (pyro, which is slow: one).
Contestants that are not installed are left out.

The whole process is tied to one core (or to as many as ``--cores`` says, torch with as many
threads): jax 0.10 does not heed the flags by which XLA should use one thread, and two threads of
its pool (see their processor time in ``/proc/self/task``) against one of torch are no comparison.
Two cores are for an idle machine: on a busy one torch's threads wait for each other without end.

    python benchmarks/samplers.py [leapfrog] [effective] [sghmc] [--noise] [--cores 2]
"""

import os
import sys
import time

import torch
from sampler_peers import DRAWS, LEAPFROGS, SIZE, STEPS, installed, posteriors_sghmc
from timing import chosen, medians, print_line
from torch import nn

from coset import HMC, SGHMC
from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.data import mnist
from coset.inference.beginnings import starting_points
from coset.inference.diagnostics import effective_sample_size
from coset.inference.sampling.axes import along_axes
from coset.inference.sampling.hamiltonian import Energy, Point, fresh_momenta, leapfrog
from coset.inference.sampling.stochastic import Step, StochasticState
from coset.inference.sampling.targets import FullBatch, MiniBatch
from coset.posterior.predict import apply_members
from coset.weights import functionalise

ROWS, HIDDEN = 1000, 50
NOISE = "--noise"


def problem_of() -> Problem:
    torch.manual_seed(0)
    if NOISE in sys.argv:
        inputs = torch.rand(ROWS, 784)
        targets = (inputs[:, :10] + 0.3 * torch.randn(ROWS, 10)).argmax(1)
    else:
        digits = mnist()
        inputs, targets = digits.train_inputs[:ROWS].flatten(1), digits.train_targets[:ROWS]
    module = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    data = as_batches((inputs, targets))
    return Problem(functionalise(module), Categorical(), GaussianPrior(1.0), data)


def ours_leapfrog(problem: Problem, chains: int):
    stack = starting_points(problem, None, list(range(chains)))
    turned, axes = along_axes(problem)
    target = FullBatch.of(turned, stack)
    positions, buffers = target.target.split(stack)
    positions = positions if axes is None else axes.turned(positions)
    energy = Energy.of(target, buffers)
    first, mass = energy(positions), positions.new_ones(positions.shape[1])
    generator = torch.Generator().manual_seed(0)

    def run() -> torch.Tensor:
        momenta = fresh_momenta(positions, mass, generator=generator)
        begin = Point(positions, momenta, first.energy, first.gradient)
        end = leapfrog(energy, begin, SIZE, mass, STEPS)
        return end.hamiltonian(mass) - begin.hamiltonian(mass)

    return run


def time_leapfrogs() -> None:
    problem = problem_of()
    others = {name: make for name, make in LEAPFROGS.items() if installed(name)}
    for chains in (1, 4):
        contestants = {"ours": ours_leapfrog(problem, chains)}
        contestants |= {name: make(problem, chains) for name, make in others.items()}
        taken = medians(contestants, repeats=15)
        each = {name: seconds / STEPS / chains for name, seconds in taken.items()}
        for name, seconds in each.items():
            print(f"{name}: {1000 * seconds:.2f} ms a leapfrog step and chain, {chains} at once")
        for name in others:
            label = f"leapfrog, {chains} chain{'s' * (chains > 1)}, against {name}"
            print_line(label, each["ours"], each[name], wanted=1.0)


def effective_of(problem: Problem, flat: torch.Tensor) -> dict[str, float]:
    """Effective draws from ``(draws, chains, p)``, chain by chain and summed.

    Chain by chain, because one chain cannot see what several would: that modes differ.
    """
    stack = problem.network.layout.unflatten(flat.flatten(0, 1))
    outputs = apply_members(problem.network, stack, problem.train.inputs[:16]).softmax(-1)
    predictions = outputs.flatten(1).unflatten(0, flat.shape[:2])
    parts = [
        {name: part.unsqueeze(0) for name, part in problem.network.layout.unflatten(row).items()}
        for row in flat.flatten(0, 1)
    ]
    energy = FullBatch.of(problem, parts[0])
    energies = [energy(*energy.target.split(part)).energy for part in parts]
    levels = torch.cat(energies).view(*flat.shape[:2], 1)
    each = sum(effective_sample_size(chain) for chain in predictions.split(1, dim=1))
    return {
        "a typical prediction": float(each.median()),
        "the slowest prediction": float(each.min()),
        "the log-posterior": sum(float(effective_sample_size(c)) for c in levels.split(1, dim=1)),
    }


def ours_draws(problem: Problem, warmup: int, draws: int, seed: int):
    sampler = HMC(warmup=warmup, draws=draws, chains=4, max_steps=STEPS)
    begin = time.perf_counter()
    posterior = sampler.fit(problem, generator=torch.Generator().manual_seed(seed))
    seconds = time.perf_counter() - begin
    flat = problem.network.layout.flatten(posterior.stack).unflatten(0, (4, -1)).transpose(0, 1)
    return flat, seconds


SEEDS = {"pyro": 1}
"""How many seeds each is run with, if not three."""


def time_effective_draws(warmup: int = 100, draws: int = 100) -> None:
    problem = problem_of()
    costs: dict[str, dict[str, float]] = {}
    makers = {"ours": ours_draws} | {n: make for n, make in DRAWS.items() if installed(n)}
    for name, make in makers.items():
        total, counts = 0.0, dict[str, float]()
        for seed in range(SEEDS.get(name, 3)):
            flat, seconds = make(problem, warmup, draws, seed)
            found = effective_of(problem, flat)
            told = ", ".join(f"{count:.0f} of {what}" for what, count in found.items())
            print(f"{name}, seed {seed}: {seconds:.0f} s, warm-up included; effective: {told}")
            sys.stdout.flush()
            total += seconds
            counts = {what: counts.get(what, 0.0) + count for what, count in found.items()}
        costs[name] = {what: total / count for what, count in counts.items()}
    for name in makers:
        for what, cost in costs[name].items():
            if name != "ours":
                wanted = 2.0 if what == "a typical prediction" else None
                print_line(f"{what}, against {name}", costs["ours"][what], cost, wanted=wanted)


def time_sghmc(steps: int = 100, batch: int = 100) -> None:
    problem = problem_of()
    stack = starting_points(problem, None, [0])
    batches = MiniBatch.of(problem, stack, batch, 0)
    positions, buffers = batches.target.split(stack)
    sampler, sizes = SGHMC(), Step(1e-4, 1.0)
    begin = StochasticState(positions, buffers, torch.zeros_like(positions), torch.zeros(()))

    def ours() -> None:
        state, generator = begin, torch.Generator().manual_seed(0)
        for number in range(steps):
            found = batches(number, state.positions, state.buffers)
            noise = torch.randn(positions.shape, generator=generator)
            state = sampler.move(state, found.gradient, noise, sizes)

    contestants = {"ours": ours}
    if installed("posteriors"):
        contestants["posteriors"] = posteriors_sghmc(problem, steps, batch)
    taken = medians(contestants)
    for name, seconds in taken.items():
        print(f"{name}: {1000 * seconds / steps:.2f} ms an SGHMC step")
    if "posteriors" in taken:
        print_line(
            "SGHMC steps, against posteriors", taken["ours"], taken["posteriors"], wanted=1.0
        )


CASES = {"leapfrog": time_leapfrogs, "effective": time_effective_draws, "sghmc": time_sghmc}


def tie(cores: int) -> None:
    """Lets the process use so many cores, whatever pools its libraries open."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    torch.set_num_threads(cores)


if __name__ == "__main__":
    words = sys.argv[1:]
    tie(int(words[words.index("--cores") + 1]) if "--cores" in words else 1)  # before jax is there
    for name in chosen(list(CASES), [word for word in words if word in CASES]):
        CASES[name]()
