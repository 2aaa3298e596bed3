"""The tangent model against closed forms."""

import math

import pytest
import torch
from curvature_networks import brute_jacobian, build
from torch import nn

from coset import (
    ByEvidence,
    Categorical,
    CosetError,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    fit,
    functionalise,
    linearise,
)
from coset.curvature.jacobian import Jacobian
from coset.linalg import Dense, dense

pytestmark = pytest.mark.usefixtures("double")


def regression(rows):
    module = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    return module, torch.randn(rows, 2), torch.randn(rows, 2)


def gaussian_log_density(residual, covariance):
    factor = torch.linalg.cholesky(covariance)
    solved = torch.cholesky_solve(residual.unsqueeze(1), factor).squeeze(1)
    log_det = 2 * factor.diagonal().log().sum()
    return -(residual @ solved + log_det + len(residual) * math.log(2 * math.pi)) / 2


@pytest.mark.parametrize("rows", [5, 40])  # fewer outputs than weights, and more
@pytest.mark.parametrize("form", ["full", "simple"])
def test_evidence_is_that_of_the_tangent_gaussian_process(rows, form):
    module, inputs, targets = regression(rows)
    tangent = linearise(module, (inputs, targets), GaussianNoise(0.3))
    network = functionalise(module)
    jacobian = brute_jacobian(network, network.layout, inputs).flatten(0, 1)
    precision = torch.rand(network.layout.size) + 0.5
    covariance = jacobian / precision @ jacobian.mT + 0.09 * torch.eye(len(jacobian))
    flat = network.layout.flatten(network.weights)
    offset = (network.apply(network.weights, inputs).flatten() - jacobian @ flat) * (form == "full")
    exact = gaussian_log_density(targets.flatten() - offset, covariance)
    found = tangent.log_evidence(precision, form=form)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("precision", [0.1, 1.7])
def test_the_mode_of_classes_is_exact(precision, form):
    """The gradient of the log-joint, by automatic differentiation, vanishes there to rounding."""
    module, inputs, _ = regression(30)
    targets = torch.arange(30) % 2
    tangent = linearise(module, (inputs, targets), Categorical())
    network = functionalise(module)
    jacobian = brute_jacobian(network, network.layout, inputs)
    flat = network.layout.flatten(tangent.mode(precision, form)).requires_grad_()
    own = network.layout.flatten(network.weights)
    away = flat - own if form == "full" else flat
    outputs = jacobian @ away + (network.apply(network.weights, inputs) if form == "full" else 0)
    loss = nn.functional.cross_entropy(outputs, targets, reduction="sum")
    (gradient,) = torch.autograd.grad(loss + precision / 2 * flat @ flat, flat)
    assert gradient.abs().max() < 1e-10


@pytest.mark.parametrize("precision", [1.0, 1e-3])
def test_single_precision_has_the_evidence_of_double(precision):
    """Inputs on a plane leave most directions to the prior, which single precision would lose."""
    plane = torch.randn(300, 2)
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1))
    data = plane @ torch.randn(2, 12), torch.sin(plane[:, :1])
    exact = linearise(module, data, GaussianNoise(0.01)).log_evidence(precision)
    rounded = linearise(module.float(), [x.float() for x in data], GaussianNoise(0.01))
    torch.testing.assert_close(rounded.log_evidence(precision), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize("rows", [5, 40])
def test_the_mode_has_a_closed_form_for_regression(rows):
    module, inputs, targets = regression(rows)
    tangent = linearise(module, (inputs, targets), GaussianNoise(0.3))
    layout, flat = tangent.layout, tangent.layout.flatten(tangent.weights)
    jacobian = tangent.jacobian.matrix
    precision = torch.rand(layout.size) + 0.5
    system = jacobian.mT @ jacobian / 0.09 + torch.diag(precision)
    for form, offset in (("full", tangent.outputs.flatten() - jacobian @ flat), ("simple", 0.0)):
        target = jacobian.mT @ (targets.flatten() - offset) / 0.09
        expected = torch.linalg.solve(system, target)
        found = layout.flatten(tangent.mode(layout_prior(layout, precision), form))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def layout_prior(layout, precision):
    return GaussianPrior(layout.unflatten(precision))


def test_correction_identity():
    """M at the mode = M at the network + ½ gᵀ (H + Λ)⁻¹ g, for regression."""
    module, inputs, targets = regression(20)
    tangent = linearise(module, (inputs, targets), GaussianNoise(0.3))
    at_mode = tangent.log_evidence(2.0)
    torch.testing.assert_close(tangent.log_evidence(2.0, mean="newton"), at_mode)
    assert tangent.log_evidence(2.0, mean="network") < at_mode


@pytest.mark.parametrize("form", ["full", "simple"])
def test_the_mode_of_classes_has_no_gradient(form):
    module, inputs = build("mlp", 30)
    targets = torch.randint(0, 3, (30,))
    tangent = linearise(module, (inputs, targets))
    mode = tangent.mode(0.1, form)
    flat = tangent.layout.flatten(mode).requires_grad_()
    centre = tangent.layout.flatten(tangent.weights)
    moved = tangent.jacobian.matrix @ (flat - centre if form == "full" else flat)
    outputs = moved.reshape(30, 3) + (tangent.outputs if form == "full" else 0)
    loss = nn.functional.cross_entropy(outputs, targets, reduction="sum")
    (gradient,) = torch.autograd.grad(loss + 0.05 * flat.square().sum(), flat)
    assert gradient.abs().max() < 1e-5


def test_products_without_the_matrix():
    module, inputs = build("convolutions", 5)
    targets = torch.randint(0, 3, (5,))
    tangent = linearise(module, (inputs, targets))
    free = Jacobian.of(tangent.problem, tangent.weights, tangent.layout, tangent.outputs, kept=0)
    assert free.matrix is None
    torch.testing.assert_close(dense(free, like=inputs), tangent.jacobian.matrix)
    torch.testing.assert_close(dense(free.adjoint(), like=inputs), tangent.jacobian.matrix.mT)
    vector = torch.randn(tangent.layout.size)
    torch.testing.assert_close(free @ vector, tangent.jacobian.matrix @ vector)


def test_conjugate_gradients_find_the_same_mode():
    from dataclasses import replace

    module, inputs = build("mlp", 20)
    targets = torch.randint(0, 3, (20,))
    tangent = linearise(module, (inputs, targets))
    free = Jacobian.of(tangent.problem, tangent.weights, tangent.layout, tangent.outputs, kept=0)
    iterative = replace(tangent, jacobian=free)
    precision = torch.full((tangent.layout.size,), 0.5)
    near = Dense(torch.eye(tangent.layout.size))
    found = iterative.find_mode(precision, preconditioner=near, iterations=100)
    expected = tangent.find_mode(precision)
    torch.testing.assert_close(found.flat, expected.flat, rtol=1e-4, atol=1e-5)
    with pytest.raises(CosetError, match="too large for exact"):
        iterative.log_evidence(1.0)


def test_classes_evidence_is_close_to_numerical_integration():
    """One weight, so that the integral over it can be done on a grid."""
    module = nn.Linear(1, 1, bias=False)
    inputs, targets = torch.randn(30, 1), torch.randint(0, 2, (30, 1)).double()
    from coset import Bernoulli

    tangent = linearise(module, (inputs, targets), Bernoulli())
    grid = torch.linspace(-8, 8, 4001).unsqueeze(1)
    log_joint = (
        torch.stack([Bernoulli().log_prob(inputs * w, targets).sum() for w in grid])
        - grid.squeeze(1).square() / 2
        - math.log(2 * math.pi) / 2
    )
    exact = torch.logsumexp(log_joint, 0) + math.log(16 / 4000)
    assert abs(tangent.log_evidence(1.0) - exact) < 0.02  # Laplace's own error


def test_bad_precisions_are_refused():
    module, inputs, targets = regression(5)
    tangent = linearise(module, (inputs, targets), GaussianNoise(0.3))
    with pytest.raises(CosetError, match="precision of zero"):
        tangent.mode(0.0)
    with pytest.raises(CosetError, match="form"):
        tangent.mode(1.0, form="other")


@pytest.mark.parametrize("mean", ["tangent", "network", "newton"])
@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("classes", [True, False])
def test_gradients_of_the_evidence_in_the_precisions(mean, form, classes):
    """One precision a tensor, in logarithms; for regression the noise as well."""
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs = torch.randn(9, 2)
    targets = torch.arange(9) % 3 if classes else torch.randn(9, 3)
    names = list(dict(module.named_parameters()))

    def evidence(logs, log_noise):
        likelihood = Categorical() if classes else GaussianNoise(log_noise.exp())
        tangent = linearise(module, (inputs, targets), likelihood)
        return tangent.log_evidence(dict(zip(names, logs.exp(), strict=True)), mean, form)

    logs = torch.tensor([0.3, -0.2, 0.5, 0.1], requires_grad=True)
    noise = torch.tensor(-0.3, requires_grad=not classes)
    assert torch.autograd.gradcheck(evidence, (logs, noise), eps=1e-5, atol=1e-5)


def test_the_output_curvature_of_the_evidence_is_taken_where_it_is_asked_for():
    module, inputs = build("mlp", 30)
    tangent = linearise(module, (inputs, torch.randint(0, 3, (30,))))
    at_mode = tangent.log_evidence(0.1, hessian="tangent")
    torch.testing.assert_close(at_mode, tangent.log_evidence(0.1))
    assert not torch.isclose(at_mode, tangent.log_evidence(0.1, hessian="network"))


@pytest.mark.parametrize("mean", ["network", "newton", "tangent"])
@pytest.mark.parametrize("form", ["full", "simple"])
def test_the_output_curvature_at_the_network_is_that_of_its_own_outputs(mean, form):
    """As a fit takes it: also in the simple form, whose own outputs at the network are others."""
    module, inputs = build("mlp", 30)
    data = inputs, torch.randint(0, 3, (30,))
    tuning = ByEvidence(mean=mean, form=form, hessian="network", groups="single")
    predictor = fit(module, data, method=Laplace(Full(), tuning=tuning))
    value = linearise(module, data).log_evidence(predictor.prior, mean, form, hessian="network")
    assert float(value) == pytest.approx(predictor.log_evidence, abs=1e-8)


def test_slips_of_the_pen_are_named():
    module, inputs = build("mlp", 30)
    tangent = linearise(module, (inputs, torch.randint(0, 3, (30,))))
    for slip in ({"mean": "map"}, {"form": "linear"}, {"hessian": "mode"}):
        with pytest.raises(CosetError, match=next(iter(slip.values()))):
            tangent.log_evidence(0.1, **slip)


def test_one_pattern_may_stand_by_itself():
    module, inputs = build("mlp", 30)
    data = inputs, torch.randint(0, 3, (30,))
    last = [n for n, _ in module.named_parameters()][-1].rpartition(".")[0]
    alone, several = (linearise(module, data, subset=p) for p in (f"{last}.*", (f"{last}.*",)))
    assert alone.layout == several.layout
    assert alone.layout.size < sum(p.numel() for p in module.parameters())


def test_every_pattern_must_fit_something():
    module, inputs = build("mlp", 30)
    data = inputs, torch.randint(0, 3, (30,))
    with pytest.raises(CosetError, match=r"'2\.wieght', which fits no parameter.*2\.weight"):
        linearise(module, data, subset=("0.*", "2.wieght"))


@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e4])
def test_the_mode_of_a_saturated_network_is_found(form, size):
    """Logits in the thousands have no curvature: Newton steps are too long by powers of ten."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        module[2].weight *= size
    inputs, targets = torch.randn(12, 4).double(), torch.randint(0, 3, (12,))
    tangent = linearise(module, (inputs, targets))
    flat = tangent.layout.flatten(tangent.weights)
    precision = torch.full_like(flat, len(flat) / float(flat.square().sum()))
    mode = tangent.find_mode(precision, form)
    assert mode.converged
    assert tangent.log_joint(mode, precision) >= tangent.log_joint(tangent.start(form), precision)
    slope = tangent.gradient(mode, precision).norm()
    assert slope < 1e-4 * tangent.gradient(tangent.start(form), precision).norm()


def test_it_is_printed_in_a_few_lines():
    module = nn.Linear(3, 2)
    tangent = linearise(module, (torch.randn(50, 3), torch.randint(2, (50,))), Categorical())
    assert "Jacobian(shape=(100, 8), formed)" in repr(tangent)
    assert len(repr(tangent)) < 1000


@pytest.mark.parametrize("masked", [False, True])
def test_hessians_of_a_few_examples_at_a_time_are_those_of_all(masked, monkeypatch):
    pictures, labels = torch.randn(7, 2, 3, 4), torch.randint(3, (7, 3, 4))
    if masked:
        labels[:2] = 255
    likelihood = Categorical(ignore=255)
    tangent = linearise(nn.Conv2d(2, 3, 1), (pictures, labels), likelihood)
    changes = torch.randn(2, tangent.outputs.numel())
    moved = tangent.outputs + changes.sum(0).reshape(tangent.outputs.shape)
    probabilities = moved.softmax(1)
    each = changes.reshape(2, 7, 3, 3, 4)
    mean = (probabilities * each).sum(2, keepdim=True)
    counts = (labels != 255).unsqueeze(1)
    expected = torch.einsum("anchw,bnchw->ab", counts * probabilities * (each - mean), each)
    for entries in (1 << 24, 2 * 36 * 3, 1):
        monkeypatch.setattr("coset.curvature.tangent._HESSIANS", entries)
        torch.testing.assert_close(tangent.curve_along(moved, changes), expected)
        value = tangent.exact_log_likelihood(moved)
        assert value == pytest.approx(float(tangent.log_likelihood(moved)), rel=1e-12)
        with torch.no_grad():
            slope = tangent.slope(moved)
        hot = nn.functional.one_hot(labels % 255 % 3, 3).movedim(-1, 1)
        torch.testing.assert_close(slope, counts * (probabilities - hot))
