"""Against laplace-torch, where it is installed and right."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coset import KFAC, DiagonalOnly, Full, GaussianNoise, GaussianPrior, Laplace, fit

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    backends = pytest.importorskip("laplace.curvature", reason="laplace-torch has no backend")

pytestmark = [
    pytest.mark.usefixtures("double"),
    pytest.mark.filterwarnings("ignore"),
]
STRUCTURES = {"full": Full(), "kron": KFAC(corrected=False), "diag": DiagonalOnly()}


def networks():
    # without biases: they share a block with the weights here and have their own there
    return {
        "mlp": (
            nn.Sequential(nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 4, bias=False)),
            torch.randn(20, 3),
        ),
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(1, 3, 3, padding=1, bias=False),
                nn.Tanh(),
                nn.Flatten(),
                nn.Linear(48, 4, bias=False),
            ),
            torch.randn(20, 1, 4, 4),
        ),
    }


def peer(module, likelihood, structure, data, **options):
    module = module.eval()
    found = laplace.Laplace(
        module,
        likelihood,
        subset_of_weights="all",
        hessian_structure=structure,
        backend=backends.AsdlGGN if structure == "kron" else backends.CurvlinopsGGN,
        prior_precision=1.7,
        **options,
    )
    found.fit(DataLoader(TensorDataset(*data), batch_size=20))
    return found


@pytest.mark.parametrize("name", ["mlp", "convolutions"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_classes(name, structure):
    module, inputs = networks()[name]
    data = inputs, torch.randint(0, 4, (20,))
    method = Laplace(STRUCTURES[structure], tuning=None)
    ours = fit(module, data, method=method, prior=GaussianPrior(1.7))
    theirs = peer(module, "classification", structure, data)
    assert ours.log_evidence == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-5)
    _, covariance = theirs._glm_predictive_distribution(inputs)
    torch.testing.assert_close(ours(inputs).covariance, covariance.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_regression(structure):
    module, inputs = networks()["mlp"]
    data = inputs, torch.randn(20, 4)
    method = Laplace(STRUCTURES[structure], tuning=None)
    ours = fit(module, data, method=method, likelihood=GaussianNoise(0.6), prior=GaussianPrior(1.7))
    theirs = peer(module, "regression", structure, data, sigma_noise=0.6)
    assert ours.log_evidence == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-5)
    _, covariance = theirs._glm_predictive_distribution(inputs)
    torch.testing.assert_close(ours(inputs).covariance, covariance.detach(), rtol=1e-5, atol=1e-7)
