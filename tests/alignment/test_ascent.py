"""Steps of the ascent, one by one, against the inner product of all weights."""

import pytest
import torch
from tests.alignment.reference import group_of, inner, network, random_weights
from torch import nn

from coset import models, weights_of
from coset.alignment.ascent import Ascent
from coset.alignment.by_sinkhorn import BySinkhorn
from coset.alignment.by_weights import ByWeights
from coset.alignment.match import match
from coset.alignment.plans import make_plans, matched_tensors


class GroupedResidual(nn.Module):
    """Two groups of four channels that a grouped layer both reads and writes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 1, groups=2)
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = self.first(x).tanh()
        return self.last(x + self.grouped(x).tanh())


class TwoGroupings(nn.Module):
    """Units ``(a, b, c)`` that one layer reads by ``a`` and another by ``b``, in outer groups."""

    def __init__(self, order):
        super().__init__()
        self.units = f"o{order}"
        size = {"x": 3, "o": 2, "a": 2, "b": 3, "c": 3, "i": 2, "y": 2}

        def drawn(axes):
            return nn.Parameter(torch.randn([size[axis] for axis in axes]))

        self.first, self.second = drawn("xoi"), drawn(f"io{order}")
        self.by_a, self.by_b = drawn(self.units), drawn(self.units)
        self.last_a, self.last_b = drawn("oay"), drawn("oby")

    def forward(self, x):
        units = self.units
        x = torch.einsum("nx,xoi->noi", x, self.first).tanh()
        x = torch.einsum(f"noi,i{units}->n{units}", x, self.second).tanh()
        a = torch.einsum(f"n{units},{units}->noa", x, self.by_a).relu()
        b = torch.einsum(f"n{units},{units}->nob", x, self.by_b).relu()
        last = torch.einsum("noa,oay->ny", a, self.last_a)
        return last + torch.einsum("nob,oby->ny", b, self.last_b)


def residual():
    """Convolutions, norms with signs, a stream: every kind of whole axis."""
    return models.resnet(depths=(2, 1), widths=(6, 8), in_channels=2).double()


def flattened():
    """A linear layer that reads flattened maps: its view is finer than its shape."""
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 6), nn.Tanh(),
        nn.Linear(6, 3),
    ).double()  # fmt: skip


NETS = {
    "perceptron": (lambda: network(4, 9, 7, 3), (4,)),
    "signs": (lambda: network(4, 9, 7, 3, activation=nn.Tanh), (4,)),
    "residual": (residual, (2, 8, 8)),
    "flattened": (flattened, (2, 8, 8)),
}


@pytest.fixture(params=list(NETS))
def problem(request, generator):
    build, shape = NETS[request.param]
    net = build()
    group = group_of(net, *shape)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    return group, a, b


def ascent_of(module, shape, generator):
    group = group_of(module.double(), *shape)
    to, own = (random_weights(weights_of(module), generator) for _ in range(2))
    return Ascent(group, make_plans(group), to, own, group.identity()), own


@pytest.mark.parametrize("seed", range(10))
def test_no_step_lowers_the_objective_where_a_layer_reads_and_writes_groups(seed):
    """Units inside groups act twice on the layer: what a move promises is not what it gains."""
    run, _ = ascent_of(GroupedResidual(), (2, 4, 4), torch.Generator().manual_seed(seed))
    for name in [*run.plans] * 3:
        before = inner(run.to, run.aligned)
        run.step(name)
        assert inner(run.to, run.aligned) >= before


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize("seed", range(3))
def test_moves_of_units_under_two_factors_gain_what_they_promise(order, seed):
    """Both groupings are inside two outer groups, and units have signs."""
    torch.manual_seed(seed)
    run, own = ascent_of(TwoGroupings(order), (3,), torch.Generator().manual_seed(seed))
    assert any(len(plan.factor.within) == 3 for plan in run.plans.values())
    for name in [*run.plans] * 3:
        if not run.plans[name].curved:
            before = inner(run.to, run.aligned)
            promised = max(move.gained for move in run._moves(run.plans[name]).values())
            run.step(name)
            assert inner(run.to, run.aligned) - before == pytest.approx(max(promised, 0), abs=1e-8)
    torch.testing.assert_close(run.group.act(run.element, own), run.aligned)


def test_every_step_gains_what_it_promises(problem):
    """Whole axes with and without signs: gains against the inner product of all weights."""
    group, a, b = problem
    run = Ascent(group, make_plans(group), a, b, group.identity())
    for name in [*run.plans] * 2:
        promised = max(move.gained for move in run._moves(run.plans[name]).values())
        before = run.objective()
        run.step(name)
        assert run.objective() - before == pytest.approx(max(promised, 0), abs=1e-8)
    moved, names = group.act(run.element, b), matched_tensors(group)
    value = inner({n: a[n] for n in names}, moved)
    assert value == pytest.approx(run.objective())


def test_it_goes_on_from_an_element(problem, generator):
    group, a, b = problem
    begin = group.sample(generator=generator)
    moved = group.act(begin, b)
    run = Ascent(group, make_plans(group), a, moved, begin)
    run.sweep(list(run.plans), most=100)
    torch.testing.assert_close(group.act(run.element, b), run.aligned)


def test_what_is_given_is_not_written_to(problem):
    group, a, b = problem
    given = {name: tensor.clone() for name, tensor in b.items()}
    run = Ascent(group, make_plans(group), a, b, group.identity())
    run.sweep(list(run.plans), most=100)
    assert all(torch.equal(b[name], tensor) for name, tensor in given.items())


def test_factors_that_are_settled_are_not_solved_again():
    """After an anchored start of a copy every factor is looked at once more, and nothing moves."""
    net = residual()
    group = group_of(net, 2, 8, 8)
    own = random_weights(weights_of(net), torch.Generator().manual_seed(0))
    run = Ascent(group, make_plans(group), own, own, group.identity())
    run.anchored_start()
    assert run.sweep(list(run.plans), most=100) == 1
    assert run.solves == 2 * len(run.plans)


@pytest.mark.parametrize(
    "by", [ByWeights(), ByWeights(anchored=False), ByWeights(restarts=3), BySinkhorn(steps=3)]
)
def test_a_factor_that_nothing_compares_is_left_where_it_is(by):
    """Statistics of a norm without weights: they are moved along and never matched."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4, affine=False)
            self.net = network(2, 5, 3)

        def forward(self, x):
            return self.net(x) + self.norm(x[:, :1].expand(-1, 4)).sum(1, keepdim=True)

    net = Normalised().double().eval()
    group = group_of(net, 2)
    assert any(not plan.terms for plan in make_plans(group).values())
    own = random_weights(weights_of(net), torch.Generator().manual_seed(0))
    moved = group.act(group.sample(generator=torch.Generator().manual_seed(1)), own)
    result = match(group, moved, to=own, by=by)
    assert result.squared_distance < 1e-20
    torch.testing.assert_close(group.act(result.element, moved), result.weights)
