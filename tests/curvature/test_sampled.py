"""The Monte-Carlo Fisher: right on average, equal for equal seeds."""

import pytest
import torch
from curvature_networks import brute_curvature, build, measure, problem_of
from torch import nn

from coset import (
    KFAC,
    Bernoulli,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    Laplace,
    MonteCarloFisher,
    Problem,
    fit,
)

pytestmark = pytest.mark.usefixtures("double")


def mean_and_error(draw, repeats):
    found = torch.stack([draw(seed) for seed in range(repeats)])
    return found.mean(0), found.std(0) / repeats**0.5


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), GaussianNoise(0.5)], ids=repr)
@pytest.mark.parametrize("draws", [1, 3])
def test_the_full_matrix_is_unbiased(likelihood, draws):
    """120 matrices: a random quadratic form of their mean within 5 standard errors of the exact.

    Ten forms and six cases: a false alarm in about one run of 30,000.
    """
    module, inputs = build("mlp", 4)
    problem = problem_of(module, inputs, likelihood)
    exact = brute_curvature(problem.network, problem.network.layout, inputs, likelihood)
    directions = torch.randn(10, len(exact))

    def forms(matrix):
        return torch.einsum("kp,pq,kq->k", directions, matrix, directions)

    mean, error = mean_and_error(
        lambda seed: forms(measure(MonteCarloFisher(Full(), draws, seed), problem)), 120
    )
    assert ((mean - forms(exact)).abs() < 5 * error + 1e-9).all()


@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_diagonal_and_kronecker_are_unbiased(name):
    """Diagonals of 60 draws: the mean of all entries within 5 standard errors of the exact.

    The trace is linear in the Hessian for every structure (five cases, one in 300,000 runs).
    """
    module, inputs = build(name, 3)
    problem = problem_of(module, inputs)
    for recipe in (DiagonalOnly(), KFAC()):
        exact = measure(recipe, problem).trace()
        mean, error = mean_and_error(
            lambda seed, r=recipe: measure(MonteCarloFisher(r, 1, seed), problem).trace(), 60
        )
        assert abs(mean - exact) < 5 * error


def test_pixels_take_one_backward_pass_a_draw():
    """One column for all pixels together; 120 traces within 5 standard errors."""
    module, inputs = nn.Conv2d(1, 2, 2), torch.randn(3, 1, 4, 4)
    problem = problem_of(module, inputs)
    exact = measure(Full(), problem).trace()
    mean, error = mean_and_error(
        lambda seed: measure(MonteCarloFisher(Full(), 1, seed), problem).trace(), 120
    )
    assert abs(mean - exact) < 5 * error


@pytest.mark.parametrize(
    ("likelihood", "width"),
    [(Categorical(ignore=2), 3), (Bernoulli(), 2), (GaussianNoise(0.5, missing="nan"), 2)],
    ids=repr,
)
@pytest.mark.parametrize("pixels", [1, 4])
def test_a_subsample_of_pixels_is_unbiased(likelihood, width, pixels):
    """300 matrices: ten quadratic forms of their mean within 5 standard errors of the exact.

    Ten forms and six cases: a false alarm in about one run of 30,000.
    """
    module, inputs = nn.Conv2d(1, width, 2), torch.randn(3, 1, 4, 4)
    targets = {
        3: torch.arange(27).reshape(3, 3, 3) % 3,
        2: (torch.arange(54).reshape(3, 2, 3, 3) % 2).double(),
    }[width]
    if isinstance(likelihood, GaussianNoise):
        targets[0, 0, 0, 0] = torch.nan
    problem = Problem.of(module, (inputs, targets), likelihood=likelihood)
    exact, whole = (
        measure(recipe, problem) for recipe in (Full(), MonteCarloFisher(Full(), pixels=9))
    )
    assert torch.equal(whole, measure(MonteCarloFisher(Full()), problem))  # nothing is left out
    directions = torch.randn(10, len(exact))

    def forms(matrix):
        return torch.einsum("kp,pq,kq->k", directions, matrix, directions)

    mean, error = mean_and_error(
        lambda seed: forms(measure(MonteCarloFisher(Full(), 2, seed, pixels), problem)), 300
    )
    assert ((mean - forms(exact)).abs() < 5 * error + 1e-9).all()


def test_many_pixels_of_many_classes_are_drawn(monkeypatch):
    """The root of an example stays within its memory; Kronecker traces stay right on average."""
    module, inputs = nn.Conv2d(1, 3, 2), torch.randn(4, 1, 6, 6)
    problem = Problem.of(module, (inputs, torch.zeros(4, 5, 5, dtype=torch.long)))
    exact = measure(KFAC(), problem).trace()
    monkeypatch.setattr("coset.curvature.columns._ENTRIES", 90)  # ten of 25 pixels
    seen = []

    class Watched(Categorical):
        def hessian_root(self, outputs):
            seen.append(outputs.shape[2])
            return super().hessian_root(outputs)

    measure(MonteCarloFisher(), problem.with_likelihood(Watched()))
    assert max(seen) == 10
    weights = problem.network.weights
    for recipe, notes in ((MonteCarloFisher(), 1), (KFAC(columns=9), 2)):
        told = recipe.build(problem, weights, problem.network.layout).notes
        assert len(told) == notes
        assert "10 of the 25 pixels" in told[-1]
    mean, error = mean_and_error(
        lambda seed: measure(MonteCarloFisher(KFAC(), 1, seed), problem).trace(), 60
    )
    assert abs(mean - exact) < 5 * error


def test_no_pixels_are_refused():
    with pytest.raises(CosetError, match="pixels=0"):
        MonteCarloFisher(pixels=0)


def test_equal_seeds_and_many_draws():
    module, inputs = build("mlp", 5)
    problem = problem_of(module, inputs)
    first, second, other = (measure(MonteCarloFisher(seed=seed), problem) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    exact = measure(Full(), problem)
    close = measure(MonteCarloFisher(Full(), draws=1000), problem)
    assert (close - exact).norm() < 0.15 * exact.norm()


@pytest.mark.parametrize("inner", [KFAC(), Full(), DiagonalOnly()], ids=repr)
def test_laplace_with_random_columns(inner):
    module = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3))
    data = torch.randn(50, 2), torch.randint(0, 3, (50,))
    predictor = fit(module, data, method=Laplace(MonteCarloFisher(inner, draws=2)))
    exact = fit(module, data, method=Laplace(inner))
    ratio = predictor(data[0]).variance.mean() / exact(data[0]).variance.mean()
    assert 0.5 < ratio < 2
    with pytest.raises(CosetError, match="draws=0"):
        MonteCarloFisher(inner, draws=0)


def test_many_columns_are_drawn_and_said(generator):
    """Random columns for pixels: unbiased, so near the exact factors; and the report says so."""
    module = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 3, 3, padding=1))
    inputs = torch.randn(20, 1, 8, 8)
    data = inputs, torch.randint(3, (20, 8, 8), generator=generator)  # 128 columns a picture
    found = {
        columns: fit(module, data, method=Laplace(KFAC(columns=columns), tuning=None))
        for columns in (None, 100)
    }
    assert found[None].posterior.report.warnings == ()
    assert "100 random columns of the output Hessian in place of 128" in str(
        found[100].posterior.report.warnings
    )
    exact, drawn = (found[columns](inputs[:4]).variance for columns in (None, 100))
    # 20 pictures of 100 columns each: second moments are known to 1 / √2000, some two per cent
    assert float((drawn / exact).log().abs().max()) < 0.1


@pytest.mark.parametrize("columns", [0, -1])
def test_no_columns_are_refused(columns):
    with pytest.raises(CosetError, match="columns"):
        KFAC(columns=columns)
