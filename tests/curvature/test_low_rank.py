"""The largest eigenvalues, exactly and by iteration."""

import pytest
import torch
from curvature_networks import brute_curvature, build, measure, problem_of

from coset import Categorical, CosetError, LowRank
from coset.curvature import low_rank

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("rows", [5, 60])
def test_the_best_matrix_of_its_rank(rows):
    module, inputs = build("mlp", rows)
    problem = problem_of(module, inputs)
    matrix = brute_curvature(problem.network, problem.network.layout, inputs, Categorical())
    values, vectors = torch.linalg.eigh(matrix)
    expected = vectors[:, -4:] * values[-4:] @ vectors[:, -4:].mT
    torch.testing.assert_close(measure(LowRank(4), problem), expected)
    torch.testing.assert_close(measure(LowRank(10**3), problem), matrix)


def test_iteration_finds_the_same(monkeypatch):
    module, inputs = build("convolution over time", 8)
    problem = problem_of(module, inputs)
    matrix = measure(LowRank(3), problem)
    monkeypatch.setattr("coset.curvature.tangent.DIRECT", 0)
    monkeypatch.setattr(low_rank, "_ROUNDS", 12)
    torch.testing.assert_close(measure(LowRank(3), problem), matrix, rtol=1e-5, atol=1e-7)


def test_refusals():
    with pytest.raises(CosetError, match="rank=0"):
        LowRank(0)
    module, inputs = build("mlp")
    with pytest.raises(CosetError, match="smaller rank"):
        measure(LowRank(5, memory=100), problem_of(module, inputs))
