"""What the warm-up learns, against laws it should find."""

import torch

from coset.inference.sampling.adaptation import Moments, Warmup, Windows, fellows, group_means
from coset.weights.layout import Layout


def test_the_mass_of_independent_gaussians_is_their_variance(generator):
    # gradients w / σ²: √(Var w / Var ∇U) = σ² whatever the draws
    variance = torch.tensor([0.01, 1.0, 25.0], dtype=torch.float64)
    warmup = Warmup(100, None, 0.8, mass=True)
    groups = torch.arange(3)
    draw = torch.randn(2, 3, generator=generator, dtype=torch.float64) * variance.sqrt()
    state = warmup.begin(draw, draw / variance, groups, lambda step, mass: float(step < 1))
    for number in range(100):
        draw = torch.randn(2, 3, generator=generator, dtype=torch.float64) * variance.sqrt()
        state = warmup.after(
            state, number, draw, draw / variance, 0.8, lambda step, mass: float(step < 1)
        )
    torch.testing.assert_close(state.inverse_mass, variance)


def test_weights_learn_from_the_same_place_in_other_units(generator):
    layout = Layout(("weight", "bias"), ((50, 2), (50,)))
    groups = fellows(layout)
    scale = torch.cat([torch.tensor([0.1, 3.0]).repeat(50), torch.full((50,), 0.5)])
    moments = Moments.none(torch.zeros(4, 150))
    for _ in range(4):
        moments = moments.including(torch.randn(4, 150, generator=generator) * scale)
    alone = moments.squares.mean(0) / 3
    pooled = moments.variance(groups)
    wanted = scale.square()
    assert float((pooled / wanted).log().abs().mean()) < float((alone / wanted).log().abs().mean())
    assert float((group_means(alone, groups) / wanted - 1).abs().max()) < 0.15


def test_windows_cover_the_warm_up_without_its_ends():
    for warmup in (40, 100, 333, 1000):
        ends = Windows(warmup).ends()
        assert ends == sorted(set(ends))
        assert ends[0] >= Windows(warmup).first + 10
        assert ends[-1] == Windows(warmup).last < warmup
    assert Windows(39).ends() == []


def test_chains_that_stand_still_change_no_mass():
    warmup = Warmup(40, 0.1, 0.8, mass=True)
    still = torch.ones(2, 3)
    state = warmup.begin(still, still, torch.arange(3), lambda step, mass: 1.0)
    first = state.inverse_mass
    for number in range(40):
        state = warmup.after(state, number, still, still, 0.0, lambda step, mass: 1.0)
    assert torch.equal(state.inverse_mass, first)
