"""Precisions by expectation maximisation, and the evidence, against dense formulas."""

from functools import cache

import pytest
import torch
from sampled_problems import EXACT, data, dense_of, likelihood, perceptron, problem_of, trained
from torch import nn

from coset import (
    ByEvidence,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    MultivariateNoise,
    fit,
    linearise,
)
from coset.curvature.matrix_free import (
    ConjugateGradients,
    LanczosQuadrature,
    MatrixFree,
    StochasticDescent,
)
from coset.inference.laplace.groups import group_weights

pytestmark = pytest.mark.usefixtures("double")

CRUDE = ConjugateGradients(tolerance=1e-3)


def case(kind):
    pair = data(kind)
    return trained(perceptron(), pair, likelihood(kind)), pair


def tuned(module, pair, given, generator, *, samples=300, solver=CRUDE, **settings):
    """A fit, and the precision of each weight that it found."""
    tuning = ByEvidence(**settings)
    method = Laplace(curvature=MatrixFree(samples, solver), tuning=tuning)
    predictor = fit(module, pair, method=method, likelihood=given, generator=generator)
    layout = predictor.network.layout
    return predictor, predictor.prior.flat(layout, layout.flatten(predictor.network.weights))


def macKay_gap(module, pair, given, flat, groups, form):
    """``γ_g`` and ``λ_g |θ*_g|²`` at the precisions found, from dense matrices."""
    problem = problem_of(module, pair, given)
    tangent = linearise(module, pair, given)
    mode = tangent.find_mode(flat, form)
    classes = not isinstance(given, GaussianNoise)
    dense = dense_of(problem, pair[0], mode.outputs if classes else None)
    terms = (dense.curvature @ dense.covariance(flat)).diagonal(), flat * mode.flat.square()
    count = len(groups.names)
    return [torch.zeros(count).index_add_(0, groups.labels, term) for term in terms]


@pytest.mark.parametrize(
    ("kind", "grouping", "form"),
    [
        ("regression", "single", "simple"),
        ("regression", "layer", "full"),
        ("classes", "single", "simple"),
        ("classes", "layer", "full"),
    ],
)
def test_the_end_is_a_fixed_point_of_the_dense_updates(kind, grouping, form, generator):
    """``γ_g = λ_g |θ*_g|²``, but for the error of γ from 300 samples.

    A group of γ effective weights has a standard error of about √(2 γ / 300), a little more where
    groups share directions; what is allowed is five of that and the step at which updates stop.
    """
    module, pair = case(kind)
    given = likelihood(kind)
    predictor, flat = tuned(
        module, pair, given, generator, groups=grouping, form=form, hessian="tangent", steps=20
    )
    groups = group_weights(
        problem_of(module, pair, given), predictor.network.layout, grouping, rows=False
    )
    gamma, pull = macKay_gap(module, pair, given, flat, groups, form)
    allowed = 5 * (2 * gamma / 300).sqrt() + 0.02 * gamma + 0.05
    assert bool(((gamma - pull).abs() < allowed).all()), (gamma, pull)


def test_noise_of_a_known_covariance_is_that_of_a_regression():
    """Where nothing is correlated it is plain noise, to the last sample."""
    module, pair = case("regression")
    plain, rich = (
        tuned(module, pair, given, torch.Generator().manual_seed(0), samples=20)[1]
        for given in (GaussianNoise(0.3), MultivariateNoise(0.09 * torch.eye(2)))
    )
    torch.testing.assert_close(plain, rich, rtol=1e-3, atol=0)


def test_noise_and_precision_are_those_of_the_exact_evidence(generator):
    """300 samples against the dense fit, whose updates have the same fixed point."""
    module, pair = case("regression")
    predictor, flat = tuned(module, pair, GaussianNoise(), generator, groups="single")
    exact = fit(
        module,
        pair,
        method=Laplace(curvature=Full(), tuning=ByEvidence(groups="single")),
        likelihood=GaussianNoise(),
    )
    assert predictor.likelihood.std == pytest.approx(exact.likelihood.std, rel=0.03)
    other = exact.posterior.report.diagnostics
    assert float(flat[0]) == pytest.approx(other["median_precision"], rel=0.1)
    assert predictor.posterior.report.diagnostics["effective_weights"] == pytest.approx(
        other["effective_weights"], rel=0.1
    )


@pytest.mark.parametrize("kind", ["regression", "classes"])
@pytest.mark.parametrize("mean", ["tangent", "network"])
def test_the_log_evidence_lies_within_four_standard_errors(kind, mean, generator):
    """By chance outside once in some 10,000 seeds."""
    module, pair = case(kind)
    given = likelihood(kind)
    curvature = MatrixFree(50, EXACT, evidence=LanczosQuadrature(probes=50, steps=15))
    tuning = ByEvidence(groups="single", mean=mean, steps=2)
    predictor = fit(
        module,
        pair,
        method=Laplace(curvature=curvature, tuning=tuning),
        likelihood=given,
        generator=generator,
    )
    settled = tuning.settled(given.link)
    tangent = linearise(module, pair, given)
    exact = float(
        tangent.log_evidence(predictor.prior, mean=mean, form=settled.form, hessian=settled.hessian)
    )
    error = predictor.posterior.report.diagnostics["log_evidence_error"]
    assert predictor.log_evidence == pytest.approx(exact, abs=4 * error)
    assert error < 1


def test_without_tuning_the_prior_is_kept(generator):
    module, pair = case("regression")
    given = GaussianNoise(0.3)
    prior = GaussianPrior({"0.weight": 1.0, "0.bias": 1.0, "2.weight": 4.0, "2.bias": 9.0})
    curvature = MatrixFree(50, EXACT, evidence=LanczosQuadrature(probes=100, steps=15))
    predictor = fit(
        module,
        pair,
        method=Laplace(curvature=curvature, tuning=None),
        likelihood=given,
        prior=prior,
        generator=generator,
    )
    assert predictor.prior is prior
    exact = float(linearise(module, pair, given).log_evidence(prior, mean="network"))
    error = predictor.posterior.report.diagnostics["log_evidence_error"]
    assert predictor.log_evidence == pytest.approx(exact, abs=4 * error)


def test_descent_finds_the_precision_of_conjugate_gradients(generator):
    """From the same random numbers; its curvature is a round behind, so it takes more steps."""
    module, pair = case("classes")
    solver, options = StochasticDescent(epochs=30, batch=12), {"samples": 10, "steps": 20}
    _, rough = tuned(module, pair, likelihood("classes"), generator, solver=solver, **options)
    generator = torch.Generator().manual_seed(0)
    _, exact = tuned(module, pair, likelihood("classes"), generator, **options)
    assert float(rough[0]) == pytest.approx(float(exact[0]), rel=0.25)


def test_one_newton_step_is_the_mode_of_a_regression(generator):
    module, pair = case("regression")
    options = {"groups": "single", "steps": 2, "samples": 20}
    _, newton = tuned(module, pair, GaussianNoise(0.3), generator, mean="newton", **options)
    generator = torch.Generator().manual_seed(0)
    _, tangent = tuned(module, pair, GaussianNoise(0.3), generator, mean="tangent", **options)
    torch.testing.assert_close(newton, tangent, rtol=1e-2, atol=0)


class Normed(nn.Module):
    """A layer in front of a batch norm, whose scale the norm divides out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 4, bias=False)
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def normed(factor):
    """The same function with the normalised weights ``factor`` times as long."""
    torch.manual_seed(3)
    pair = data("classes")
    module = Normed()
    module.train()
    for _ in range(30):
        module(pair[0])
    module = trained(module.eval(), pair, likelihood("classes"), steps=50)
    module.norm.eps = 0.0  # which would break the invariance a little
    module.first.weight *= factor
    module.norm.running_mean *= factor
    module.norm.running_var *= factor**2
    return module, pair


@cache
def spread(factor, features, grouping, tuning=True):
    module, pair = normed(factor)
    settings = ByEvidence(groups=grouping, steps=2) if tuning else None
    method = Laplace(curvature=MatrixFree(5, EXACT, features), tuning=settings)
    predictor = fit(module, pair, method=method, generator=torch.Generator().manual_seed(0))
    return predictor.posterior.output_moments(predictor.network, pair[0][:6])[1]


@pytest.mark.parametrize(
    ("features", "grouping", "factor"),
    [("normalised", "single", 0.1), ("normalised", "single", 10.0), ("raw", "normalised", 10.0)],
)
def test_predictions_do_not_depend_on_the_scale_of_normalised_weights(features, grouping, factor):
    """Proposition 3 of Antorán et al. (2022): with equal random numbers, to rounding."""
    found = [spread(k, features, grouping) for k in (1.0, factor)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-10)


def test_with_one_precision_for_raw_weights_they_do():
    found = [spread(k, "raw", "single") for k in (1.0, 10.0)]
    assert float((found[0] - found[1]).norm() / found[0].norm()) > 0.1


def test_the_g_prior_alone_is_invariant_without_tuning():
    found = [spread(k, "normalised", "single", tuning=False) for k in (1.0, 10.0)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-12)


def test_held_out_data_may_take_the_covariance_away(generator):
    """A network without training is under-confident already: nothing is added."""
    module, pair = perceptron(), data("classes")
    options = {"samples": 3, "steps": 1, "validation": data("classes")}
    predictor, _ = tuned(module, pair, likelihood("classes"), generator, **options)
    factor = predictor.posterior.report.diagnostics["covariance_factor"]
    assert factor == 0
    torch.testing.assert_close(predictor(pair[0]).mean, module(pair[0]).softmax(1).detach())


@pytest.mark.parametrize("mean", ["network", "tangent"])
def test_filters_that_sleep_on_all_data_keep_the_scale_of_their_weights(mean, generator):
    module = nn.Sequential(
        nn.Linear(4, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3)
    )
    inputs, targets = torch.randn(60, 4), torch.randint(3, (60,))
    for _ in range(30):
        module(inputs)  # running statistics
    module[1].bias.data[:4] = -8.0
    tuning = ByEvidence(mean=mean)
    method = Laplace(MatrixFree(32, features="raw"), tuning=tuning)
    predictor = fit(module.eval(), (inputs, targets), method=method, generator=generator)
    found = predictor.posterior.report.prior.precision["0.weight"].flatten()[:4]
    torch.testing.assert_close(found, 4 / module[0].weight[:4].detach().square().sum(1))
