"""HMC and NUTS against blackjax: logistic regression and a small network.

Means of predictions and of their squares from two independent samplers differ by Monte Carlo error:
with ``E`` effective draws each, by less than five standard errors ``√(v (1/E₁ + 1/E₂))``.  A false
alarm has probability 6e-7 a number; there are at most 64 here, and the seeds are fixed.
"""

import warnings

import numpy
import pytest
import torch
from torch import nn

from coset import HMC, NUTS
from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.inference.diagnostics import effective_sample_size
from coset.posterior.predict import apply_members
from coset.weights import functionalise

pytest.importorskip("blackjax", reason="blackjax is not installed")

pytestmark = pytest.mark.slow
CHAINS = 4


def problem_of(hidden):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(40, generator=generator, dtype=torch.float64)
    targets = (inputs[:, 0] * inputs[:, 1] + inputs[:, 0] + 0.5 * noise > 0).long()
    layers = [nn.Linear(2, 2)] if not hidden else [nn.Linear(2, hidden), nn.Tanh()]
    module = nn.Sequential(*layers, *([nn.Linear(hidden, 2)] if hidden else [])).double()
    data = as_batches((inputs, targets))
    return Problem(functionalise(module), Categorical(), GaussianPrior(1.0), data)


def from_blackjax(problem, draws, seed=0):
    """Draws of blackjax's NUTS with its own window adaptation, ``(draws, chains, p)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import blackjax
        import jax
        from jax import numpy as jnp

        jax.config.update("jax_enable_x64", True)
        inputs, targets = problem.train.inputs.numpy(), problem.train.targets.numpy()
        layout = problem.network.layout

        def log_density(flat):
            values, place, parts = inputs, 0, []
            for shape in layout.shapes:
                size = int(numpy.prod(shape))
                parts.append(flat[place : place + size].reshape(shape))
                place += size
            for number in range(0, len(parts), 2):
                values = values @ parts[number].T + parts[number + 1]
                if number + 2 < len(parts):
                    values = jnp.tanh(values)
            chosen = jax.nn.log_softmax(values)[jnp.arange(len(targets)), targets]
            return chosen.sum() - 0.5 * (flat**2).sum()

        def chain(key):
            begin, warm, run = jax.random.split(key, 3)
            start = 0.1 * jax.random.normal(begin, (layout.size,))
            adapted = blackjax.window_adaptation(blackjax.nuts, log_density)
            (state, parameters), _ = adapted.run(warm, start, num_steps=500)
            kernel = blackjax.nuts(log_density, **parameters)

            def step(state, key):
                state, _ = kernel.step(key, state)
                return state, state.position

            return jax.lax.scan(step, state, jax.random.split(run, draws))[1]

        keys = jax.random.split(jax.random.key(seed), CHAINS)
        found = jax.jit(jax.vmap(chain))(keys)
        return torch.from_numpy(numpy.array(found)).transpose(0, 1)


def predictions(problem, flat):
    """Probabilities of the first class at eight inputs, ``(draws, chains, 8)``."""
    stack = problem.network.layout.unflatten(flat.flatten(0, 1))
    outputs = apply_members(problem.network, stack, problem.train.inputs[:8])
    return outputs.softmax(-1)[..., 0].unflatten(0, flat.shape[:2])


def assert_same_moments(ours, theirs):
    for one, other in ((ours, theirs), (ours.square(), theirs.square())):
        variance = (one.flatten(0, 1).var(0) + other.flatten(0, 1).var(0)) / 2
        errors = variance / effective_sample_size(one) + variance / effective_sample_size(other)
        difference = one.mean((0, 1)) - other.mean((0, 1))
        assert float((difference.abs() / errors.sqrt()).max()) < 5


@pytest.fixture(scope="module", params=[0, 4], ids=["logistic regression", "small network"])
def both(request):
    problem = problem_of(request.param)
    return problem, predictions(problem, from_blackjax(problem, 1500))


@pytest.mark.parametrize(
    "sampler",
    [HMC(warmup=300, draws=1000, trajectory=2.0), NUTS(warmup=300, draws=700)],
    ids=["HMC", "NUTS"],
)
def test_predictions_have_the_same_moments(both, sampler):
    problem, theirs = both
    posterior = sampler.fit(problem, generator=torch.Generator().manual_seed(1))
    flat = problem.network.layout.flatten(posterior.stack).unflatten(0, (CHAINS, -1))
    ours = predictions(problem, flat.transpose(0, 1))
    assert float(effective_sample_size(ours).min()) > 200
    assert_same_moments(ours, theirs)
