import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from training_problems import (
    DataDependent,
    assert_same,
    classification,
    convolutional,
    perceptron,
    train_plainly,
)

from coset import SWAG, DeepEnsemble, MaximumAPosteriori, MeanField
from coset.bayes import GaussianNoise, GaussianPrior, Problem, as_batches
from coset.errors import CosetError
from coset.inference import SGD, Adam, Constant, Cosine, train_stack
from coset.inference.training.gradients import (
    Objective,
    choose,
    one_by_one,
    together,
)
from coset.inference.training.recipe import Recipe
from coset.weights import functionalise, stack, unstack

pytestmark = pytest.mark.usefixtures("double")

CASES = {
    "perceptron": (perceptron, (4,)),
    "dropout": (lambda: perceptron(0.4), (4,)),
    "convolutional": (convolutional, (1, 6, 6)),
}
SEEDS = [11, 22, 33, 44]


def starts_of(problem, seeds=SEEDS):
    draw = problem.network.initialise
    return stack([draw(torch.Generator().manual_seed(seed + 1)) for seed in seeds])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("optimiser", [SGD(0.1), Adam(0.01)])
def test_a_stack_trains_as_its_members_alone(case, optimiser):
    build, shape = CASES[case]
    problem = classification(build(), shape)
    recipe = Recipe(optimiser, epochs=4, batch_size=6, clip=0.5)
    starts = starts_of(problem)
    together_trained = train_stack(problem, starts, recipe, SEEDS)
    for number, start in enumerate(unstack(starts)):
        alone = train_stack(problem, stack([start]), recipe, [SEEDS[number]])
        assert_same(unstack(together_trained.weights)[number], unstack(alone.weights)[0])
        torch.testing.assert_close(together_trained.losses[number], alone.losses[0])


class Late(nn.Module):
    """Drops units in some passes only: not where it is first looked at."""

    def __init__(self, drops):
        super().__init__()
        self.first, self.last, self.drops = nn.Linear(4, 8), nn.Linear(8, 3), drops

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        if self.drops(inputs):
            hidden = nn.functional.dropout(hidden, 0.5, self.training)
        return self.last(hidden)


@pytest.mark.parametrize("drops", [lambda x: len(x) > 5, lambda x: bool(x.mean() > 0)])
def test_dropout_that_comes_late_is_a_members_own(drops):
    problem = classification(Late(drops), (4,))
    recipe = Recipe(SGD(0.1), epochs=3, batch_size=6)
    starts = starts_of(problem)
    trained = unstack(train_stack(problem, starts, recipe, SEEDS).weights)
    alone = train_stack(problem, stack([unstack(starts)[2]]), recipe, SEEDS[2:3])
    assert_same(trained[2], unstack(alone.weights)[0])


@pytest.mark.parametrize("case", ["perceptron", "convolutional"])
@pytest.mark.parametrize(
    ("optimiser", "build"),
    [
        (SGD(0.1), lambda p, d: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=d)),
        (
            SGD(0.1, nesterov=True),
            lambda p, d: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=d),
        ),
        (Adam(0.01), lambda p, d: torch.optim.Adam(p, 0.01, weight_decay=d)),
    ],
)
@pytest.mark.parametrize("limit", [None, 0.3])
def test_a_stack_trains_as_plain_torch(case, optimiser, build, limit):
    """Weights and batch-norm statistics against an independent loop on the module itself."""
    make, shape = CASES[case]
    module = make()
    problem = classification(module, shape)
    recipe = Recipe(optimiser, Cosine(warmup=0.2), epochs=3, batch_size=6, clip=limit)
    starts = starts_of(problem)
    trained = unstack(train_stack(problem, starts, recipe, SEEDS).weights)
    for ours, start, seed in zip(trained, unstack(starts), SEEDS, strict=True):
        reference = train_plainly(module, problem, start, build, recipe, seed)
        assert_same(ours, reference)


def test_one_by_one_equals_together_where_vmap_cannot_go():
    torch.manual_seed(3)
    plain = perceptron()
    refusing = DataDependent()
    refusing.inner.load_state_dict(plain.state_dict())
    problem, refused = classification(plain), classification(refusing)
    refused = Problem(refused.network, problem.likelihood, problem.prior, problem.train)
    starts = starts_of(problem)
    inner = {f"inner.{name}": tensor for name, tensor in starts.items()}
    recipe = Recipe(SGD(0.1), epochs=3, batch_size=6)
    expected = train_stack(problem, starts, recipe, SEEDS).weights
    got = train_stack(refused, inner, recipe, SEEDS).weights
    assert_same({name.removeprefix("inner."): w for name, w in got.items()}, expected)


@pytest.mark.parametrize(
    ("module", "members", "expected"),
    [(perceptron, 4, together), (DataDependent, 4, one_by_one), (perceptron, 1, one_by_one)],
)
def test_the_way_is_chosen_by_what_vmap_can_follow(module, members, expected):
    problem = classification(module())
    starts = starts_of(problem, SEEDS[:members])
    objective = Objective(problem.network, problem.likelihood.log_prob)
    batch = problem.train.rows(torch.zeros(members, 2, dtype=torch.long))
    assert choose(objective, starts, batch) is expected


@pytest.mark.parametrize("case", CASES)
def test_both_ways_give_the_same_numbers(case):
    build, shape = CASES[case]
    problem = classification(build(), shape)
    starts = starts_of(problem)
    objective = Objective(problem.network, problem.likelihood.log_prob)
    batch = problem.train.rows(torch.arange(20).view(4, 5))
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    one, other = (
        way(objective, starts, batch, scale, [torch.Generator().manual_seed(s) for s in SEEDS])
        for way in (one_by_one, together)
    )
    torch.testing.assert_close(other.losses, one.losses, rtol=0, atol=1e-10)
    assert_same(other.gradients, one.gradients)
    assert_same(other.buffers, one.buffers)


@pytest.mark.parametrize("case", CASES)
def test_equal_seeds_are_bitwise_equal_and_arguments_stay(case):
    build, shape = CASES[case]
    module = build()
    before = copy.deepcopy(module.state_dict())
    problem = classification(module, shape)
    starts = starts_of(problem)
    kept = {name: tensor.clone() for name, tensor in starts.items()}
    recipe = Recipe(epochs=2, batch_size=8)
    first = train_stack(problem, starts, recipe, SEEDS)
    torch.rand(5)  # the state of torch's own generator plays no part
    state = torch.get_rng_state()
    second = train_stack(problem, starts, recipe, SEEDS)
    assert torch.equal(torch.get_rng_state(), state)
    for name in starts:
        assert torch.equal(first.weights[name], second.weights[name])
        assert torch.equal(starts[name], kept[name])
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    for name, tensor in problem.network.weights.items():
        assert torch.equal(tensor, before[name])


def test_the_prior_of_rows_pulls_rows():
    """The gradient of the penalty, with other precisions in every row, against autograd."""
    problem = classification(nn.Sequential(nn.Linear(4, 3)))
    precision = {"0.weight": torch.tensor([[1.0], [5.0], [50.0]]), "0.bias": torch.tensor(3.0)}
    problem = Problem(problem.network, problem.likelihood, GaussianPrior(precision), problem.train)
    starts = starts_of(problem, [1])
    recipe = Recipe(SGD(0.1, momentum=0.0), Constant(), epochs=1, batch_size=1000)
    trained = unstack(train_stack(problem, starts, recipe, [1]).weights)[0]
    leaves = {n: w[0].clone().requires_grad_() for n, w in starts.items()}
    inputs, targets = problem.train.inputs, problem.train.targets
    loss = -problem.log_joint(leaves, (inputs, targets)) / problem.train.size
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    stepped = {
        name: leaves[name].detach() - 0.1 * g for name, g in zip(leaves, gradients, strict=True)
    }
    assert_same(trained, stepped)


@pytest.mark.parametrize("seeds", [[5], [5, 6, 7]])
def test_a_loss_that_is_not_finite_names_step_rate_and_member(seeds):
    problem = classification(nn.Sequential(nn.Linear(4, 3)))
    starts = starts_of(problem, seeds)
    starts["0.weight"][-1, 0, 0] = torch.nan
    recipe = Recipe(SGD(0.25), Constant(), epochs=1, batch_size=8)
    message = rf"loss of nan at step 1 .*learning rate of 0\.25, in member {len(seeds) - 1}"
    with pytest.raises(CosetError, match=message):
        train_stack(problem, starts, recipe, seeds)


class Steep(nn.Module):
    """A finite loss with a gradient that is not: the root of zero."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, inputs):
        outputs = self.inner(inputs)
        return outputs + (outputs * 0).sqrt()


LAST = MaximumAPosteriori(epochs=1, batch_size=23)
ONE_STEP = {
    "one": LAST,
    "ensemble": DeepEnsemble(3, LAST),
    "early stopping": replace(LAST, validation=(torch.zeros(2, 4).double(), torch.arange(2))),
    "mean field": MeanField(epochs=1, batch_size=23),
    "SWAG": SWAG(rank=0, base=LAST, epochs=2),
}


@pytest.mark.parametrize("name", ONE_STEP)
def test_weights_that_are_not_finite_after_the_last_step_are_refused(name):
    problem = classification(Steep())
    with pytest.raises(CosetError, match=r"weights 'inner\.\w+' that are not finite after step 1"):
        ONE_STEP[name].fit(problem, generator=torch.Generator().manual_seed(0))


def test_divergence_stops_the_training():
    targets = 100 * torch.randn(20, 1)
    network = functionalise(nn.Sequential(nn.Linear(4, 1)))
    data = as_batches((100 * torch.randn(20, 4), targets))
    problem = Problem(network, GaussianNoise(0.01), GaussianPrior(1.0), data)
    with pytest.raises(CosetError, match=r"step \d+ .*lower the learning rate"):
        train_stack(problem, starts_of(problem, [1]), Recipe(SGD(10.0), epochs=500), [1])


def test_early_stopping_keeps_the_best_weights_of_each_member():
    """Against a run that writes every epoch down and applies the rule by hand."""
    torch.manual_seed(1)
    problem = classification(perceptron(), rows=40)
    labels = torch.arange(12) % 3
    held_out = torch.randn(12, 4) + labels.unsqueeze(1), labels
    starts = starts_of(problem)
    settings = dict(optimiser=Adam(0.05), schedule=Constant(), epochs=30, batch_size=10)
    history = []
    train_stack(
        problem,
        starts,
        Recipe(**settings),
        SEEDS,
        on_epoch=lambda state: history.append({n: w.clone() for n, w in state.weights.items()}),
    )
    patience = 3
    trained = train_stack(
        problem, starts, Recipe(**settings, validation=held_out, patience=patience), SEEDS
    )
    assert len(set(trained.epochs)) > 1, "members should stop at different epochs in this test"
    for number in range(len(SEEDS)):
        members = [unstack(weights)[number] for weights in history]
        losses = [
            float(nn.functional.cross_entropy(problem.network.apply(w, held_out[0]), held_out[1]))
            for w in members
        ]
        best = 0
        for epoch, loss in enumerate(losses):
            if loss < losses[best]:
                best = epoch
            if epoch - best == patience:
                break
        assert trained.epochs[number] == epoch + 1
        assert_same(unstack(trained.weights)[number], members[best])
        assert float(trained.losses[number]) == pytest.approx(losses[best])


def test_batches_cover_every_example_once_in_nearly_equal_parts():
    seen = []

    class Watching:
        inputs, targets = torch.randn(23, 4), torch.arange(23) % 3
        size, batch_size = 23, 8

        def __iter__(self):
            yield self.inputs, self.targets

        def rows(self, index):
            seen.append(index)
            return self.inputs[index], self.targets[index]

    problem = classification(perceptron())
    problem = Problem(problem.network, problem.likelihood, problem.prior, Watching())
    train_stack(problem, starts_of(problem, [1, 2]), Recipe(epochs=1, batch_size=8), [1, 2])
    steps = seen[1:]  # the first look decides how to evaluate
    assert [index.shape[1] for index in steps] == [8, 8, 7]
    orders = torch.cat(steps, dim=1)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(23).expand(2, -1))
    assert not torch.equal(orders[0], orders[1])


def test_progress_is_told_the_end_and_not_every_step():
    calls = []
    problem = classification(perceptron())
    train_stack(
        problem,
        starts_of(problem),
        Recipe(epochs=40, batch_size=4),
        SEEDS,
        progress=lambda fraction, text: calls.append(fraction),
    )
    assert calls[-1] == 1.0
    assert calls == sorted(calls)
    assert len(calls) < 40


def test_unused_parameters_only_feel_the_prior():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(4, 3)
            self.spare = nn.Linear(2, 2)

        def forward(self, inputs):
            return self.used(inputs)

    problem = classification(Spare())
    starts = starts_of(problem, [1, 2])
    recipe = Recipe(SGD(0.1, momentum=0.0), Constant(), epochs=1, batch_size=100)
    trained = train_stack(problem, starts, recipe, [1, 2]).weights
    shrink = 1 - 0.1 * 2.0 / problem.train.size
    torch.testing.assert_close(trained["spare.weight"], starts["spare.weight"] * shrink)
