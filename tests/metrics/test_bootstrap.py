import pytest
import torch

from coset.errors import CosetError
from coset.metrics import auroc, bootstrap_standard_error
from coset.metrics.bootstrap import bootstrap_of_sums


def test_the_error_of_a_mean_is_known(generator):
    """s / √n, to 15 % with 500 resamples (five standard deviations)."""
    values = torch.randn(400, generator=generator, dtype=torch.float64)
    expected = float(values.std()) / 20
    error = bootstrap_standard_error(torch.mean, (values,), resamples=500, generator=generator)
    assert error == pytest.approx(expected, rel=0.16)
    error = bootstrap_of_sums(values, lambda s: s / 400, resamples=500, generator=generator)
    assert error == pytest.approx(expected, rel=0.16)


def test_groups_are_drawn_apart(generator):
    """The error of AUROC against the spread over fresh sets, within a third."""

    def draw():
        inliers, outliers = torch.randn(2, 80, generator=generator, dtype=torch.float64)
        return inliers, outliers[:40] + 1

    spread = torch.stack([auroc(*draw()) for _ in range(400)]).std()
    errors = [
        bootstrap_standard_error(
            auroc, *((side,) for side in draw()), resamples=100, generator=generator
        )
        for _ in range(20)
    ]
    assert sum(errors) / 20 == pytest.approx(float(spread), rel=0.33)


def test_equal_seeds_give_equal_errors():
    values = torch.arange(10.0)
    first, second = (
        bootstrap_standard_error(
            torch.mean, (values,), resamples=5, generator=torch.Generator().manual_seed(1)
        )
        for _ in range(2)
    )
    assert first == second


def test_lengths_must_fit(generator):
    with pytest.raises(CosetError, match="lengths"):
        bootstrap_standard_error(
            torch.add, (torch.ones(2), torch.ones(3)), resamples=2, generator=generator
        )
