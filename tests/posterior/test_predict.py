"""Predictions against sums written out by hand."""

import math

import pytest
import torch
from torch import nn

from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    GaussianNoise,
    HeteroscedasticGaussian,
    Layout,
    Mixture,
    MonteCarlo,
    PointMass,
    Predictions,
    Samples,
    functionalise,
    stack,
)
from coset.posterior.predict import apply_members, finite_members

pytestmark = pytest.mark.usefixtures("double")


class Normal:
    """A posterior that is not finite: independent normals around a point."""

    def __init__(self, weights, std=0.1):
        self.weights, self.std, self.report = weights, std, None
        self.layout = Layout.of(weights)
        self.asked = []

    def sample(self, draws, *, generator):
        self.asked.append(draws)
        return {
            name: w + self.std * torch.randn(draws, *w.shape, generator=generator)
            for name, w in self.weights.items()
        }


@pytest.fixture
def network():
    return functionalise(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))


@pytest.fixture
def members(network, generator):
    return [network.initialise(generator) for _ in range(5)]


@pytest.fixture
def inputs():
    return torch.randn(7, 3)


def each(network, members, inputs):
    return torch.stack([network.apply(member, inputs) for member in members])


def test_an_ensemble_is_averaged_exactly(network, members, inputs, generator):
    state = generator.get_state()
    found = MonteCarlo(draws=2)(
        Samples(stack(members)), network, Categorical(), inputs, generator=generator
    )
    expected = each(network, members, inputs).softmax(-1)
    torch.testing.assert_close(found.members, expected)
    torch.testing.assert_close(found.mean, expected.mean(0))
    torch.testing.assert_close(found.variance, expected.var(0, correction=0))
    assert found.covariance is None
    assert torch.equal(generator.get_state(), state)


def test_weights_of_members_count(network, members, inputs, generator):
    shares = torch.tensor([0.5, 0.2, 0.1, 0.15, 0.05])
    posterior = Samples(stack(members), weighting=shares.log() + 3)
    found = MonteCarlo()(posterior, network, Categorical(), inputs, generator=generator)
    expected = each(network, members, inputs).softmax(-1)
    mean = sum(share * part for share, part in zip(shares, expected, strict=True))
    torch.testing.assert_close(found.mean, mean)
    spread = sum(s * (part - mean) ** 2 for s, part in zip(shares, expected, strict=True))
    torch.testing.assert_close(found.variance, spread)


def test_a_point_has_one_member_and_no_spread(network, inputs, generator):
    posterior = PointMass(network.weights)
    found = MonteCarlo()(posterior, network, Categorical(), inputs, generator=generator)
    assert found.members.shape == (1, 7, 2)
    assert torch.equal(found.variance, torch.zeros(7, 2))


def test_other_posteriors_are_drawn_from(network, inputs):
    posterior = Normal(network.weights)
    first, second = (
        MonteCarlo(draws=9)(
            posterior, network, Categorical(), inputs, generator=torch.Generator().manual_seed(4)
        )
        for _ in range(2)
    )
    assert posterior.asked == [9, 9]
    assert first.members.shape == (9, 7, 2)
    assert torch.equal(first.members, second.members)


@pytest.mark.parametrize("memory", [1, 1 << 10, 1 << 12, 1 << 30])
def test_chunks_do_not_change_the_predictions(network, inputs, memory):
    def run(amount):
        rule = MonteCarlo(draws=6, memory=amount)
        seeded = torch.Generator().manual_seed(1)
        return rule(Normal(network.weights), network, Categorical(), inputs, generator=seeded)

    torch.testing.assert_close(run(memory).members, run(1 << 25).members, rtol=0, atol=1e-14)


def test_regression_variance_is_spread_plus_noise(network, members, inputs, generator):
    posterior = Samples(stack(members))
    found = MonteCarlo()(posterior, network, GaussianNoise(0.5), inputs, generator=generator)
    outputs = each(network, members, inputs)
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.variance, outputs.var(0, correction=0) + 0.25)


def test_regression_variance_of_noise_per_member(network, members, inputs, generator):
    posterior = Samples(stack(members))
    found = MonteCarlo()(posterior, network, HeteroscedasticGaussian(), inputs, generator=generator)
    mean, noise = each(network, members, inputs).split(1, dim=-1)
    torch.testing.assert_close(found.mean, mean.mean(0))
    torch.testing.assert_close(found.variance, mean.var(0, correction=0) + noise.exp().mean(0))


def test_variance_of_unknown_noise_is_unknown(network, members, inputs, generator):
    posterior = Samples(stack(members))
    found = MonteCarlo()(posterior, network, GaussianNoise(), inputs, generator=generator)
    assert found.variance is None


def test_the_variance_of_a_linear_gaussian_model_is_the_closed_form(generator):
    """f = w x with w ~ N(1, 0.3²): variance 0.09 x² + 0.04; 20 000 draws, six standard errors."""
    network = functionalise(nn.Linear(1, 1, bias=False))
    posterior = Normal({"weight": torch.ones(1, 1)}, std=0.3)
    inputs = torch.tensor([[0.5], [2.0]])
    found = MonteCarlo(draws=20_000)(
        posterior, network, GaussianNoise(0.2), inputs, generator=generator
    )
    exact = 0.09 * inputs.square() + 0.04
    assert ((found.variance - exact).abs() < 6 * exact * math.sqrt(2 / 20_000)).all()


def test_pixels_keep_their_axes(generator):
    network = functionalise(nn.Conv2d(1, 3, 3, padding=1))
    posterior = Samples(stack([network.initialise(generator) for _ in range(2)]))
    found = MonteCarlo()(
        posterior, network, Categorical(), torch.randn(4, 1, 5, 6), generator=generator
    )
    assert found.members.shape == (2, 4, 3, 5, 6)
    assert found.mean.shape == found.variance.shape == (4, 3, 5, 6)
    torch.testing.assert_close(found.mean.sum(1), torch.ones(4, 5, 6))


def test_bernoulli_means_are_probabilities(network, members, inputs, generator):
    found = MonteCarlo()(Samples(stack(members)), network, Bernoulli(), inputs, generator=generator)
    torch.testing.assert_close(found.mean, each(network, members, inputs).sigmoid().mean(0))


def test_a_mixture_of_finite_parts_is_integrated_exactly(network, members, inputs, generator):
    mixture = Mixture(
        (PointMass(members[0]), Samples(stack(members[1:]))), torch.tensor([0.6, 0.4]).log()
    )
    found = MonteCarlo(draws=1)(mixture, network, Categorical(), inputs, generator=generator)
    expected = each(network, members, inputs).softmax(-1)
    torch.testing.assert_close(
        found.mean, 0.6 * expected[0] + 0.4 * expected[1:].mean(0), rtol=0, atol=1e-7
    )


def test_a_mixture_with_one_part_that_is_not_finite_is_drawn_from(network, members):
    assert finite_members(Mixture((PointMass(members[0]), Normal(members[1])))) is None


class Branching(nn.Module):
    """Looks at values, which vmap cannot."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return outputs if float(outputs.sum()) > 0 else 2 * outputs


def test_a_network_that_vmap_cannot_take_goes_one_by_one(inputs, generator):
    network = functionalise(Branching())
    members = [network.initialise(generator) for _ in range(4)]
    outputs = apply_members(network, stack(members), inputs)
    torch.testing.assert_close(outputs, each(network, members, inputs))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(3, 2)

    def forward(self, left, right):
        return self.left(left) * self.right(right)


def test_several_inputs(generator):
    network = functionalise(TwoInputs())
    members = stack([network.initialise(generator) for _ in range(3)])
    inputs = torch.randn(9, 2), torch.randn(9, 3)
    tiny = apply_members(network, members, inputs, memory=1)
    torch.testing.assert_close(tiny, apply_members(network, members, inputs))
    assert tiny.shape == (3, 9, 2)


def test_batch_norm_statistics_are_those_of_the_member(generator):
    network = functionalise(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    members = [
        {**network.initialise(generator), "1.running_mean": torch.full((2,), float(i))}
        for i in range(3)
    ]
    inputs = torch.randn(5, 3)
    outputs = apply_members(network, stack(members), inputs)
    torch.testing.assert_close(outputs, each(network, members, inputs))
    alone = apply_members(network, stack(members), inputs[:1])
    torch.testing.assert_close(alone, outputs[:, :1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(4, 5), r"shape \(4, 5\)"),
        (torch.zeros(4, 3, dtype=torch.float32), "float32"),
        (torch.zeros(0, 3), "0 rows"),
        (torch.tensor(1.0), "first axis"),
        ([1.0, 2.0], "list"),
        ((torch.zeros(4, 3), torch.zeros(5, 3)), "4 and 5 rows"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(network, bad, message, generator):
    with pytest.raises(CosetError, match=message):
        MonteCarlo()(PointMass(network.weights), network, Categorical(), bad, generator=generator)


def test_at_least_one_draw():
    with pytest.raises(CosetError, match="draws=0"):
        MonteCarlo(draws=0)
    with pytest.raises(CosetError, match="got memory=-1"):
        MonteCarlo(memory=-1)


def test_float32_stays_float32(generator):
    network = functionalise(nn.Linear(3, 2).float())
    posterior = Samples(stack([network.initialise(generator) for _ in range(2)]), torch.rand(2))
    found = MonteCarlo()(
        posterior, network, Categorical(), torch.zeros(1, 3).float(), generator=generator
    )
    assert found.mean.dtype == found.variance.dtype == torch.float32


def test_mean_of_a_closed_form_is_its_only_member():
    members = torch.rand(1, 3, 2)
    assert torch.equal(Predictions(members).mean, members[0])
