import copy

import pytest
import torch
from torch import nn
from training_problems import assert_same, classification, convolutional, perceptron

from coset.bayes import GaussianNoise, GaussianPrior, Problem, as_batches
from coset.errors import CosetError
from coset.inference import SGD, Adam, Constant, DeepEnsemble, MaximumAPosteriori, train_stack
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.training.parallel import train_stacks
from coset.inference.training.planning import Plan
from coset.inference.training.recipe import Recipe
from coset.posterior import Samples
from coset.weights import functionalise, stack, unstack

BASE = MaximumAPosteriori(epochs=2, batch_size=8)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("build", "shape"), [(lambda: perceptron(0.3), (4,)), (convolutional, (1, 6, 6))]
)
def test_members_do_not_depend_on_how_they_are_stacked(build, shape):
    problem = classification(build(), shape)
    seeds = member_seeds(5, seeded(3))
    starts = starting_points(problem, None, seeds)
    expected = train_stack(problem, starts, BASE.recipe, seeds).weights
    for plan in (Plan(5, 1), Plan(2, 1), Plan(1, 1), Plan(3, 2), Plan(1, 2)):
        got = train_stacks(problem, starts, BASE.recipe, seeds, plan).weights
        assert_same(got, expected)


@pytest.mark.usefixtures("double")
def test_the_first_member_is_the_estimate_with_the_same_seed():
    problem = classification(perceptron())
    alone = MaximumAPosteriori(epochs=2, batch_size=8).fit(problem, generator=seeded(5))
    ensemble = DeepEnsemble(members=3, base=BASE).fit(problem, generator=seeded(5))
    assert isinstance(ensemble, Samples)
    assert_same(unstack(ensemble.stack)[0], alone.weights)


@pytest.mark.parametrize("build", [perceptron, lambda: perceptron(0.3)])
def test_equal_seeds_are_bitwise_equal(build):
    problem = classification(build())
    method = DeepEnsemble(members=4, base=BASE)
    first, second, other = (
        method.fit(problem, generator=seeded(s)).stack["0.weight"] for s in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert len({tuple(w.flatten().tolist()) for w in first}) == 4


def test_threads_are_bitwise_repeatable_and_leave_torch_as_it_was():
    problem = classification(convolutional(), (1, 6, 6))
    seeds = member_seeds(4, seeded(3))
    starts = starting_points(problem, None, seeds)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first, second = (
        train_stacks(problem, starts, BASE.recipe, seeds, Plan(2, 2)).weights for _ in range(2)
    )
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_failing_thread_stops_the_others_and_raises():
    problem = classification(perceptron())
    seeds = member_seeds(4, seeded(3))
    starts = {n: w.clone() for n, w in starting_points(problem, None, seeds).items()}
    starts["0.weight"][2] = torch.inf
    recipe = Recipe(epochs=100_000, batch_size=8)
    with pytest.raises(CosetError, match=r"at step 1 .* in member 2"):
        train_stacks(problem, starts, recipe, seeds, Plan(2, 2))


@pytest.mark.parametrize("plan", [Plan(2, 1), Plan(2, 2)])
def test_progress_covers_all_stacks(plan):
    problem = classification(perceptron())
    seeds = member_seeds(4, seeded(3))
    starts = starting_points(problem, None, seeds)
    calls = []
    train_stacks(
        problem, starts, BASE.recipe, seeds, plan, progress=lambda f, text: calls.append((f, text))
    )
    assert calls[-1] == (1.0, "4 of 4 members trained")
    assert [f for f, _ in calls] == sorted(f for f, _ in calls)


def test_a_small_memory_gives_small_stacks_and_the_same_members():
    problem = classification(convolutional(), (1, 6, 6))
    large = DeepEnsemble(members=3, base=BASE).fit(problem, generator=seeded(1)).stack
    small = DeepEnsemble(members=3, base=BASE, memory=1).fit(problem, generator=seeded(1)).stack
    for name, tensor in large.items():
        torch.testing.assert_close(small[name], tensor)


def test_start_may_be_one_point_or_one_a_member():
    problem = classification(perceptron())
    still = MaximumAPosteriori(SGD(1e-12), Constant(), epochs=1)
    method = DeepEnsemble(members=2, base=still)
    weights = problem.network.weights
    stacked = stack([weights, {name: tensor + 1 for name, tensor in weights.items()}])
    for start, expected in ((weights, stack([weights] * 2)), (stacked, stacked)):
        found = method.fit(problem, start=start, generator=seeded(0)).stack
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor)
    three = stack([weights] * 3)
    with pytest.raises(CosetError, match="a stack to start from"):
        method.fit(problem, start=three, generator=seeded(0))


def test_noise_of_the_mixture_is_the_mean_variance_of_its_members(generator):
    inputs = torch.randn(40, 2)
    data = as_batches((inputs, inputs.sum(1) + 0.3 * torch.randn(40)))
    network = functionalise(nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)))
    problem = Problem(network, GaussianNoise(), GaussianPrior(1.0), data)
    method = DeepEnsemble(members=3, base=MaximumAPosteriori(Adam(0.01), epochs=20))
    posterior = method.fit(problem, generator=generator)
    variances = [
        float((data.targets - network.apply(w, inputs).squeeze(1)).square().mean())
        for w in unstack(posterior.stack)
    ]
    expected = (sum(variances) / 3) ** 0.5
    assert posterior.report.likelihood.std == pytest.approx(expected, rel=1e-4)


def test_the_module_is_never_changed(generator):
    module = convolutional()
    before = copy.deepcopy(module.state_dict())
    DeepEnsemble(members=2, base=BASE).fit(classification(module, (1, 6, 6)), generator=generator)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert module.training


def test_no_members_are_refused():
    with pytest.raises(CosetError, match="members=0"):
        DeepEnsemble(members=0)


def test_bad_labels_are_found_before_training(generator):
    problem = classification(perceptron())
    data = as_batches((torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 1])))
    problem = Problem(problem.network, problem.likelihood, problem.prior, data)
    with pytest.raises(CosetError, match="labels from 0 to 3"):
        DeepEnsemble(members=2).fit(problem, generator=generator)
