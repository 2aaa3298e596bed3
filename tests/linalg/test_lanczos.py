"""Stochastic Lanczos quadrature against determinants."""

import pytest
import torch

from coset import CosetError
from coset.linalg import Dense
from coset.linalg.lanczos import quadrature, stochastic_logdet

pytestmark = pytest.mark.usefixtures("double")


def positive(size=40, rank=10):
    factor = torch.randn(size, rank)
    return torch.eye(size) + factor @ factor.mT


def test_quadrature_is_exact_with_as_many_steps_as_eigenvalues():
    matrix = positive(8, 8)
    vectors = torch.randn(8, 3)
    vectors = vectors / vectors.norm(dim=0)
    nodes, weights = quadrature(Dense(matrix), vectors, 8)
    values, basis = torch.linalg.eigh(matrix)
    exact = (basis.mT @ vectors).square().mT @ values.log()
    torch.testing.assert_close((weights * nodes.log()).sum(1), exact, rtol=1e-8, atol=0)
    torch.testing.assert_close(weights.sum(1), torch.ones(3))


def test_an_invariant_subspace_ends_the_steps():
    vectors = torch.eye(6)[:, :2]
    nodes, weights = quadrature(Dense(torch.diag(torch.arange(1.0, 7.0))), vectors, 4)
    expected = torch.tensor([1.0, 2.0]).log()
    torch.testing.assert_close((weights * nodes.log()).sum(1), expected)


def test_the_log_determinant_lies_within_four_standard_errors(generator):
    """A false alarm once in some 10,000 seeds; the seed is fixed."""
    matrix = positive()
    found = stochastic_logdet(
        Dense(matrix), probes=200, steps=15, like=matrix, generator=generator, together=64
    )
    exact = float(torch.logdet(matrix))
    assert abs(found.value - exact) < 4 * found.standard_error
    assert found.standard_error < 0.1 * exact


def test_the_standard_error_is_that_of_repetitions(generator):
    """The spread of 60 estimates: within a third of the error they state."""
    matrix = positive()
    options = {"probes": 20, "steps": 12, "like": matrix, "generator": generator}
    found = [stochastic_logdet(Dense(matrix), **options) for _ in range(60)]
    spread = float(torch.tensor([each.value for each in found]).std())
    stated = float(torch.tensor([each.standard_error for each in found]).mean())
    assert spread == pytest.approx(stated, rel=1 / 3)


def test_it_agrees_with_another_library(generator):
    """The same probe, the same number of steps: the tridiagonal matrices are the same."""
    lanczos = pytest.importorskip("linear_operator.utils.lanczos")
    matrix, start = positive(), torch.randn(40, 1)
    start = start / start.norm()
    _, table = lanczos.lanczos_tridiag(
        lambda x: matrix @ x, 8, matrix.dtype, matrix.device, (40, 40), init_vecs=start
    )
    values, basis = torch.linalg.eigh(table.squeeze())
    nodes, weights = quadrature(Dense(matrix), start, 8)
    torch.testing.assert_close(
        (weights * nodes.log()).sum(), (basis[0].square() * values.log()).sum(), rtol=1e-6, atol=0
    )


def test_bad_input_is_refused(generator):
    options = {"like": torch.zeros(()), "generator": generator}
    with pytest.raises(CosetError, match="at least two probes"):
        stochastic_logdet(Dense(torch.eye(2)), probes=1, steps=1, **options)
    with pytest.raises(CosetError, match="positive definite"):
        stochastic_logdet(Dense(-torch.eye(2)), probes=2, steps=1, **options)
