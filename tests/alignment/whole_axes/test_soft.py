"""Soft permutations: their gains are derivatives, and ascents from them end higher."""

import itertools

import numpy as np
import pytest
import torch
from tests.alignment.reference import ResidualStream, group_of, inner, network, random_weights
from tests.alignment.test_match import trained_pair
from tests.alignment.whole_axes.test_whole_axes import NETS, problem  # noqa: F401
from torch import nn

from coset import discover, weights_of
from coset.alignment.by_sinkhorn import sinkhorn
from coset.alignment.by_weights import ByWeights
from coset.alignment.match import match
from coset.alignment.whole_axes.ascent import WholeAxesAscent
from coset.alignment.whole_axes.held import Held
from coset.alignment.whole_axes.layout import axes_of
from coset.alignment.whole_axes.moving import Turn
from coset.alignment.whole_axes.soft import SoftPermutations, soft_permutation


def mixed_objective(axes, to, own, mixing):
    """``<to, own>`` over what is compared after every factor has mixed its units."""
    compared = set(axes.compared)
    for strip in axes.strips.values():
        compared |= set(strip.names[: strip.compared])
    value = torch.zeros((), dtype=torch.float64)
    for tensor in compared:
        moved = own[tensor].reshape(axes.views[tensor])
        for axis in axes.moved[tensor]:
            known = axes.signs[axis.factor]
            slot = known.index(axis.sign) if axis.sign in known else len(known)
            mixed = torch.tensordot(mixing[axis.factor][slot], moved, ([1], [axis.place]))
            moved = mixed.movedim(0, axis.place)
        value = value + (to[tensor].reshape(moved.shape) * moved).sum()
    return value


def test_gains_are_derivatives_of_the_mixed_objective(problem, generator):  # noqa: F811
    group, a, b = problem
    axes = axes_of(group)
    mixing = {
        name: torch.randn(
            len(axes.signs[name]) + 1, len(own), len(own), generator=generator
        ).double()
        for name, own in axes.places.items()
    }
    soft = SoftPermutations(axes, Held.of(axes, a), Held.of(axes, b))
    soft.mixing.update({name: own.numpy() for name, own in mixing.items()})
    leaves = {name: own.clone().requires_grad_() for name, own in mixing.items()}
    mixed_objective(axes, a, b, leaves).backward()
    for name, leaf in leaves.items():
        found = soft.gains(name)
        torch.testing.assert_close(torch.from_numpy(found), leaf.grad[: len(found)])


def test_only_factors_that_are_read_before_they_are_solved_are_sent_somewhere(problem):  # noqa: F811
    """From there a sweep ends where it does from all moves: the others it solves first."""
    group, a, b = problem
    axes = axes_of(group)
    order = sorted(axes.plans, key=lambda name: len(axes.plans[name].terms))
    first = WholeAxesAscent(group, axes, a, b, group.identity())
    moves = dict(first.softly(order, 2))
    assert order[0] not in moves
    some, every = (WholeAxesAscent(group, axes, a, b, group.identity()) for _ in range(2))
    for name in order:
        if name in moves:
            some.move(name, moves[name])
        size = len(axes.places[name])
        every.move(name, moves.get(name, Turn(np.arange(size)[::-1].copy())))
    for run in (some, every):
        run.sweep(order, most=100)
    assert some.objective() == pytest.approx(every.objective(), rel=1e-12)


@pytest.mark.parametrize("hardness", [0.5, 4.0])
def test_shares_are_those_of_the_log_domain(hardness, generator):
    gains = torch.randn(7, 7, generator=generator).double()
    wanted = sinkhorn(hardness * gains[None] / gains.std(correction=0), 3)[0]
    torch.testing.assert_close(torch.from_numpy(soft_permutation(gains.numpy(), hardness)), wanted)


def test_shares_stay_finite_where_nobody_wants_a_unit():
    gains = np.zeros((50, 50), np.float32)
    gains[:, 0] = 1e6
    shares = soft_permutation(gains, 4.0)
    assert np.isfinite(shares).all()
    assert shares.sum(0) == pytest.approx(np.ones(50), rel=1e-5)


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


def test_where_three_factors_meet_nothing_is_softened(generator):
    group = discover(Meeting(), torch.zeros(1, 3))
    a, b = (random_weights(weights_of(Meeting()), generator) for _ in range(2))
    hard, soft = (match(group, b, to=a, by=ByWeights(soft=k)) for k in (0, 4))
    assert hard.objective == soft.objective
