"""Correlated noise against torch's own density and finite differences of the evidence."""

import pytest
import torch
from torch import nn

from coset import (
    KFAC,
    ByEvidence,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    Laplace,
    LowRank,
    MonteCarlo,
    MultivariateNoise,
    Subnetwork,
    fit,
    linearise,
    load,
)

pytestmark = pytest.mark.usefixtures("double")
COVARIANCE = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)


def data(rows=40):
    inputs = torch.randn(rows, 2)
    noise = torch.randn(rows, 2) @ torch.linalg.cholesky(COVARIANCE).mT
    return inputs, torch.stack([inputs[:, 0], inputs.sum(1)], 1) + noise


def network():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


def trained(module, pair):
    optimiser = torch.optim.Adam(module.parameters(), 2e-2)
    for _ in range(400):
        optimiser.zero_grad()
        (module(pair[0]) - pair[1]).square().mean().backward()
        optimiser.step()
    return module


@pytest.mark.parametrize("pixels", [(), (3, 2)])
def test_density_and_its_hessian(pixels):
    likelihood = MultivariateNoise(COVARIANCE)
    outputs, targets = torch.randn(5, 2, *pixels), torch.randn(5, 2, *pixels)
    normal = torch.distributions.MultivariateNormal(outputs.movedim(1, -1), COVARIANCE)
    expected = normal.log_prob(targets.movedim(1, -1)).reshape(5, -1).sum(1)
    torch.testing.assert_close(likelihood.log_prob(outputs, targets), expected)
    root = likelihood.hessian_root(outputs)
    assert root.shape == (5, *pixels, 2, 2)
    torch.testing.assert_close(root @ root.mT, COVARIANCE.inverse().expand_as(root))
    torch.testing.assert_close(likelihood.hessian(outputs), root @ root.mT)
    torch.testing.assert_close(
        likelihood.noise_variance(outputs).movedim(1, -1),
        COVARIANCE.diagonal().expand(5, *pixels, 2),
    )


@pytest.mark.parametrize("recipe", [Full(), KFAC()], ids=repr)
@pytest.mark.parametrize("tuning", [None, ByEvidence()], ids=["kept", "tuned"])
def test_without_correlation_it_is_plain_noise(recipe, tuning):
    module, pair = network(), data()
    plain, rich = (
        fit(module, pair, method=Laplace(recipe, tuning=tuning), likelihood=likelihood)
        for likelihood in (GaussianNoise(0.5), MultivariateNoise(0.25 * torch.eye(2)))
    )
    assert rich.log_evidence == pytest.approx(plain.log_evidence, rel=1e-6)
    torch.testing.assert_close(rich(pair[0]).covariance, plain(pair[0]).covariance, rtol=1e-4,
                               atol=1e-8)  # fmt: skip
    torch.testing.assert_close(rich(pair[0]).variance, plain(pair[0]).variance, rtol=1e-4,
                               atol=1e-8)  # fmt: skip


def test_the_evidence_is_that_of_the_tangent_model():
    module, pair = network(), data()
    likelihood = MultivariateNoise(COVARIANCE)
    predictor = fit(module, pair, method=Laplace(Full()), likelihood=likelihood)
    tangent = linearise(module, pair, likelihood)
    exact = float(tangent.log_evidence(predictor.prior))
    assert predictor.log_evidence == pytest.approx(exact, rel=1e-7)
    for factor in (0.9, 1.1):
        scaled = {n: factor * torch.as_tensor(p) for n, p in predictor.prior.precision.items()}
        assert float(tangent.log_evidence(scaled)) < exact + 1e-6


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_learnt_covariance_is_stationary(diagonal):
    """No small change of any entry raises the exact evidence of a network that is trained."""
    pair = data()
    module = trained(network(), pair)
    likelihood = MultivariateNoise(diagonal=diagonal)
    predictor = fit(module, pair, method=Laplace(Full()), likelihood=likelihood)
    learnt = predictor.likelihood.covariance
    best = float(linearise(module, pair, predictor.likelihood).log_evidence(predictor.prior))
    assert predictor.log_evidence == pytest.approx(best, rel=1e-5)
    changes = [torch.tensor([[1.0, 0], [0, 0]]), torch.tensor([[0.0, 0], [0, 1]])]
    if diagonal:
        assert float(learnt[0, 1]) == 0
    else:
        changes.append(torch.tensor([[0.0, 1], [1, 0]]))
        assert float(learnt[0, 1]) > 0
    for change in changes:
        for step in (-0.02, 0.02):
            other = MultivariateNoise(learnt + step * change)
            assert float(linearise(module, pair, other).log_evidence(predictor.prior)) < best


@pytest.mark.parametrize("axis", [True, False], ids=["(n, 1)", "(n,)"])
@pytest.mark.parametrize("recipe", [KFAC(), Full()], ids=repr)
@pytest.mark.parametrize(
    "tuning",
    [ByEvidence(), ByEvidence(form="simple"), ByEvidence(noise=False), ByEvidence(mean="network")],
    ids=["tangent", "simple", "residuals", "network"],
)
def test_learnt_for_one_output_it_is_plain_noise(tuning, recipe, axis):
    inputs, targets = data()
    pair = inputs, targets[:, :1]
    module = trained(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), pair)
    given = pair if axis else (inputs, targets[:, 0])
    plain, rich = (
        fit(module, given, method=Laplace(recipe, tuning=tuning), likelihood=likelihood)
        for likelihood in (GaussianNoise(), MultivariateNoise())
    )
    assert float(rich.likelihood.covariance) == pytest.approx(plain.likelihood.std**2, rel=1e-3)
    assert rich.log_evidence == pytest.approx(plain.log_evidence, abs=1e-4)


@pytest.mark.parametrize("recipe", [KFAC(), LowRank(4), DiagonalOnly()], ids=repr)
@pytest.mark.parametrize("mean", ["tangent", "network"])
def test_learnt_for_one_output_of_a_large_problem_it_is_plain_noise(recipe, mean, monkeypatch):
    """Where evidence is that of the structure: what it leaves out says nothing of the noise."""
    monkeypatch.setattr("coset.curvature.tangent.DIRECT", 0)
    inputs, targets = data(200)
    pair = inputs, targets[:, :1]
    module = trained(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), pair)
    method = Laplace(recipe, tuning=ByEvidence(mean=mean))
    plain, rich = (
        fit(module, pair, method=method, likelihood=likelihood)
        for likelihood in (GaussianNoise(), MultivariateNoise())
    )
    assert float(rich.likelihood.covariance) == pytest.approx(plain.likelihood.std**2, rel=0.01)


def test_a_learnt_covariance_does_not_depend_on_the_structure_of_the_posterior():
    """Of a small regression, whose evidence is exact: not on the way its covariance is kept."""
    pair = data()
    module = trained(network(), pair)
    full, other = (
        fit(module, pair, method=Laplace(recipe), likelihood=MultivariateNoise())
        for recipe in (Full(), KFAC())
    )
    torch.testing.assert_close(full.likelihood.covariance, other.likelihood.covariance)
    assert other.log_evidence == pytest.approx(full.log_evidence, rel=1e-9)


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_learnt_covariance_covers_the_residuals_of_the_network(diagonal):
    """Of one that is not trained, whose tangent model fits far better."""
    module, pair = network(), data()
    predictor = fit(module, pair, likelihood=MultivariateNoise(diagonal=diagonal))
    residuals = (pair[1] - module(pair[0])).detach()
    moment = residuals.mT @ residuals / len(residuals)
    covariance = predictor.likelihood.covariance
    if diagonal:
        assert (covariance.diagonal() >= moment.diagonal() * (1 - 1e-9)).all()
    else:
        assert torch.linalg.eigvalsh(covariance - moment).min() > -1e-9


def test_the_least_noise_that_covers_residuals():
    """What is covered stays; along one direction too small, only that one grows."""
    noise = MultivariateNoise(COVARIANCE)
    small = torch.linalg.cholesky(0.9 * COVARIANCE).mT * 2**0.5  # two rows: their mean is 0.9 C
    torch.testing.assert_close(noise.at_least(small).covariance, COVARIANCE)
    along = torch.tensor([[2.0, 0.0]])
    raised = noise.at_least(along).covariance
    share = along @ COVARIANCE.inverse() @ along.mT
    torch.testing.assert_close(along @ raised.inverse() @ along.mT, torch.ones(1, 1))
    grown = torch.linalg.eigvals(raised @ COVARIANCE.inverse()).real.sort().values
    torch.testing.assert_close(grown, torch.tensor([1.0, float(share)]))


@pytest.mark.parametrize("method", [Laplace(), Laplace(subset=Subnetwork(6))], ids=["kfac", "sub"])
def test_learnt_with_other_structures(method, tmp_path):
    module, pair = network(), data()
    predictor = fit(module, pair, method=method, likelihood=MultivariateNoise())
    found = predictor.likelihood.covariance
    assert torch.linalg.eigvalsh(found).min() > 0
    predictions = predictor(pair[0])
    torch.testing.assert_close(
        predictions.variance,
        predictions.covariance.diagonal(dim1=1, dim2=2) + found.diagonal(),
    )
    assert predictor(pair[0], rule=MonteCarlo(4)).variance.shape == (40, 2)
    joint = predictor.joint(pair[0][:3])
    total = joint.matrix + torch.block_diag(found, found, found)
    normal = torch.distributions.MultivariateNormal(joint.mean.flatten(), total)
    torch.testing.assert_close(joint.log_prob(pair[1][:3]), normal.log_prob(pair[1][:3].flatten()))
    predictor.save(tmp_path / "noise.safetensors")
    assert torch.equal(load(tmp_path / "noise.safetensors", network()).likelihood.covariance, found)
    updated = predictor.update(data(10), mean="kept")
    assert (updated(pair[0]).variance <= predictions.variance + 1e-9).all()


def test_validation_and_pixels():
    module = nn.Conv2d(1, 2, 3)
    pair = torch.randn(12, 1, 4, 4), torch.randn(12, 2, 2, 2)
    method = Laplace(tuning=ByEvidence(validation=pair))
    predictor = fit(module, pair, method=method, likelihood=MultivariateNoise())
    assert predictor(pair[0]).variance.shape == (12, 2, 2, 2)


def test_refusals():
    with pytest.raises(CosetError, match="symmetric"):
        MultivariateNoise(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(CosetError, match="not positive definite"):
        MultivariateNoise(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(CosetError, match="unknown covariance"):
        MultivariateNoise().log_prob(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(CosetError, match="needed 3"):
        fit(nn.Linear(2, 3), (torch.randn(4, 2), torch.randn(4, 3)),
            likelihood=MultivariateNoise(COVARIANCE))  # fmt: skip


def test_one_output_is_mackays_update():
    guess = MultivariateNoise(torch.tensor([[2.0]]))
    found = guess.estimate(torch.tensor([[3.0], [1.0]]), torch.tensor([[0.5]]))
    torch.testing.assert_close(found.covariance, torch.tensor([[5.0 / (1 - 0.25)]]))
    still = MultivariateNoise(COVARIANCE)  # the wanted covariance stays
    spread = torch.tensor([[0.1, 0.05], [0.05, 0.08]])
    residuals = torch.linalg.cholesky(2 * (COVARIANCE - spread)).mT
    torch.testing.assert_close(still.estimate(residuals, spread).covariance, COVARIANCE)


def test_a_covariance_that_is_no_tensor_is_named():
    with pytest.raises(CosetError, match=r"got covariance=\[\[1\.0\]\]; needed Tensor"):
        MultivariateNoise([[1.0]])
