"""Laplace: evidence, invariance, subsets, bad input."""

import copy
import math

import pytest
import torch
from torch import nn

from coset import (
    KFAC,
    Bernoulli,
    ByEvidence,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    Gaussian,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    LastLayer,
    Linearised,
    LowRank,
    MonteCarlo,
    Subnetwork,
    fit,
    linearise,
    load,
    metrics,
    weights_of,
)
from coset.linalg import diagonal

CURVATURES = [Full(), KFAC(), KFAC(corrected=False), DiagonalOnly()]
pytestmark = pytest.mark.usefixtures("double")


def label(recipe):
    return type(recipe).__name__ + ("" if getattr(recipe, "corrected", True) else " plain")


def train(module, inputs, targets, steps=300, rate=2e-2):
    """Adam on the whole batch, with running statistics settled at the end."""
    optimiser = torch.optim.Adam(module.parameters(), rate)
    classes = not targets.is_floating_point()
    for _ in range(steps):
        optimiser.zero_grad()
        outputs = module(inputs)
        if classes:
            loss = nn.functional.cross_entropy(outputs, targets)
        else:
            loss = (outputs - targets).square().mean()
        loss.backward()
        optimiser.step()
    return module.eval()


def wave(rows=30):
    inputs = torch.linspace(-2, 2, rows).unsqueeze(1)
    return inputs, torch.sin(2 * inputs) + 0.1 * torch.randn(rows, 1)


def blobs(rows=60):
    targets = torch.arange(rows) % 3
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return centres[targets] + torch.randn(rows, 2), targets


def regressor():
    return nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))


def classifier():
    return nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3))


@pytest.fixture
def regression():
    data = wave()
    return train(regressor(), *data), data


@pytest.fixture
def classification():
    data = blobs()
    return train(classifier(), *data), data


def precision_of(predictor):
    """One a weight, in the order of the posterior."""
    layout = predictor.posterior.layout
    return predictor.prior.flat(layout, layout.flatten(predictor.posterior.mean))


def test_the_default_needs_two_arguments(classification):
    module, data = classification
    predictor = fit(module, data)
    assert isinstance(predictor.posterior, Gaussian)
    assert predictor.rule == Linearised()
    predictions = predictor(data[0])
    assert predictions.covariance.shape == (60, 3, 3)
    assert (predictions.mean.argmax(1) == data[1]).double().mean() > 0.8
    assert math.isfinite(predictor.log_evidence)
    assert predictor.posterior.layout.names == tuple(dict(module.named_parameters()))


@pytest.mark.parametrize("groups", ["single", "layer"])
def test_tuned_regression_has_the_evidence_of_the_tangent_model(regression, groups):
    module, data = regression
    predictor = fit(
        module, data, method=Laplace(Full(), tuning=ByEvidence(groups=groups)),
        likelihood=GaussianNoise(),
    )  # fmt: skip
    assert 0.05 < predictor.likelihood.std < 0.3
    tangent = linearise(module, data, predictor.likelihood)
    precision = precision_of(predictor)
    exact = float(tangent.log_evidence(precision))
    assert abs(predictor.log_evidence - exact) < 1e-8 * abs(exact) + 1e-8
    for factor in (0.8, 1.25):  # a maximum in all precisions together, and in the noise
        assert float(tangent.log_evidence(factor * precision)) < exact + 1e-6
        other = GaussianNoise(predictor.likelihood.std * factor)
        assert float(linearise(module, data, other).log_evidence(precision)) < exact


def test_each_precision_is_stationary(regression):
    module, data = regression
    method = Laplace(Full(), tuning=ByEvidence(groups="layer"))
    predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.1))
    tangent = linearise(module, data, GaussianNoise(0.1))
    precision, layout = precision_of(predictor), predictor.posterior.layout
    best = float(tangent.log_evidence(precision))
    for layer in ("0.", "2."):
        for factor in (0.9, 1.1):
            moved = precision.clone()
            for name in layout.names:
                if name.startswith(layer):
                    moved[layout.slices[name]] *= factor
            assert float(tangent.log_evidence(moved)) < best + 1e-6


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_nothing_is_tuned_without_tuning(regression, recipe):
    module, data = regression
    prior = GaussianPrior(3.0)
    predictor = fit(
        module, data, method=Laplace(recipe, tuning=None), likelihood=GaussianNoise(0.2),
        prior=prior,
    )  # fmt: skip
    assert predictor.prior == prior
    assert predictor.likelihood == GaussianNoise(0.2)
    if isinstance(recipe, Full):
        tangent = linearise(module, data, GaussianNoise(0.2))
        expected = float(tangent.log_evidence(3.0, mean="network"))
        assert predictor.log_evidence == pytest.approx(expected, rel=1e-9)
        covariance = predictor(data[0]).covariance[:, 0, 0]
        jacobian = tangent.jacobian.matrix
        inner = jacobian.mT @ jacobian / 0.04 + 3 * torch.eye(jacobian.shape[1])
        exact = (jacobian @ torch.linalg.solve(inner, jacobian.mT)).diagonal()
        torch.testing.assert_close(covariance, exact)


def test_a_precision_for_each_tensor(regression):
    module, data = regression
    tables = {name: 0.5 + i for i, (name, _) in enumerate(module.named_parameters())}
    for recipe in CURVATURES:
        predictor = fit(
            module, data, method=Laplace(recipe, tuning=None), likelihood=GaussianNoise(0.2),
            prior=GaussianPrior(tables),
        )  # fmt: skip
        assert math.isfinite(predictor.log_evidence)


class Normed(nn.Module):
    """A norm behind the second layer; the first keeps the input's scale."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second = nn.Linear(1, 6), nn.Linear(6, 5)
        self.norm, self.last = norm, nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.second(torch.tanh(self.first(x))))))


NORMS = {
    "batch": lambda: nn.BatchNorm1d(5, eps=1e-14),
    "layer": lambda: nn.LayerNorm(5, eps=1e-14),
}


def normed(kind):
    data = wave()
    return train(Normed(NORMS[kind]()), *data, steps=150), data


def rescaled(module, factors):
    """The same function with other normalised weights."""
    changed = copy.deepcopy(module)
    with torch.no_grad():
        changed.second.weight.mul_(factors.unsqueeze(1))
        changed.second.bias.mul_(factors)
        if isinstance(changed.norm, nn.BatchNorm1d):
            changed.norm.running_mean.mul_(factors)
            changed.norm.running_var.mul_(factors.square())
    return changed


def factors_for(kind, k):
    """Each filter by its own factor where the norm allows it."""
    return k ** torch.linspace(0.5, 1.5, 5) if kind == "batch" else torch.full((5,), k)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_normalised_weights_have_no_scale(kind, recipe):
    """Proposition 3: with one precision a normalised group, the scale k does not matter."""
    module, data = normed(kind)
    inputs = torch.linspace(-3, 3, 9).unsqueeze(1)
    found = []
    for k in (0.1, 1.0, 10.0):
        changed = rescaled(module, factors_for(kind, torch.tensor(k)))
        torch.testing.assert_close(changed(inputs), module(inputs))
        predictor = fit(changed, data, method=Laplace(recipe), likelihood=GaussianNoise())
        found.append(predictor)
    reference = found[1](inputs).variance
    for predictor, k in zip(found, (0.1, 1.0, 10.0), strict=True):
        torch.testing.assert_close(predictor(inputs).variance, reference, rtol=2e-4, atol=1e-9)
        factors = factors_for(kind, torch.tensor(k))
        scaled = torch.as_tensor(predictor.prior.of("second.weight", changed.second.weight))
        scaled = scaled * (factors.square().unsqueeze(1) if kind == "batch" else k**2)
        torch.testing.assert_close(
            scaled.expand(5, 1),
            found[1].prior.of("second.weight", changed.second.weight).expand(5, 1),
            rtol=1e-3,
            atol=0,
        )


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_a_given_precision_that_scales_along_gives_the_same_predictions(recipe):
    module, data = normed("batch")
    inputs = torch.linspace(-3, 3, 9).unsqueeze(1)
    variances = []
    for k in (1.0, 5.0):
        factors = factors_for("batch", torch.tensor(k))
        tables = {name: 2.0 for name, _ in module.named_parameters()}
        rows = torch.linspace(1, 3, 5) / factors.square()
        tables |= {"second.weight": rows.unsqueeze(1), "second.bias": rows}
        predictor = fit(
            rescaled(module, factors), data, method=Laplace(recipe, tuning=None),
            likelihood=GaussianNoise(0.1), prior=GaussianPrior(tables),
        )  # fmt: skip
        variances.append(predictor(inputs).variance)
    torch.testing.assert_close(variances[0], variances[1], rtol=1e-8, atol=0)


def test_a_single_precision_depends_on_the_scale():
    module, data = normed("batch")
    inputs = torch.linspace(-3, 3, 9).unsqueeze(1)
    method = Laplace(Full(), tuning=ByEvidence(groups="single"))
    spreads = [
        fit(rescaled(module, torch.full((5,), k)), data, method=method,
            likelihood=GaussianNoise())(inputs).variance
        for k in (0.1, 1.0)
    ]  # fmt: skip
    assert ((spreads[0] / spreads[1]).log().abs()).max() > 0.05


@pytest.mark.parametrize("mean", ["tangent", "network", "newton"])
@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("hessian", ["tangent", "network"])
def test_every_choice_for_classes(classification, mean, form, hessian):
    module, data = classification
    tuning = ByEvidence(mean=mean, form=form, hessian=hessian, groups="layer")
    for recipe in (KFAC(), Full(), DiagonalOnly(), LowRank(5)):
        predictor = fit(module, data, method=Laplace(recipe, tuning=tuning))
        assert math.isfinite(predictor.log_evidence)
        assert metrics.accuracy(predictor(data[0]).mean, data[1]) > 0.8


def test_classes_with_the_exact_curvature_have_the_evidence_of_the_tangent_model(classification):
    module, data = classification
    tuning = ByEvidence(form="full", hessian="network", groups="single")
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning))
    tangent = linearise(module, data)
    exact = float(tangent.log_evidence(precision_of(predictor), hessian="network"))
    assert predictor.log_evidence == pytest.approx(exact, rel=1e-7)


def test_evidence_at_the_mode_asks_for_a_larger_precision():
    """The point of recommendation 1, on a network trained to certainty."""
    torch.manual_seed(1)
    data = blobs(90)
    module = train(classifier(), *data, steps=1500)
    found = {
        mean: fit(module, data, method=Laplace(tuning=ByEvidence(mean=mean)))
        for mean in ("tangent", "network")
    }
    ratio = float(precision_of(found["tangent"])[0] / precision_of(found["network"])[0])
    assert ratio > 2
    test = blobs(600)
    scores = {
        mean: float(metrics.negative_log_likelihood(predictor(test[0]).mean, test[1]))
        for mean, predictor in found.items()
    }
    with torch.no_grad():
        plain = float(nn.functional.cross_entropy(module(test[0]), test[1]))
    assert scores["tangent"] < plain  # an over-confident network is improved


def test_validation_shrinks_the_covariance(classification):
    module, data = classification
    tuning = ByEvidence(mean="network", validation=data)
    predictor = fit(module, data, method=Laplace(tuning=tuning))
    factor = predictor.posterior.report.diagnostics["shrinkage"]
    assert 0 <= factor <= 1
    plain = fit(module, data, method=Laplace(tuning=ByEvidence(mean="network")))
    torch.testing.assert_close(
        predictor(data[0]).covariance, max(factor, 1e-12) * plain(data[0]).covariance
    )
    # on the data it was chosen with, it cannot lose against the network by itself
    own = metrics.negative_log_likelihood(predictor(data[0]).mean, data[1])
    assert own <= nn.functional.cross_entropy(module(data[0]), data[1]) + 1e-9


def test_other_likelihoods(regression):
    module, data = regression
    targets = (data[1] > 0).double()
    predictor = fit(module, (data[0], targets), likelihood=Bernoulli())
    assert ((predictor(data[0]).mean > 0) & (predictor(data[0]).mean < 1)).all()
    fixed = fit(module, data, likelihood=GaussianNoise(0.3))
    assert fixed.likelihood == GaussianNoise(0.3)
    kept = fit(
        module, data, likelihood=GaussianNoise(), method=Laplace(tuning=ByEvidence(noise=False))
    )
    residual = (module(data[0]) - data[1]).detach().square().mean().sqrt()
    assert kept.likelihood.std == pytest.approx(float(residual), rel=1e-6)


def test_parts_of_a_network(classification):
    module, data = classification
    predictor = fit(module, data, method=Laplace(Full(), subset="2.*"))
    assert predictor.posterior.layout.names == ("2.weight", "2.bias")
    drawn = predictor.posterior.sample(4, generator=torch.Generator().manual_seed(0))
    assert set(drawn) == {"2.weight", "2.bias"}
    assert drawn["2.weight"].shape == (4, 3, 12)
    assert predictor(data[0], rule=MonteCarlo(8)).members.shape == (8, 60, 3)


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_saved_and_loaded(classification, recipe, tmp_path):
    module, data = classification
    predictor = fit(module, data, method=Laplace(recipe))
    predictor.save(tmp_path / "laplace.safetensors")
    again = load(tmp_path / "laplace.safetensors", classifier())
    assert torch.equal(again(data[0]).mean, predictor(data[0]).mean)
    assert again.log_evidence == predictor.log_evidence
    assert again.rule == predictor.rule


def test_equal_calls_give_equal_results(classification):
    module, data = classification
    first, second = (fit(module, data)(data[0]).mean for _ in range(2))
    assert torch.equal(first, second)


def test_single_precision_agrees_with_double(classification):
    module, data = classification
    narrow = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3)).float()
    narrow.load_state_dict({k: v.float() for k, v in module.state_dict().items()})
    wide = fit(module, data)
    small = fit(narrow, (data[0].float(), data[1]))
    assert small(data[0].float()).mean.dtype == torch.float32
    assert small.log_evidence == pytest.approx(wide.log_evidence, abs=0.05)
    torch.testing.assert_close(
        small(data[0].float()).mean.double(), wide(data[0]).mean, atol=5e-3, rtol=0
    )


def test_an_under_confident_network_is_named():
    data = blobs(90)
    module = train(classifier(), *data, steps=30)  # hardly trained
    with torch.no_grad():
        module[2].weight.mul_(0.3)  # right, and far from sure
        module[2].bias.mul_(0.3)
    report = fit(module, data, method=Laplace(tuning=ByEvidence(mean="network"))).posterior.report
    assert any("under-confident" in line for line in report.warnings)


def test_bad_input(classification, regression):
    module, data = classification
    with pytest.raises(CosetError, match="groups='filters'"):
        ByEvidence(groups="filters")
    with pytest.raises(CosetError, match="fit no tensor"):
        fit(module, data, method=Laplace(subset="head.*"))
    with pytest.raises(CosetError, match="unknown size and tuning=None"):
        fit(regression[0], regression[1], likelihood=GaussianNoise(), method=Laplace(tuning=None))
    with pytest.raises(CosetError, match="precision of zero"):
        fit(module, data, method=Laplace(tuning=None), prior=GaussianPrior(0.0))
    broken = classifier()
    with torch.no_grad():
        broken[0].weight[0] = torch.nan
    with pytest.raises(CosetError, match="not finite"):
        fit(broken, data)


def test_the_module_is_left_alone(classification):
    module, data = classification
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fit(module.train(), data)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert Categorical() == fit(module, data).likelihood


def test_the_last_layer(classification):
    module, data = classification
    predictor = fit(module, data, method=Laplace(subset=LastLayer()))
    assert predictor.posterior.layout.names == ("2.weight", "2.bias")
    again = fit(module, data, method=Laplace(subset=("2.*",)))
    assert torch.equal(again(data[0]).mean, predictor(data[0]).mean)


@pytest.mark.parametrize("tuning", [None, ByEvidence(groups="layer")], ids=["kept", "tuned"])
def test_a_subnetwork_of_everything_is_the_network(regression, tuning):
    module, data = regression
    likelihood, prior = GaussianNoise(0.1), GaussianPrior(2.0)
    size = sum(p.numel() for p in module.parameters())
    whole, part = (
        fit(module, data, method=method, likelihood=likelihood, prior=prior)
        for method in (
            Laplace(Full(), tuning=tuning),
            Laplace(subset=Subnetwork(size), tuning=tuning),
        )
    )
    assert part.log_evidence == pytest.approx(whole.log_evidence, rel=1e-7)
    torch.testing.assert_close(part(data[0]).variance, whole(data[0]).variance, rtol=1e-5, atol=0)


def test_a_subnetwork_is_the_full_matrix_of_its_weights(regression):
    module, data = regression
    method = Laplace(subset=Subnetwork(7), tuning=None)
    predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.1))
    covariance = predictor.posterior.covariance
    tangent = linearise(module, data, GaussianNoise(0.1))
    columns = tangent.jacobian.matrix[:, covariance.index]
    inner = torch.linalg.inv(columns.mT @ columns / 0.01 + torch.eye(7))
    exact = (columns @ inner @ columns.mT).diagonal()
    torch.testing.assert_close(predictor(data[0]).covariance[:, 0, 0], exact)
    curvature = tangent.jacobian.matrix.square().sum(0)  # the smallest have the most variance
    expected = curvature.topk(7, largest=False).indices
    assert set(covariance.index.tolist()) == set(expected.tolist())
    layout = predictor.posterior.layout
    drawn = layout.flatten(predictor.posterior.sample(5, generator=torch.Generator()))
    still = torch.ones(layout.size, dtype=torch.bool)
    still[covariance.index] = False
    centre = layout.flatten(predictor.posterior.mean)
    assert torch.equal(drawn[:, still], centre[still].expand(5, -1))
    assert (drawn[:, covariance.index] != centre[covariance.index]).all()


def test_the_largest_variances_capture_more_than_chance(regression, tmp_path):
    module, data = regression

    def captured(score):
        method = Laplace(subset=Subnetwork(10, score), tuning=None)
        predictor = fit(module, data, method=method, likelihood=GaussianNoise(0.1))
        predictor.save(tmp_path / "sub.safetensors")
        again = load(tmp_path / "sub.safetensors", regressor())
        assert torch.equal(again(data[0]).variance, predictor(data[0]).variance)
        return float(diagonal(predictor.posterior.covariance).sum())

    assert captured("wasserstein") > captured("random")


def test_bad_subsets(regression):
    module, data = regression
    with pytest.raises(CosetError, match="needed at most"):
        fit(module, data, method=Laplace(subset=Subnetwork(10_000)), likelihood=GaussianNoise())
    with pytest.raises(CosetError, match="at least one"):
        Subnetwork(0)
    with pytest.raises(CosetError, match="score"):
        Subnetwork(3, score="largest")
    moved = {name: tensor + 1 for name, tensor in weights_of(module).items()}
    with pytest.raises(CosetError, match="differs from the module's"):
        fit(module, data, method=Laplace(subset="2.*"), likelihood=GaussianNoise(), start=moved)
    predictor = fit(module, data, likelihood=GaussianNoise(), start=moved)
    assert torch.equal(predictor.posterior.mean["0.weight"], moved["0.weight"])
