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
import warnings

import numpy
import torch
from timing import chosen, medians, print_line
from torch import nn

from coset import HMC, SGHMC
from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.data import mnist
from coset.inference.diagnostics import effective_sample_size
from coset.inference.sampling.axes import along_axes
from coset.inference.sampling.hamiltonian import Energy, Point, fresh_momenta, leapfrog
from coset.inference.sampling.stochastic import Step, StochasticState
from coset.inference.sampling.targets import FullBatch, MiniBatch
from coset.inference.training.members import starting_points
from coset.posterior.predict import apply_members
from coset.weights import functionalise

ROWS, HIDDEN, STEPS, SIZE = 1000, 50, 32, 1e-4
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
    target, axes = along_axes(FullBatch.of(problem, stack))
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


def log_density_of(problem: Problem):
    import jax
    from jax import numpy as jnp

    inputs = jnp.asarray(problem.train.inputs.numpy())
    targets = jnp.asarray(problem.train.targets.numpy())

    def log_density(weights):
        hidden = jax.nn.relu(inputs @ weights["a"].T + weights["b"])
        logits = jax.nn.log_softmax(hidden @ weights["c"].T + weights["d"])
        squares = sum((value**2).sum() for value in weights.values())
        return logits[jnp.arange(ROWS), targets].sum() - 0.5 * squares

    return log_density


def jax_start(problem: Problem, chains: int):
    from jax import numpy as jnp

    stack = starting_points(problem, None, list(range(chains)))
    return {
        key: jnp.asarray(tensor.numpy()) for key, tensor in zip("abcd", stack.values(), strict=True)
    }


def blackjax_leapfrog(problem: Problem, chains: int):
    import blackjax
    import jax
    from jax import numpy as jnp

    log_density = log_density_of(problem)
    size = sum(shape.numel() for shape in map(torch.Size, problem.network.layout.shapes))
    kernel = blackjax.hmc(
        log_density,
        step_size=SIZE,
        inverse_mass_matrix=jnp.ones(size),
        num_integration_steps=STEPS,
    )
    states = jax.vmap(kernel.init)(jax_start(problem, chains))
    step = jax.jit(jax.vmap(kernel.step))
    keys = jax.random.split(jax.random.key(0), chains)
    return lambda: jax.block_until_ready(step(keys, states)[0].logdensity)


def numpyro_leapfrog(problem: Problem, chains: int):
    import jax
    from numpyro.infer import HMC as NumpyroHMC

    log_density = log_density_of(problem)
    kernel = NumpyroHMC(
        potential_fn=lambda weights: -log_density(weights),
        step_size=SIZE,
        num_steps=STEPS,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    if chains == 1:
        keys, start = jax.random.key(0), first_of(jax_start(problem, 1))
    else:  # a stack of keys makes a stack of chains
        keys, start = jax.random.split(jax.random.key(0), chains), jax_start(problem, chains)
    state = kernel.init(keys, 0, start, (), {})
    step = jax.jit(lambda state: kernel.sample(state, (), {}))
    return lambda: jax.block_until_ready(step(state).potential_energy)


def first_of(stack):
    return {key: value[0] for key, value in stack.items()}


def pyro_potential(problem: Problem):
    """The energy of one network as pyro wants it; chains run one after the other."""
    inputs, targets = problem.train.inputs, problem.train.targets

    def potential(weights):
        hidden = torch.relu(torch.nn.functional.linear(inputs, weights["a"], weights["b"]))
        logits = torch.nn.functional.linear(hidden, weights["c"], weights["d"])
        squares = sum((value**2).sum() for value in weights.values())
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        return loss + 0.5 * squares

    start = starting_points(problem, None, [0])
    return potential, {key: w[0].clone() for key, w in zip("abcd", start.values(), strict=True)}


def pyro_leapfrog(problem: Problem, chains: int):
    from pyro.ops.integrator import velocity_verlet

    potential, start = pyro_potential(problem)
    momenta = {key: torch.randn(w.shape) for key, w in start.items()}

    def run() -> None:
        for _ in range(chains):
            velocity_verlet(start, momenta, potential, lambda r: r, SIZE, STEPS)

    return run


LEAPFROGS = {
    "blackjax": blackjax_leapfrog,
    "numpyro": numpyro_leapfrog,
    "pyro": pyro_leapfrog,
}


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


def flat_of(found, draws: int, chains: int) -> torch.Tensor:
    """``(draws, chains, p)`` from arrays that begin with these two axes."""
    parts = [numpy.array(found[key]).reshape(draws, chains, -1) for key in "abcd"]
    return torch.from_numpy(numpy.concatenate(parts, 2))


def ours_draws(problem: Problem, warmup: int, draws: int, seed: int):
    sampler = HMC(warmup=warmup, draws=draws, chains=4, max_steps=STEPS)
    begin = time.perf_counter()
    posterior = sampler.fit(problem, generator=torch.Generator().manual_seed(seed))
    seconds = time.perf_counter() - begin
    flat = problem.network.layout.flatten(posterior.stack).unflatten(0, (4, -1)).transpose(0, 1)
    return flat, seconds


def blackjax_draws(problem: Problem, warmup: int, draws: int, seed: int):
    """Four chains of blackjax's HMC, each with its window adaptation."""
    import blackjax
    import jax

    log_density = log_density_of(problem)

    def run(key, start):
        warm, sampling = jax.random.split(key)
        adapted = blackjax.window_adaptation(blackjax.hmc, log_density, num_integration_steps=STEPS)
        (state, parameters), _ = adapted.run(warm, start, num_steps=warmup)
        kernel = blackjax.hmc(log_density, **parameters)

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(sampling, draws))[1]

    keys, starts = jax.random.split(jax.random.key(seed), 4), jax_start(problem, 4)
    compiled = jax.jit(jax.vmap(run, out_axes=1)).lower(keys, starts).compile()
    begin = time.perf_counter()
    found = jax.block_until_ready(compiled(keys, starts))
    return flat_of(found, draws, 4), time.perf_counter() - begin


def numpyro_draws(problem: Problem, warmup: int, draws: int, seed: int):
    """Four vectorised chains of numpyro's NUTS, trees of 31 steps at most, compilation included."""
    import jax
    from numpyro.infer import MCMC
    from numpyro.infer import NUTS as NumpyroNUTS

    log_density = log_density_of(problem)
    depth = STEPS.bit_length() - 1
    kernel = NumpyroNUTS(potential_fn=lambda weights: -log_density(weights), max_tree_depth=depth)
    settings = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
    runner = MCMC(kernel, num_warmup=warmup, num_samples=draws, jit_model_args=True, **settings)
    begin = time.perf_counter()
    runner.run(jax.random.key(seed), init_params=jax_start(problem, 4))
    found = runner.get_samples(group_by_chain=True)
    jax.block_until_ready(found)
    seconds = time.perf_counter() - begin
    swapped = {key: numpy.array(value).swapaxes(0, 1) for key, value in found.items()}
    return flat_of(swapped, draws, 4), seconds


def pyro_draws(problem: Problem, warmup: int, draws: int, seed: int):
    """One chain of pyro's NUTS, trees of 31 steps at most; a quarter of the work of four."""
    from pyro.infer.mcmc import MCMC as PyroMCMC
    from pyro.infer.mcmc import NUTS as PyroNUTS

    potential, start = pyro_potential(problem)
    torch.manual_seed(seed)
    kernel = PyroNUTS(potential_fn=potential, max_tree_depth=STEPS.bit_length() - 1)
    runner = PyroMCMC(
        kernel, draws, warmup_steps=warmup, initial_params=start, disable_progbar=True
    )
    begin = time.perf_counter()
    runner.run()
    seconds = time.perf_counter() - begin
    return flat_of(runner.get_samples(), draws, 1), seconds


DRAWS = {"blackjax": blackjax_draws, "numpyro": numpyro_draws, "pyro": pyro_draws}
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


def posteriors_sghmc(problem: Problem, steps: int, batch: int):
    import posteriors

    names = problem.network.layout.names
    start = {name: problem.network.weights[name].clone().requires_grad_() for name in names}

    def log_posterior(weights, rows):
        inputs, targets = rows
        outputs = problem.network.apply(weights, inputs)
        likelihood = problem.likelihood.log_prob(outputs, targets).mean() * ROWS
        return likelihood - problem.prior.penalty(weights), outputs

    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=1e-8)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    rows = [problem.train.rows(index) for index in order.split(batch)]

    def run() -> None:
        state = transform.init(start)
        for number in range(steps):
            state, _ = transform.update(state, rows[number % len(rows)])

    return run


def installed(package: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            __import__(package)
        except ImportError:
            print(f"{package} is not installed")
            return False
    return True


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
