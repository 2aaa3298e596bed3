"""Evidence by spectra against dense matrices."""

import pytest
import torch

from coset.inference.laplace.evidence import best_precision, spectrum_of, switched_off
from coset.linalg import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Kronecker,
    LowRankPlusDiagonal,
    dense,
)

pytestmark = pytest.mark.usefixtures("double")


def orthogonal(size):
    return torch.linalg.qr(torch.randn(1, size, size)).Q


def kronecker(rows, columns):
    return Kronecker(orthogonal(rows), orthogonal(columns), torch.rand(1, rows, columns))


def layered():
    return BlockDiagonal((kronecker(2, 3), kronecker(3, 2)), torch.randperm(12))


def low_rank():
    return LowRankPlusDiagonal(torch.zeros(12), torch.randn(12, 4))


def full():
    factor = torch.randn(12, 12)
    return Dense(factor @ factor.mT)


CASES = {
    "kronecker, one group": (layered, lambda o: torch.zeros(12, dtype=torch.long)),
    "kronecker, by layer": (layered, lambda o: scatter(o, [0] * 6 + [1] * 6)),
    "kronecker, by row": (layered, lambda o: scatter(o, [0, 0, 0, 1, 1, 1] + [2] * 6)),
    "dense, one group": (full, lambda o: torch.zeros(12, dtype=torch.long)),
    "dense, groups": (full, lambda o: torch.arange(12) % 3),
    "low rank, one group": (low_rank, lambda o: torch.zeros(12, dtype=torch.long)),
    "low rank, groups": (low_rank, lambda o: torch.arange(12) % 2),
    "diagonal, groups": (lambda: Diagonal(torch.rand(12)), lambda o: torch.arange(12) % 2),
}


def scatter(operator, ordered):
    labels = torch.empty(12, dtype=torch.long)
    labels[operator.order] = torch.tensor(ordered)
    return labels


@pytest.fixture(params=CASES)
def case(request):
    make, label = CASES[request.param]
    operator = make()
    labels = label(operator)
    return operator, labels, int(labels.max()) + 1


def test_against_the_matrix(case):
    operator, labels, groups = case
    matrix = dense(operator, like=torch.zeros(()))
    spectrum = spectrum_of(operator, labels, groups).scaled(1.7)
    precision = torch.rand(groups) + 0.2
    flat = precision[labels]
    system = 1.7 * matrix + torch.diag(flat)
    expected = (torch.logdet(system) - flat.log().sum()) / 2
    torch.testing.assert_close(spectrum.half_logdet(precision), expected)
    covariance = torch.linalg.inv(system)
    gamma = torch.zeros(groups).index_add_(0, labels, 1 - flat * covariance.diagonal())
    torch.testing.assert_close(spectrum.effective(precision), gamma)
    torch.testing.assert_close(gamma.sum(), (1.7 * matrix @ covariance).trace())
    traces = torch.zeros(groups).index_add_(0, labels, 1.7 * matrix.diagonal())
    torch.testing.assert_close(spectrum.traces(), traces)


def test_the_best_precision_is_a_maximum(case):
    operator, labels, groups = case
    spectrum = spectrum_of(operator, labels, groups)
    norms = torch.rand(groups) + 0.1

    def evidence(log_precision):
        precision = log_precision.exp()
        return -(precision * norms).sum() / 2 - spectrum.half_logdet(precision)

    best = best_precision(spectrum, norms, torch.ones(groups), tolerance=1e-10, sweeps=2000)
    torch.testing.assert_close(spectrum.effective(best), best * norms, rtol=1e-6, atol=1e-8)
    for group in range(groups):
        for step in (-0.1, 0.1):
            moved = best.log().clone()
            moved[group] += step
            assert evidence(moved) < evidence(best.log())


def test_groups_without_curvature_keep_their_precision_and_are_named():
    operator = Diagonal(torch.tensor([1.0, 2.0, 0.0]))
    spectrum = spectrum_of(operator, torch.tensor([0, 0, 1]), 2)
    best = best_precision(spectrum, torch.tensor([1.0, 1.0]), torch.tensor([1.0, 5.0]))
    assert best[1] == 5
    assert switched_off(spectrum, best) == [1]


def test_curvature_by_rounding_is_none():
    operator = Diagonal(torch.tensor([1.0, 1e-25]))
    spectrum = spectrum_of(operator, torch.tensor([0, 1]), 2)
    natural = torch.tensor([2.0, 7.0])
    best = best_precision(spectrum, torch.tensor([0.1, 1e-9]), natural, natural=natural)
    assert best[1] == 7


def test_the_scale_of_a_group_decides_what_is_rounding():
    """A group of weights a billion times as large has a billionth squared of the curvature."""
    operator = Diagonal(torch.tensor([1.0, 1e-18]))
    spectrum = spectrum_of(operator, torch.tensor([0, 1]), 2)
    natural = torch.tensor([1.0, 1e-18])
    best = best_precision(spectrum, torch.tensor([0.1, 1e17]), natural, natural=natural)
    torch.testing.assert_close(best[1], best[0] * 1e-18)
