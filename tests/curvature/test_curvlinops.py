"""Against curvlinops, where it is installed: matrices of Gauss-Newton and of Kronecker factors."""

import math
import warnings

import pytest
import torch
from curvature_networks import measure, problem_of
from torch import nn

from coset import KFAC, Categorical, Full, GaussianNoise, MonteCarloFisher
from coset.curvature.tangent import tangent_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is not installed")

pytestmark = [
    pytest.mark.usefixtures("double"),
    pytest.mark.filterwarnings("ignore"),
]

NETWORKS = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)),
        torch.randn(12, 3),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2, stride=2), nn.Tanh(),
            nn.Flatten(), nn.Linear(8, 4),
        ),
        torch.randn(12, 1, 4, 4),
    ),
}  # fmt: skip
LOSSES = {
    "classes": (Categorical(), nn.CrossEntropyLoss(reduction="sum")),
    "values": (GaussianNoise(math.sqrt(0.5)), nn.MSELoss(reduction="sum")),  # Hessian 2 I
}


@pytest.fixture(params=NETWORKS)
def network(request):
    module, inputs = NETWORKS[request.param]()
    return module.eval(), inputs


def case(network, kind):
    module, inputs = network
    likelihood, loss = LOSSES[kind]
    targets = torch.arange(12) % 4 if kind == "classes" else torch.randn(12, 4)
    data = [(x, y) for x, y in zip(inputs.split(6), targets.split(6), strict=True)]
    return problem_of(module, inputs, likelihood), (module, loss, list(module.parameters()), data)


def matrix(operator):
    found = operator @ torch.eye(operator.shape[1])
    return torch.as_tensor(found)


@pytest.mark.parametrize("kind", LOSSES)
def test_gauss_newton(network, kind):
    problem, theirs = case(network, kind)
    expected = matrix(curvlinops.GGNLinearOperator(*theirs))
    torch.testing.assert_close(measure(Full(), problem), expected)
    tangent = tangent_of(problem, problem.network.weights, problem.network.layout)
    vectors = torch.randn(problem.network.layout.size, 3)
    product = tangent.product(tangent.outputs, torch.zeros(len(vectors))).matmat(vectors)
    torch.testing.assert_close(product, expected @ vectors)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_kronecker_factors(network, kind, approximation):
    problem, theirs = case(network, kind)
    operator = curvlinops.KFACLinearOperator(
        *theirs, fisher_type="type-2", kfac_approx=approximation, separate_weight_and_bias=False
    )
    ours = measure(KFAC(approximation, corrected=False), problem)
    torch.testing.assert_close(ours, matrix(operator))


@pytest.mark.parametrize("kind", LOSSES)
def test_corrected_eigenvalues(network, kind):
    problem, theirs = case(network, kind)
    operator = curvlinops.EKFACLinearOperator(
        *theirs, fisher_type="type-2", separate_weight_and_bias=False
    )
    ours, expected = measure(KFAC(), problem), matrix(operator)
    # eigenvectors of equal eigenvalues are a matter of taste: what no choice changes is the trace
    torch.testing.assert_close(ours.trace(), expected.trace())
    assert (ours - expected).norm() < 0.05 * expected.norm()


def test_random_columns_and_drawn_labels_have_the_same_mean(network):
    """Traces, 40 of each, within 5 standard errors: a false alarm in one run of a million."""
    problem, theirs = case(network, "classes")
    seeds = range(40)
    ours = torch.stack([measure(MonteCarloFisher(Full(), 2, s), problem).trace() for s in seeds])
    drawn = [
        matrix(curvlinops.FisherMCLinearOperator(*theirs, seed=s, mc_samples=2)).trace()
        for s in seeds
    ]
    other = torch.stack(drawn)
    error = (ours.var() / 40 + other.var() / 40).sqrt()
    assert (ours.mean() - other.mean()).abs() < 5 * error
