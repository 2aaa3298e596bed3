"""The samplers of blackjax, numpyro, pyro and posteriors on the network of ``samplers.py``.

Each is used as its own documentation has it; the energy is the same, written in jax or in torch.
"""

import time
import warnings

import numpy
import torch

from coset.bayes import Problem
from coset.inference.beginnings import starting_points

STEPS, SIZE = 32, 1e-4
"""Leapfrog steps in a row, and how long each is."""


def installed(package: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            __import__(package)
        except ImportError:
            print(f"{package} is not installed")
            return False
    return True


def log_density_of(problem: Problem):
    import jax
    from jax import numpy as jnp

    inputs = jnp.asarray(problem.train.inputs.numpy())
    targets = jnp.asarray(problem.train.targets.numpy())

    def log_density(weights):
        hidden = jax.nn.relu(inputs @ weights["a"].T + weights["b"])
        logits = jax.nn.log_softmax(hidden @ weights["c"].T + weights["d"])
        squares = sum((value**2).sum() for value in weights.values())
        return logits[jnp.arange(len(targets)), targets].sum() - 0.5 * squares

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


def flat_of(found, draws: int, chains: int) -> torch.Tensor:
    """``(draws, chains, p)`` from arrays that begin with these two axes."""
    parts = [numpy.array(found[key]).reshape(draws, chains, -1) for key in "abcd"]
    return torch.from_numpy(numpy.concatenate(parts, 2))


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


def posteriors_sghmc(problem: Problem, steps: int, batch: int):
    import posteriors

    names = problem.network.layout.names
    start = {name: problem.network.weights[name].clone().requires_grad_() for name in names}

    def log_posterior(weights, rows):
        inputs, targets = rows
        outputs = problem.network.apply(weights, inputs)
        likelihood = problem.likelihood.log_prob(outputs, targets).mean() * problem.train.size
        return likelihood - problem.prior.penalty(weights), outputs

    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=1e-8)
    order = torch.randperm(problem.train.size, generator=torch.Generator().manual_seed(0))
    rows = [problem.train.rows(index) for index in order.split(batch)]

    def run() -> None:
        state = transform.init(start)
        for number in range(steps):
            state, _ = transform.update(state, rows[number % len(rows)])

    return run
