"""Samplers against blackjax and posteriors: MLP 784-50-10, 1,000 examples, cross-entropy.

Leapfrog steps are timed as HMC runs them, 32 in a row; effective draws are those of predictions on
16 inputs after each library's own adaptation.  Contestants that are not installed are left out.

    python benchmarks/samplers.py [leapfrog] [effective] [sghmc]
"""

import sys
import time
import warnings

import numpy
import torch
from timing import chosen, medians, print_line
from torch import nn

from coset import HMC, SGHMC
from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.inference.diagnostics import effective_sample_size
from coset.inference.sampling.hamiltonian import Point, leapfrog
from coset.inference.sampling.stochastic import Step, StochasticState
from coset.inference.sampling.targets import FullBatch, MiniBatch
from coset.inference.training.members import starting_points
from coset.posterior.predict import apply_members
from coset.weights import functionalise

ROWS, HIDDEN, STEPS, SIZE = 1000, 50, 32, 1e-4


def problem_of() -> Problem:
    torch.manual_seed(0)
    inputs = torch.rand(ROWS, 784)
    targets = (inputs[:, :10] + 0.3 * torch.randn(ROWS, 10)).argmax(1)
    module = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    data = as_batches((inputs, targets))
    return Problem(functionalise(module), Categorical(), GaussianPrior(1.0), data)


def ours_leapfrog(problem: Problem, chains: int):
    stack = starting_points(problem, None, list(range(chains)))
    target = FullBatch.of(problem, stack)
    positions, buffers = target.target.split(stack)

    def energy(at):
        return target(at, buffers)

    first, mass = energy(positions), positions.new_ones(positions.shape[1])
    momenta = torch.randn(positions.shape)
    begin = Point(positions, momenta, first.energy, first.gradient)
    return lambda: leapfrog(energy, begin, SIZE, mass, STEPS)


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


def time_leapfrogs() -> None:
    problem = problem_of()
    for chains in (1, 4):
        contestants = {"ours": ours_leapfrog(problem, chains)}
        if installed("blackjax"):
            contestants["blackjax"] = blackjax_leapfrog(problem, chains)
        taken = medians(contestants, repeats=7)
        each = {name: seconds / STEPS / chains for name, seconds in taken.items()}
        for name, seconds in each.items():
            print(f"{name}: {1000 * seconds:.2f} ms a leapfrog step and chain, {chains} at once")
        if "blackjax" in each:
            label = f"leapfrog, {chains} chain{'s' * (chains > 1)}, against blackjax"
            print_line(label, each["ours"], each["blackjax"], wanted=1.0)


def effective_of(problem: Problem, flat: torch.Tensor) -> float:
    """Effective draws of a typical prediction, from ``(draws, chains, p)``, summed over chains.

    Chain by chain, because one chain cannot see what several would: that modes differ.
    """
    stack = problem.network.layout.unflatten(flat.flatten(0, 1))
    outputs = apply_members(problem.network, stack, problem.train.inputs[:16]).softmax(-1)
    values = outputs.flatten(1).unflatten(0, flat.shape[:2])
    chains = values.split(1, dim=1)
    return sum(float(effective_sample_size(chain).median()) for chain in chains)


def blackjax_draws(problem: Problem, warmup: int, draws: int):
    """One chain of blackjax's HMC with its window adaptation."""
    import blackjax
    import jax

    log_density = log_density_of(problem)
    start = {key: value[0] for key, value in jax_start(problem, 1).items()}

    @jax.jit
    def run(key):
        warm, sampling = jax.random.split(key)
        adapted = blackjax.window_adaptation(blackjax.hmc, log_density, num_integration_steps=STEPS)
        (state, parameters), _ = adapted.run(warm, start, num_steps=warmup)
        kernel = blackjax.hmc(log_density, **parameters)

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(sampling, draws))[1]

    compiled = run.lower(jax.random.key(0)).compile()
    begin = time.perf_counter()
    found = jax.block_until_ready(compiled(jax.random.key(0)))
    seconds = time.perf_counter() - begin
    flat = [numpy.array(found[key]).reshape(draws, -1) for key in "abcd"]
    return torch.from_numpy(numpy.concatenate(flat, 1)).unsqueeze(1), seconds


def time_effective_draws(warmup: int = 100, draws: int = 100) -> None:
    problem = problem_of()
    begin = time.perf_counter()
    sampler = HMC(warmup=warmup, draws=draws, chains=4, max_steps=STEPS)
    posterior = sampler.fit(problem, generator=torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - begin
    flat = problem.network.layout.flatten(posterior.stack).unflatten(0, (4, -1)).transpose(0, 1)
    ours = seconds / effective_of(problem, flat)
    print(f"ours: {ours:.2f} s an effective draw, warm-up included")
    if installed("blackjax"):
        drawn, seconds = blackjax_draws(problem, warmup, draws)
        other = seconds / effective_of(problem, drawn)
        print(f"blackjax: {other:.2f} s an effective draw, warm-up included")
        print_line("an effective draw, against blackjax", ours, other, wanted=2.0)


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

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in chosen(list(CASES), sys.argv[1:]):
        CASES[name]()
