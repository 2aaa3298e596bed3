import math

import pytest
import torch
from tests.tomography.tomography_problems import fitted_problem, seeded

from coset.errors import CosetError
from coset.linalg import Dense
from coset.tomography.evidence import Scales
from coset.tomography.iterative_posterior import iterative_posterior, nystrom
from coset.tomography.posterior import exact_posterior


@pytest.fixture(scope="module")
def setting():
    _, observed, features, pixels, rows, problem = fitted_problem(size=8, angles=4)
    lengths = torch.tensor([math.nan if b.taps == 1 else 1.0 for b in features.blocks]).double()
    level = torch.tensor(observed.level).double()
    scales = Scales(torch.full_like(lengths, 0.02), lengths, level)
    return observed, features, pixels, rows, problem, scales


def test_conjugate_gradients_find_the_closed_form(setting):
    """400 samples: variances within 5 √(2/400) of the closed form (1 in 10⁴ seeds)."""
    observed, features, pixels, rows, problem, scales = setting
    exact = exact_posterior(
        features, [pixels], rows, observed.operator, problem, scales,
        samples=0, dense=True, generator=seeded(),
    )  # fmt: skip
    found = iterative_posterior(
        features, observed, scales, samples=400, generator=seeded(1), tolerance=1e-8
    )
    torch.testing.assert_close(found.mean, exact.mean, rtol=1e-6, atol=1e-7)
    ratio = found.variance / exact.variance
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / 400)
    errors = (found.samples.mean(0) - exact.mean) / exact.variance.sqrt()
    assert float(errors.abs().max()) < 5 / math.sqrt(400)


def test_what_does_not_converge_is_refused(setting, monkeypatch):
    observed, features, *_, scales = setting
    monkeypatch.setattr("coset.tomography.iterative_posterior._ITERATIONS", 1)
    with pytest.raises(CosetError, match="1 iterations of conjugate gradients"):
        iterative_posterior(
            features, observed, scales, samples=2, generator=seeded(), tolerance=1e-9
        )


def test_a_sketch_of_full_rank_is_the_operator():
    root = torch.randn(12, 12, generator=seeded()).double()
    noise = torch.rand(12, generator=seeded(1)).double() + 0.5
    matrix = root @ root.mT + noise.diag()
    whole = nystrom(Dense(matrix), noise, 12, seeded(2))
    torch.testing.assert_close(whole.matmat(torch.eye(12).double()), matrix)
    part = nystrom(Dense(matrix), noise, 4, seeded(2)).matmat(torch.eye(12).double())
    gaps = torch.linalg.eigvalsh(matrix - part)  # a Nyström sketch never exceeds its matrix
    assert float(gaps.min()) > -1e-8
    assert float((matrix - part).diagonal().sum()) < float((root @ root.mT).diagonal().sum())
