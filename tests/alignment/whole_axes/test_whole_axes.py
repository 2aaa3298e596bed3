"""The lean ascent over whole axes against the general one."""

import pytest
import torch
from tests.alignment.reference import group_of, network, random_weights
from tests.symmetry.cases import CASES
from torch import nn

from coset import discover, models, weights_of
from coset.alignment.any_group.ascent import Ascent
from coset.alignment.by_sinkhorn import BySinkhorn
from coset.alignment.by_weights import ByWeights
from coset.alignment.match import match
from coset.alignment.plans import make_plans
from coset.alignment.whole_axes.ascent import WholeAxesAscent
from coset.alignment.whole_axes.layout import axes_of


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


def test_both_ascents_find_the_same(problem):
    group, a, b = problem
    axes, plans = axes_of(group), make_plans(group)
    assert axes is not None
    lean = WholeAxesAscent(group, axes, a, b, group.identity())
    general = Ascent(group, plans, a, b, group.identity())
    assert lean.objective() == pytest.approx(general.objective())
    for ascent in (lean, general):
        ascent.anchored_start()
        ascent.sweep(list(plans), most=100)
    assert lean.objective() == pytest.approx(general.objective(), rel=1e-12)
    for name, table in general.element.permutations.items():
        assert torch.equal(lean.element.permutations[name], table)
    torch.testing.assert_close(lean.aligned, general.aligned)
    torch.testing.assert_close(group.act(lean.element, b), lean.aligned)


def test_gains_stay_right_when_few_units_move(problem, generator):
    """Updated gains equal those computed afresh, signs and all."""
    group, a, b = problem
    ascent = WholeAxesAscent(group, axes_of(group), a, b, group.identity())
    ascent.sweep(list(ascent.plans), most=2)
    for name in ascent.plans:
        size = len(ascent.permutations[name])
        order = torch.arange(size)
        order[:2] = torch.tensor([1, 0])
        ascent.reorder(name, order)
    updated = {name: ascent._gains(name, ()) for name in ascent._totals}
    for name, totals in updated.items():
        del ascent._totals[name]
        ascent._taken[name].clear()
        again = ascent._gains(name, None)
        torch.testing.assert_close(torch.from_numpy(again), torch.from_numpy(totals))


def test_it_goes_on_from_an_element(problem, generator):
    group, a, b = problem
    begin = group.sample(generator=generator)
    moved = group.act(begin, b)
    ascent = WholeAxesAscent(group, axes_of(group), a, moved, begin)
    ascent.sweep(list(ascent.plans), most=100)
    torch.testing.assert_close(group.act(ascent.element, b), ascent.aligned)


@pytest.mark.parametrize("name", ["gru", "attention_grouped_queries", "group_norm_convnet"])
def test_other_factors_are_left_to_the_general_ascent(name):
    (case,) = (case for case in CASES if case.name == name)
    assert axes_of(discover(case.factory(), case.example())) is None


def test_what_was_handed_out_is_not_written_to(problem):
    group, a, b = problem
    ascent = WholeAxesAscent(group, axes_of(group), a, b, group.identity())
    ascent.sweep(list(ascent.plans), most=100)
    given = {name: tensor.clone() for name, tensor in b.items()}
    first = ascent.aligned
    kept = {name: tensor.clone() for name, tensor in first.items()}
    for name in ascent.plans:
        order = torch.arange(len(ascent.permutations[name]))
        order[:2] = torch.tensor([1, 0])
        ascent.reorder(name, order)
    torch.testing.assert_close(group.act(ascent.element, b), ascent.aligned)
    for name, tensor in kept.items():
        assert torch.equal(first[name], tensor)
        assert torch.equal(b[name], given[name])


@pytest.mark.parametrize("proved", [True, False])
def test_factors_that_are_settled_are_not_solved_again(proved, monkeypatch):
    """After an anchored start only the streams, solved from a part of their terms, are left.

    Where the rest of the terms surely changes nothing they are not solved again either.
    """
    monkeypatch.setattr("coset.alignment.whole_axes.ascent._WORTHWHILE", 0 if proved else torch.inf)
    net = residual()
    group = group_of(net, 2, 8, 8)
    own = random_weights(weights_of(net), torch.Generator().manual_seed(0))
    ascent = WholeAxesAscent(group, axes_of(group), own, own, group.identity())
    ascent.anchored_start()
    ascent.sweep(list(ascent.plans), most=100)
    axes = ascent.axes
    partial = [name for name, terms in axes.anchored if len(terms) < len(axes.terms[name])]
    assert 0 < len(partial) < len(axes.terms)
    assert ascent.solves == len(axes.terms) + (0 if proved else len(partial))


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


@pytest.mark.parametrize("side", ["to", "weights", "neither"])
def test_units_that_have_an_equal_are_not_taken_for_distinct(side, generator):
    module = models.mlp(6, (9, 8), 3)
    group = discover(module, torch.zeros(1, 6))
    to = {n: torch.randn(w.shape, generator=generator) for n, w in weights_of(module).items()}
    noisy = {n: w + 0.05 * torch.randn(w.shape, generator=generator) for n, w in to.items()}
    changed = {"to": to, "weights": noisy}.get(side)
    factor = group.permutations[0]
    if changed is not None:
        for site in factor.sites:
            units = changed[site.tensor].movedim(site.digits[0], 0)
            units[1] = units[4]
    run = WholeAxesAscent(group, axes_of(group), to, noisy, group.identity())
    run.anchored_start()
    run.sweep([f.name for f in group.permutations], most=100)
    run.leaves_doubts()
    assert run.distinct(factor.name) == (side == "neither")
    assert match(group, noisy, to=to).ties == (0 if side == "neither" else 2)
