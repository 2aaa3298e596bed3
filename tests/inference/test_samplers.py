"""Details of the samplers: one step by hand, settings, what is refused and what is said."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from coset import HMC, NUTS, SGHMC, SGLD, CosetError, Cyclical
from coset.bayes import Categorical, GaussianNoise, GaussianPrior, Problem, as_batches
from coset.inference.beginnings import starting_points
from coset.inference.sampling import targets
from coset.inference.sampling.full_batch import warmup_of
from coset.inference.sampling.hamiltonian import Energy, HamiltonianState, Point, leapfrog
from coset.inference.sampling.step_sizes import largest_curvature
from coset.inference.sampling.stochastic import Step, StochasticState
from coset.inference.sampling.targets import Evaluated, FullBatch, MiniBatch
from coset.weights import functionalise
from problems import deviations, linear_gaussian, logistic


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch_normalised():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def classification(module, rows=30, dtype=torch.float64):
    inputs = torch.randn(rows, 3, generator=seeded(), dtype=dtype)
    data = as_batches((inputs, (inputs[:, 0] > 0).long()))
    return Problem(functionalise(module.to(dtype)), Categorical(), GaussianPrior(2.0), data)


@pytest.mark.parametrize("chains", [1, 3])
def test_energies_and_gradients_are_those_of_the_joint(chains):
    problem = classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    stack = starting_points(problem, None, list(range(chains)))
    target = FullBatch.of(problem, stack)
    found = target(*target.target.split(stack))
    names = problem.network.layout.names
    for chain in range(chains):
        leaves = {name: stack[name][chain].clone().requires_grad_() for name in names}
        batch = (problem.train.inputs, problem.train.targets)
        energy = -problem.log_likelihood(leaves, batch) + problem.prior.penalty(leaves)
        gradients = torch.autograd.grad(energy, list(leaves.values()))
        torch.testing.assert_close(found.energy[chain], energy.detach())
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.testing.assert_close(found.gradient[chain], flat)


def test_chunks_of_the_data_add_up():
    problem = classification(nn.Linear(3, 2))
    stack = starting_points(problem, None, [0, 1])
    whole = FullBatch.of(problem, stack)
    parts = FullBatch.of(problem, stack, rows=7)
    assert [len(targets) for _, targets in parts.batches] == [7, 7, 7, 7, 2]
    one, other = whole(*whole.target.split(stack)), parts(*whole.target.split(stack))
    torch.testing.assert_close(one.energy, other.energy)
    torch.testing.assert_close(one.gradient, other.gradient)


def test_batches_of_an_epoch_average_to_the_whole():
    problem = classification(nn.Linear(3, 2), rows=32)
    stack = starting_points(problem, None, [0, 1])
    exact, batches = FullBatch.of(problem, stack), MiniBatch.of(problem, stack, 8, seed=3)
    split = exact.target.split(stack)
    parts = [batches(step, *split) for step in range(4, 8)]  # the second epoch
    mean = torch.stack([part.gradient for part in parts]).mean(0)
    torch.testing.assert_close(mean, exact(*split).gradient)
    rows = torch.cat([batches.index(step, 2) for step in range(4, 8)], 1)
    assert torch.equal(rows.sort(1).values, torch.arange(32).expand(2, -1))
    assert not torch.equal(batches.index(4, 2)[0], batches.index(4, 2)[1])


def test_batch_norm_moves_along_and_dropout_is_off():
    problem = classification(batch_normalised())
    stack = starting_points(problem, None, [0, 1])
    batches = MiniBatch.of(problem, stack, 10, seed=0)
    split = batches.target.split(stack)
    first, again = batches(0, *split), batches(0, *split)
    assert torch.equal(first.gradient, again.gradient)
    assert not torch.equal(first.buffers, split[1])
    exact = FullBatch.of(problem, stack)(*split)
    assert torch.equal(exact.buffers, split[1])


def test_networks_that_look_at_their_numbers_are_sampled_all_the_same():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, inputs):
            outputs = self.inner(inputs)
            return outputs if float(outputs.detach().sum()) != 0.5 else -outputs

    problem = classification(Looks())
    plain = Problem(
        functionalise(nn.Linear(3, 2).double()), problem.likelihood, problem.prior, problem.train
    )
    found, wanted = (
        FullBatch.of(each, starting_points(each, None, [0, 1])) for each in (problem, plain)
    )
    assert not found.target.together
    assert wanted.target.together
    positions = torch.randn(2, 8, generator=seeded(), dtype=torch.float64)
    one, other = found(positions, positions[:, :0]), wanted(positions, positions[:, :0])
    torch.testing.assert_close(one.energy, other.energy)
    torch.testing.assert_close(one.gradient, other.gradient)
    posterior = HMC(warmup=20, draws=5, chains=2, max_steps=3).fit(problem, generator=seeded())
    assert posterior.report.diagnostics["acceptance"] > 0


@dataclass(frozen=True)
class AsksItsTargets(Categorical):
    """A user's likelihood that looks at numbers, which vmap could not follow."""

    def log_prob(self, outputs, targets):
        assert float(outputs.detach().sum()) < math.inf
        return Categorical().log_prob(outputs, targets)


def test_likelihoods_that_look_at_their_numbers_are_sampled_all_the_same():
    plain = classification(nn.Linear(3, 2))
    stack = starting_points(plain, None, [0, 1])
    asking = plain.with_likelihood(AsksItsTargets())
    found, wanted = (
        full(*full.target.split(stack))
        for full in (FullBatch.of(each, stack) for each in (asking, plain))
    )
    torch.testing.assert_close(found.energy, wanted.energy)
    torch.testing.assert_close(found.gradient, wanted.gradient)


def test_chunks_keep_to_the_memory_of_a_pass(monkeypatch):
    problem = classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    stack = starting_points(problem, None, [0, 1])
    each = 2 * (3 + 4) * 8  # inputs and what tanh returns, in double, with their gradients
    monkeypatch.setattr(targets, "_MEMORY", 2 * 11 * each + 1)
    sizes = [len(labels) for _, labels in FullBatch.of(problem, stack).batches]
    assert sizes == [11, 11, 8]


def test_leapfrog_goes_back_the_way_it_came(double):
    curvature = torch.tensor([1.0, 4.0])

    energy = Energy(
        lambda w: Evaluated((curvature * w.square()).sum(1) / 2, curvature * w, w[:, :0])
    )
    mass = torch.tensor([1.0, 0.5])
    begin = torch.tensor([[1.0, -0.5]])
    first = energy(begin)
    point = Point(begin, torch.tensor([[0.3, 0.7]]), first.energy, first.gradient)
    there = leapfrog(energy, point, 0.1, mass, 25)
    back = leapfrog(energy, replace(there, momenta=-there.momenta), 0.1, mass, 25)
    torch.testing.assert_close(back.positions, begin)
    torch.testing.assert_close(-back.momenta, point.momenta)
    error = there.hamiltonian(mass) - point.hamiltonian(mass)
    assert abs(float(error)) < 0.01


def test_the_largest_curvature_is_the_largest_eigenvalue():
    problem, _, covariance = linear_gaussian()
    stack = starting_points(problem, None, [0])
    target = FullBatch.of(problem, stack)
    found = largest_curvature(target, *target.target.split(stack), generator=seeded())
    wanted = float(torch.linalg.eigvalsh(torch.linalg.inv(covariance))[-1])
    assert found == pytest.approx(wanted, rel=0.02)


def states(curvature, sampler, step, steps=20_000, chains=50):
    """Positions of a sampler on ``U = ½ λ w²``, with exact gradients."""
    state = StochasticState(
        torch.zeros(chains, 1, dtype=torch.float64),
        torch.zeros(chains, 0),
        torch.zeros(chains, 1, dtype=torch.float64),
        torch.tensor(curvature),
    )
    kept, generator = [], seeded()
    for number in range(steps):
        noise = torch.randn(chains, 1, generator=generator, dtype=torch.float64)
        state = sampler.move(state, curvature * state.positions, noise, step)
        if number > 100 and number % 20 == 0:
            kept.append(state.positions)
    return torch.cat(kept)


def test_sghmc_has_the_exact_variance_whatever_the_step():
    # h²λ = 1: Euler's scheme gives 1.42 times the variance.  24,700 nearly independent draws:
    # standard error of the variance 0.9 %, five of them allowed
    found = states(4.0, SGHMC(friction=0.3), Step(0.5, 1.0), steps=10_000)
    assert float(found.var()) == pytest.approx(0.25, rel=0.05)
    cold = states(4.0, SGHMC(friction=0.3), Step(0.5, 0.5), steps=10_000)
    assert float(cold.var()) == pytest.approx(0.125, rel=0.05)


def test_sgld_has_the_variance_of_its_docstring():
    # ε λ = 0.8: 1 / (λ (1 - ελ/4)) = 0.3125
    found = states(4.0, SGLD(), Step(0.2, 1.0), steps=10_000)
    assert float(found.var()) == pytest.approx(0.3125, rel=0.05)


def test_without_temperature_sgld_is_gradient_descent():
    problem, mean, _ = linear_gaussian()
    sampler = SGLD(temperature=0.0, burn_in=300, draws=1, thinning=1, chains=1)
    posterior = sampler.fit(problem, generator=seeded())
    flat = problem.network.layout.flatten(posterior.stack)[0]
    torch.testing.assert_close(flat, mean, atol=1e-3, rtol=0)


def test_cycles_explore_without_noise_and_keep_what_comes_after():
    cycles = Cyclical(cycles=3, length=20, exploration=0.5, draws=5)
    kept = [step for step in range(cycles.steps) if cycles.keeps(step)]
    assert kept == [20 * cycle + step for cycle in range(3) for step in (11, 13, 15, 17, 19)]
    assert [cycles.noisy(step) for step in (0, 9, 10, 19, 20)] == [False, False, True, True, False]
    assert cycles.factor(0) == cycles.factor(20) == 1.0
    posterior = SGHMC(schedule=cycles, chains=2).fit(logistic(), generator=seeded())
    assert all(len(tensor) == 30 for tensor in posterior.stack.values())


def test_a_step_size_that_refuses_everything_is_named():
    problem, _, _ = linear_gaussian()
    with pytest.raises(CosetError, match=r"refuse every step.*step size of 50"):
        HMC(step_size=50.0, warmup=5, draws=10).fit(problem, generator=seeded())
    with pytest.raises(CosetError, match="refuse every step"):
        NUTS(step_size=50.0, warmup=5, draws=10).fit(problem, generator=seeded())


def test_numbers_that_are_not_finite_are_named():
    problem, _, _ = linear_gaussian()
    start = {name: tensor.clone() for name, tensor in problem.network.weights.items()}
    start["bias"][0] = math.inf
    for sampler in (HMC(), NUTS(), SGHMC(step_size=0.1), SGLD(step_size=0.1)):
        with pytest.raises(CosetError, match="not finite"):
            sampler.fit(problem, start=start, generator=seeded())
    with pytest.raises(CosetError, match="not finite at step"):
        SGLD(step_size=1e9, draws=200).fit(problem, generator=seeded())


@pytest.mark.parametrize("sampler", [HMC(warmup=0, step_size=0.5), NUTS(warmup=0, step_size=0.5)])
def test_trajectories_into_a_wall_are_divergent_and_stay_where_they_began(sampler):
    def walled(w):  # a Gaussian with a wall at one
        inside = (w < 1).all(1)
        value = torch.where(inside, w.square().sum(1) / 2, torch.inf)
        return Evaluated(value, w, w[:, :0])

    energy = Energy(walled)
    positions = torch.zeros(400, 1, dtype=torch.float64)
    first = energy(positions)
    groups = torch.zeros(1, dtype=torch.long)
    adaptation = warmup_of(sampler).begin(positions, first.gradient, groups, lambda step, mass: 1.0)
    state = HamiltonianState(positions, first.buffers, first.energy, first.gradient, adaptation)
    divergent = 0.0
    for number in range(10):
        state, record = sampler.step(energy, state, number, generator=seeded(number))
        assert bool((state.positions < 1).all())
        divergent += float(record["divergent"].sum())
    assert divergent > 100


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (HMC, {"draws": 0}),
        (HMC, {"chains": 0}),
        (HMC, {"warmup": 5}),
        (HMC, {"step_size": -1.0}),
        (HMC, {"target_acceptance": 1.0}),
        (HMC, {"trajectory": 0.0}),
        (NUTS, {"max_depth": 0}),
        (NUTS, {"thinning": 0}),
        (SGHMC, {"friction": 0.0}),
        (SGHMC, {"temperature": -1.0}),
        (SGLD, {"step_size": 0.0}),
        (SGLD, {"batch_size": 0}),
        (Cyclical, {"exploration": 1.0}),
        (Cyclical, {"draws": 1000}),
    ],
)
def test_bad_settings_are_refused(method, settings):
    with pytest.raises(CosetError):
        method(**settings)


@pytest.mark.parametrize("method", [SGHMC, SGLD])
def test_a_bad_burn_in_is_called_so(method):
    with pytest.raises(CosetError, match="burn_in=-1"):
        method(burn_in=-1)


def test_single_precision_is_kept():
    problem = classification(nn.Linear(3, 2), dtype=torch.float32)
    for sampler in (HMC(warmup=20, draws=2), SGHMC(burn_in=5, draws=2, thinning=1)):
        posterior = sampler.fit(problem, generator=seeded())
        assert all(tensor.dtype == torch.float32 for tensor in posterior.stack.values())


def test_noise_of_unknown_size_is_learnt_first():
    problem, _, _ = linear_gaussian(rows=200, noise=0.5)
    unknown = problem.with_likelihood(GaussianNoise())
    posterior = SGHMC(burn_in=100, draws=50, thinning=2).fit(unknown, generator=seeded())
    assert posterior.report.likelihood.std == pytest.approx(0.5, rel=0.2)


def test_errors_of_a_known_gaussian_are_zero():
    _, mean, covariance = linear_gaussian()
    root = torch.linalg.cholesky(covariance)
    exact = mean + torch.randn(100_000, 3, generator=seeded(), dtype=torch.float64) @ root.T
    off_mean, off_covariance = deviations(exact, mean, covariance)
    assert off_mean < 0.02
    assert off_covariance < 0.02
