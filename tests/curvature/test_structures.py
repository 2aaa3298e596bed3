"""Full and diagonal curvature against the definition."""

import pytest
import torch
from curvature_networks import NETWORKS, Scaled, brute_curvature, build, measure, problem_of

from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    HeteroscedasticGaussian,
)
from coset.linalg import Dense, LowRankPlusDiagonal, dense

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("name", NETWORKS)
def test_full_is_the_definition(name):
    module, inputs = build(name)
    problem = problem_of(module, inputs)
    expected = brute_curvature(problem.network, problem.network.layout, inputs, Categorical())
    torch.testing.assert_close(measure(Full(), problem), expected)
    torch.testing.assert_close(measure(DiagonalOnly(), problem), torch.diag(expected.diagonal()))


@pytest.mark.parametrize("rows", [3, 60])
def test_primal_and_dual_agree(rows):
    module, inputs = build("mlp", rows)
    problem = problem_of(module, inputs)
    layout = problem.network.layout
    found = Full().build(problem, problem.network.weights, layout).operator
    assert isinstance(found, LowRankPlusDiagonal if rows == 3 else Dense)
    expected = brute_curvature(problem.network, layout, inputs, Categorical())
    torch.testing.assert_close(dense(found, like=expected), expected)


@pytest.mark.parametrize(
    "likelihood",
    [GaussianNoise(0.5), GaussianNoise(torch.tensor([0.5, 2.0])), Bernoulli(),
     HeteroscedasticGaussian()],
)  # fmt: skip
def test_likelihoods(likelihood):
    module, inputs = build("convolution over time")
    problem = problem_of(module, inputs, likelihood)
    expected = brute_curvature(problem.network, problem.network.layout, inputs, likelihood)
    torch.testing.assert_close(measure(Full(), problem), expected)


def test_the_output_hessian_may_be_taken_elsewhere():
    module, inputs = build("mlp")
    problem = problem_of(module, inputs)
    outputs = torch.randn(5, 3)
    layout = problem.network.layout
    expected = brute_curvature(problem.network, layout, inputs, Categorical(), outputs)
    torch.testing.assert_close(measure(Full(), problem, outputs=outputs), expected)
    diagonal = measure(DiagonalOnly(), problem, outputs=outputs)
    torch.testing.assert_close(diagonal.diagonal(), expected.diagonal())


def test_pixels():
    module = torch.nn.Conv2d(1, 2, 3)
    problem = problem_of(module, torch.randn(3, 1, 4, 4))
    inputs = problem.train.inputs
    layout, network = problem.network.layout, problem.network

    def apply(given):
        return network.apply(given, inputs)

    found = torch.func.jacrev(apply)(layout.restrict(network.weights))
    jacobian = torch.cat([found[name].reshape(3, 2, 2, 2, -1) for name in layout.names], dim=-1)
    hessian = Categorical().hessian(network.apply(network.weights, inputs))
    expected = torch.einsum("ncxyp,nxycd,ndxyq->pq", jacobian, hessian, jacobian)
    torch.testing.assert_close(measure(Full(), problem), expected)
    torch.testing.assert_close(measure(DiagonalOnly(), problem).diagonal(), expected.diagonal())


def test_any_parameter_has_a_curvature():
    problem = problem_of(Scaled(), torch.randn(6, 4))
    inputs = problem.train.inputs
    expected = brute_curvature(problem.network, problem.network.layout, inputs, Categorical())
    torch.testing.assert_close(measure(Full(), problem), expected)
    torch.testing.assert_close(measure(DiagonalOnly(), problem).diagonal(), expected.diagonal())


def test_what_would_not_fit_is_refused_with_what_would():
    module, inputs = build("mlp", 60)
    with pytest.raises(CosetError, match=r"full matrix takes .* use KFAC"):
        measure(Full(memory=1000), problem_of(module, inputs))
