"""Mean field: bound, temperature, and noise drawn example by example (optimum: see the laws)."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from training_problems import classification, convolutional, perceptron

from coset import (
    Adam,
    CosetError,
    GaussianNoise,
    GaussianPrior,
    MaximumAPosteriori,
    MeanField,
    MultiMode,
)
from coset.inference import mean_field
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.local_noise import (
    Deviations,
    NoisyLayers,
    flippable_layers,
    flipped_draw,
    local_draw,
    local_layers,
    noisy_layers,
)
from coset.inference.variational import Run
from coset.weights import functionalise
from problems import linear_gaussian


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def _divergence(posterior, problem, mean, covariance):
    layout = problem.network.layout
    ours = torch.distributions.MultivariateNormal(
        layout.flatten(posterior.mean), layout.flatten(posterior.std).square().diag()
    )
    exact = torch.distributions.MultivariateNormal(mean, covariance)
    return float(torch.distributions.kl_divergence(ours, exact))


def test_the_bound_lies_below_the_evidence_of_a_conjugate_problem():
    problem, mean, covariance = linear_gaussian()
    method = MeanField(optimiser=Adam(2e-2), epochs=1000)
    posterior = method.fit(problem, generator=seeded())
    # by the divergence of the two
    inputs, targets = problem.train.inputs, problem.train.targets
    design = torch.cat([inputs, torch.ones_like(targets)], 1)
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(len(targets), dtype=torch.float64),
        design @ design.T + 0.25 * torch.eye(len(targets), dtype=torch.float64),
    )
    evidence = float(marginal.log_prob(targets.flatten()))
    bound = posterior.report.diagnostics["evidence_bound"]
    # the expected loss of 64 passes has a standard error of about 0.3 nats: five of them
    divergence = _divergence(posterior, problem, mean, covariance)
    assert bound == pytest.approx(evidence - divergence, abs=1.5)


def test_a_cold_posterior_is_narrower():
    problem, _, _ = linear_gaussian()
    warm, cold = (
        MeanField(temperature=temperature, epochs=800).fit(problem, generator=seeded())
        for temperature in (1.0, 0.1)
    )
    assert float(cold.std["weight"].mean()) < 0.5 * float(warm.std["weight"].mean())


@pytest.mark.parametrize("draw", [local_draw, flipped_draw])
def test_outputs_have_the_moments_of_drawn_weights(draw, double):
    # 10,000 draws: standard errors of mean and variance 0.01 σ and 0.014 σ², five of them.
    # Flipped noise shares its size between examples, so it is drawn often for few examples.
    weight, bias = torch.randn(2, 3), torch.randn(2)
    stds = (torch.rand(2, 3), torch.rand(2))
    example = torch.randn(1, 3)
    rows, repeats = (10_000, 1) if draw is local_draw else (4, 10_000)
    own, outputs = Deviations({id(weight): stds[0], id(bias): stds[1]}, [seeded()]), []
    with NoisyLayers(own, draw):
        for _ in range(repeats):
            outputs.append(functional.linear(example.expand(rows, 3), weight, bias))
    found = torch.stack(outputs)[:, 0] if repeats > 1 else outputs[0]
    mean = weight @ example[0] + bias
    variance = stds[0].square() @ example[0].square() + stds[1].square()
    assert float(((found.mean(0) - mean) / variance.sqrt()).abs().max()) < 0.05
    assert float((found.var(0) / variance - 1).abs().max()) < 0.071


def test_flipped_examples_have_weights_of_their_own(double):
    """Each output is that of ``μ + ΔW ∘ r sᵀ``, also in a convolution: signs are found again."""
    weight, bias, std = torch.randn(3, 2, 3, 3), torch.randn(3), torch.rand(3, 2, 3, 3)
    own = Deviations({id(weight): std, id(bias): torch.zeros(3)}, [seeded()])
    inputs = torch.randn(1, 2, 5, 5).expand(64, 2, 5, 5)
    with NoisyLayers(own, flipped_draw):
        outputs = torch.conv2d(inputs, weight, bias, padding=1)
    again = Deviations(own.stds, [seeded()])
    into, delta = again.signs(inputs, 1), again.drawn(weight)
    again.drawn(bias)
    out = again.signs(outputs, 1)
    for row in range(64):
        theirs = weight + delta * out[row].view(3, 1, 1, 1) * into[row].view(1, 2, 1, 1)
        expected = torch.conv2d(inputs[row : row + 1], theirs, bias, padding=1)
        torch.testing.assert_close(outputs[row : row + 1], expected)
    assert len({tuple(row) for row in outputs.flatten(1).tolist()}) > 8  # of 16


def gradients(problem, estimator, repeats, generator):
    """Gradients of the expected loss by means and standard deviations, one row a repeat."""
    method = MeanField(estimator=estimator, initial_std=0.4)
    starts = starting_points(problem, None, [3])
    precisions = mean_field._precisions(problem)
    run = Run(method, problem, precisions, starts, [generator], None)
    rows = []
    for _ in range(repeats):
        (outputs,) = run._outputs(problem.train.inputs.unsqueeze(0))
        loss = -problem.likelihood.log_prob(outputs, problem.train.targets).mean()
        found = torch.autograd.grad(loss, list(run._leaves.values()))
        rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,)),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3, bias=False)
            ),
            (1, 4, 4),
        ),
    ],
)
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_gradients_are_unbiased_and_less_noisy(estimator, build, shape, double):
    """Against one draw a batch, 600 repeats of each.

    False alarms: 86 or 88 means are compared at 5 standard errors of their difference, beyond
    which one of them lies once in 20,000 seeds if they are Gaussian.  Variances are summed over
    all entries; batches of 32 make the difference plain.
    """
    problem = classification(build(), shape, rows=32)
    plain = gradients(problem, "shared", 600, seeded(1))
    found = gradients(problem, estimator, 600, seeded(2))
    error = ((plain.var(0) + found.var(0)) / 600).sqrt()
    assert float(((plain.mean(0) - found.mean(0)) / error).abs().max()) < 5
    assert float(found.var(0).sum()) < 0.5 * float(plain.var(0).sum())


def test_only_linear_layers_on_vectors_are_local():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.twice = nn.Linear(3, 3), nn.Linear(3, 3)
            self.scale = nn.Parameter(torch.ones(3))
            self.last = nn.Linear(3, 2)

        def forward(self, inputs):
            hidden = self.twice(self.twice(self.first(inputs))) * self.scale
            return self.last(hidden)

    found = local_layers(functionalise(Shared()), torch.randn(2, 3))
    assert found == {"first.weight", "first.bias", "last.weight", "last.bias"}
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2))
    assert local_layers(functionalise(convolution), torch.randn(2, 1, 5, 5)) == {
        "2.weight",
        "2.bias",
    }


def test_flipped_noise_reaches_convolutions_and_tokens_but_not_merged_examples():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.apart, self.merged = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs):
            each = self.apart(inputs)
            return self.merged(each.flatten(0, 1)).view(len(inputs), -1, 2).mean(1)

    problem = classification(Tokens(), (5, 4))
    assert noisy_layers(problem, "flipout") == {"apart.weight", "apart.bias"}
    assert noisy_layers(problem, "local") == frozenset()
    assert noisy_layers(problem, "shared") == frozenset()
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(18, 2))
    found = flippable_layers(functionalise(convolution), torch.randn(2, 1, 5, 5))
    assert found == {"0.weight", "2.weight", "2.bias"}


def test_means_can_be_trained_before():
    problem, mean, _ = linear_gaussian()
    method = MeanField(
        base=MaximumAPosteriori(optimiser=Adam(0.05)), epochs=1, optimiser=Adam(1e-6)
    )
    posterior = method.fit(problem, generator=seeded())
    torch.testing.assert_close(
        problem.network.layout.flatten(posterior.mean), mean, atol=0.02, rtol=0
    )


class DataDependentSum(nn.Linear):
    """A network that vmap cannot follow."""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if float(outputs.detach().sum()) != 0.5 else -outputs


ALONE = {
    "local": (MeanField(epochs=4, batch_size=8), perceptron, (4,), None),
    "flipout": (
        MeanField(epochs=4, batch_size=8, estimator="flipout"),
        convolutional,
        (1, 6, 6),
        None,
    ),
    "shared": (
        MeanField(epochs=4, batch_size=8, estimator="shared"),
        convolutional,
        (1, 6, 6),
        None,
    ),
    "trained before": (
        MeanField(epochs=4, base=MaximumAPosteriori(epochs=2)),
        lambda: perceptron(0.3),
        (4,),
        None,
    ),
    "learnt noise": (
        MeanField(epochs=4),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)),
        (4,),
        GaussianNoise(),
    ),
    "in turn": (MeanField(epochs=4, batch_size=8), lambda: DataDependentSum(4, 3), (4,), None),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("started", [False, True])
def test_modes_are_what_they_would_be_alone(name, started, double):
    method, build, shape, likelihood = ALONE[name]
    problem = classification(build(), shape, likelihood=likelihood)
    if likelihood is not None:
        problem = replace(problem, train=replace(problem.train, targets=torch.randn(23, 1)))
    start = problem.network.weights if started else None
    mixture = MultiMode(method, 3).fit(problem, start=start, generator=seeded(4))
    for part, seed in zip(mixture.components, member_seeds(3, seeded(4)), strict=True):
        alone = method.fit(problem, start=start, generator=seeded(seed))
        for ours, theirs in ((part.mean, alone.mean), (part.std, alone.std)):
            assert set(ours) == set(theirs)
            for key, tensor in theirs.items():
                torch.testing.assert_close(ours[key], tensor)
        assert part.report.diagnostics == pytest.approx(alone.report.diagnostics)
        if likelihood is not None:
            assert part.report.likelihood.std == pytest.approx(alone.report.likelihood.std)
    one, other = mixture.components[:2]
    assert not torch.equal(*(next(iter(part.mean.values())) for part in (one, other)))


@pytest.mark.parametrize("name", ALONE)
def test_modes_train_as_one_stack(name, monkeypatch, double):
    together, step = [], Run._step

    def noting(self, *args):
        together.append(self._together)
        return step(self, *args)

    monkeypatch.setattr(Run, "_step", noting)
    method, build, shape, _ = ALONE[name]
    module = build() if name != "learnt noise" else perceptron()
    problem = classification(module, shape)
    MultiMode(replace(method, epochs=2, batch_size=23), 3).fit(problem, generator=seeded())
    assert together == [name != "in turn"] * 2


def test_bad_input_is_refused():
    problem, _, _ = linear_gaussian()
    flat = type(problem)(problem.network, problem.likelihood, GaussianPrior(0.0), problem.train)
    with pytest.raises(CosetError, match="precision of zero"):
        MeanField().fit(flat, generator=seeded())
    with pytest.raises(CosetError, match="temperature"):
        MeanField(temperature=-1.0)
    with pytest.raises(CosetError, match="needed one of local, flipout, shared"):
        MeanField(estimator="global")
    with pytest.raises(CosetError, match="got a loss of"):
        MeanField(initial_std=1e200, epochs=2).fit(problem, generator=seeded())
