"""Soft permutations: their gains are derivatives, and ascents from them end higher."""

import itertools

import numpy as np
import pytest
import torch
from tests.alignment.reference import ResidualStream, group_of, inner, network, random_weights
from tests.alignment.test_ascent import problem  # noqa: F401
from tests.alignment.test_match import trained_pair
from tests.symmetry.discovered import discovered
from torch import nn

from coset import discover, weights_of
from coset.alignment.by_weights import ByWeights
from coset.alignment.gains import GainTable, combine
from coset.alignment.match import match
from coset.alignment.plans import make_plans, matched_tensors
from coset.alignment.soft import SoftPermutations, sinkhorn
from coset.symmetry.elements import Element


def mixed(group, weights, mixing):
    """Weights after every factor has mixed its units, by einsum over whole axes."""
    moved = dict(weights)
    for name, plan in make_plans(group).items():
        for term in plan.terms:
            tensor, site = moved[term.site.tensor], term.site
            view = tensor.reshape(site.view)
            view = torch.tensordot(mixing[name][term.parity], view, ([1], site.digits))
            moved[site.tensor] = view.movedim(0, site.digits[0]).reshape(tensor.shape)
    return moved


def test_gains_are_derivatives_of_the_mixed_objective(problem, generator):  # noqa: F811
    group, a, b = problem
    plans = make_plans(group)
    leaves = {
        name: {
            parity: torch.randn(plan.factor.size, plan.factor.size, generator=generator)
            .double()
            .requires_grad_()
            for parity in {term.parity for term in plan.terms}
        }
        for name, plan in plans.items()
    }
    soft = SoftPermutations(plans, GainTable(plans, a, b))
    for name, own in leaves.items():
        soft.mixing[name] = {parity: leaf.detach()[None] for parity, leaf in own.items()}
    moved = mixed(group, b, leaves)
    torch.as_tensor(sum((a[n] * moved[n]).sum() for n in matched_tensors(group))).backward()
    for name, own in leaves.items():
        found = soft.mixed_gains(name).by_parity
        assert found.keys() == own.keys()
        for parity, leaf in own.items():
            torch.testing.assert_close(torch.from_numpy(found[parity])[0], leaf.grad)


@pytest.mark.parametrize("name", ["attention_grouped_queries", "gru", "group_norm_convnet"])
def test_hard_shares_lead_to_the_gains_of_what_was_moved(name, generator):
    """Nested, recurrent and grouped: permutation matrices mix as the group acts."""
    case = discovered(name)
    group, plans = case.group, make_plans(case.group)
    a, b = (random_weights(case.double, generator) for _ in range(2))
    table = GainTable(plans, a, b)
    soft = SoftPermutations(plans, table)
    leaves = {n for n, plan in plans.items() if plan.terms and not plan.children}
    element = group.sample(generator=generator)
    signs = {
        n: element.scales[n].sign() if s.domain != "positive" and s.along in leaves else t
        for s, (n, t) in zip(group.scalings, group.identity().scales.items(), strict=True)
    }
    tables = {n: element.permutations[n] if n in leaves else t
              for n, t in group.identity().permutations.items()}  # fmt: skip
    for n in leaves:
        order = tables[n].reshape(plans[n].copies, -1)
        hard = torch.zeros(*order.shape, order.shape[-1]).double()
        hard.scatter_(2, order.unsqueeze(-1), 1.0)
        soft.mixing[n] = {}
        for term in plans[n].terms:
            flips = torch.ones_like(order).double()
            for sign, flipped in zip(plans[n].signs, term.parity, strict=True):
                flips = flips * signs[sign.name].reshape(order.shape) if flipped else flips
            soft.mixing[n][term.parity] = hard * flips.unsqueeze(-1)
    moved = group.act(Element(tables, signs), b)
    after = GainTable(plans, a, {n: t.contiguous() for n, t in moved.items()})
    for n in leaves:
        if plans[n].curved:
            continue  # its own move is in the gains after it
        now = combine(after.own(n), len(plans[n].signs)).current().sum()
        order = tables[n].reshape(plans[n].copies, -1)
        gains = soft.mixed_gains(n)
        found = sum(
            (torch.from_numpy(matrix) * soft.mixing[n][parity]).sum()
            for parity, matrix in gains.by_parity.items()
        )
        assert float(found) == pytest.approx(float(now))


@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_shares_are_those_of_the_log_domain(iterations, generator):
    logits = 4 * torch.randn(2, 7, 7, generator=generator).double()
    wanted = logits
    for _ in range(iterations):
        wanted = wanted - wanted.logsumexp(-1, keepdim=True)
        wanted = wanted - wanted.logsumexp(-2, keepdim=True)
    torch.testing.assert_close(sinkhorn(logits, iterations), wanted.exp())


def test_shares_stay_finite_where_nobody_wants_a_unit():
    logits = torch.zeros(1, 50, 50)
    logits[:, :, 0] = 300.0
    shares = sinkhorn(logits, 3)
    assert shares.isfinite().all()
    torch.testing.assert_close(shares.sum(1), torch.ones(1, 50))


def test_trained_residual_networks_are_matched_higher():
    net = ResidualStream(6, 16, 16, 4, 3)
    group = group_of(net.double(), 6)
    gained = []
    for seed in range(6):
        a, b = trained_pair(net, torch.Generator().manual_seed(seed))
        hard, soft = (inner(a, match(group, b, to=a, by=ByWeights(soft=k)).weights) for k in (0, 4))
        gained.append(soft / hard - 1)
    assert sum(gained) / len(gained) > 0.01
    assert sum(gain > 0 for gain in gained) >= 5


def uneven(net, generator):
    """Weights whose units have very different norms."""

    def draw(*shape):
        return torch.randn(*shape, generator=generator).double()

    found = {n: draw(*t.shape) * draw(t.shape[-1]).exp() for n, t in weights_of(net).items()}
    return {n: t if t.dim() < 2 else draw(len(t), 1).exp() * t for n, t in found.items()}


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU])
@pytest.mark.parametrize("seed", range(4))
def test_copies_are_not_softened(activation, seed, monkeypatch):
    """However different the norms of units are: a longer unit is worth more in all places."""
    generator = torch.Generator().manual_seed(seed)
    net = network(4, 19, 17, 3, activation=activation)
    group = group_of(net, 4)
    own = uneven(net, generator)
    moved = group.act(group.sample(generator=generator), own)
    monkeypatch.setattr(SoftPermutations, "soften", lambda *_: pytest.fail("softened"))
    result = match(group, moved, to=own)
    torch.testing.assert_close(result.weights, own)


@pytest.mark.parametrize("width", [12, 300])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_every_type_is_softened(width, bias, kind, generator):
    """Small and large products, with and without vectors; never below the hard ascent."""
    sizes = (5, width, width, 3)
    layers = [nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(sizes)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    group = discover(net, torch.zeros(1, 5))
    a, b = (
        {n: torch.randn(t.shape, generator=generator).to(kind) for n, t in weights_of(net).items()}
        for _ in range(2)
    )
    hard, soft = (match(group, b, to=a, by=ByWeights(scales="keep", soft=k)) for k in (0, 4))
    assert soft.objective >= hard.objective
    torch.testing.assert_close(group.act(soft.element, b), soft.weights, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1e-17, 1e-12, 1e12, 1e17])
def test_the_scale_of_weights_has_no_say(size, generator):
    net = network(5, 30, 30, 3, activation=nn.GELU)
    group = group_of(net, 5)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))

    def found(factor):
        one, other = ({n: (factor * w).float() for n, w in given.items()} for given in (a, b))
        return match(group, other, to=one).element.permutations

    once, scaled = found(1.0), found(2.0 ** round(np.log2(size)))
    assert all(torch.equal(once[name], table) for name, table in scaled.items())


class Meeting(nn.Module):
    """A tensor along which three factors run."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 5)
        self.meet, self.last = nn.Bilinear(4, 5, 6), nn.Linear(6, 2)

    def forward(self, inputs):
        return self.last(self.meet(self.left(inputs).tanh(), self.right(inputs).tanh()).tanh())


def test_three_factors_that_meet_are_softened_too(generator):
    group = discover(Meeting(), torch.zeros(1, 3))
    gained = []
    for _ in range(10):
        a, b = (random_weights(weights_of(Meeting()), generator) for _ in range(2))
        hard, soft = (match(group, b, to=a, by=ByWeights(soft=k)).objective for k in (0, 4))
        assert soft >= hard
        gained.append(soft > hard)
    assert any(gained)


def test_recurrent_networks_are_matched_higher():
    """Unrelated weights: the soft start is never worse, and better for some."""
    case, gained = discovered("gru"), []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        a, b = (random_weights(case.double, generator) for _ in range(2))
        hard, soft = (
            match(case.group, b, to=a, by=ByWeights(scales="keep", soft=k)).objective
            for k in (0, 3)
        )
        assert soft >= hard
        gained.append(soft > hard)
    assert sum(gained) >= 1
