import pytest
import torch
from metric_cases import ensemble

from coset.metrics import fused, maximum_mean_discrepancy, pairwise_mutual_information
from coset.metrics.discrepancy import torch_absolute_sums
from coset.metrics.fused import fused_absolute_sums, fused_entropy_sums, pair_sums_for
from coset.metrics.pairwise import torch_entropy_sums

needs_numba = pytest.mark.skipif(
    fused_entropy_sums() is None, reason="numba is not installed: the fused sums are an extra"
)


@pytest.fixture
def block(generator):
    """Positive numbers, some of them the smallest there are."""
    values = ensemble(8, 100, 10, generator=generator).float().flatten(1)
    values[:, ::7] = torch.finfo(torch.float32).tiny
    return values


@needs_numba
def test_entropy_sums_are_those_of_torch(block):
    expected = torch_entropy_sums(block.double())
    torch.testing.assert_close(fused_entropy_sums()(block), expected, atol=2e-4, rtol=1e-6)


@needs_numba
def test_absolute_sums_are_those_of_torch(block):
    expected = torch_absolute_sums(block.double())
    torch.testing.assert_close(fused_absolute_sums()(block), expected, atol=1e-4, rtol=1e-6)


@needs_numba
def test_the_logarithm_is_good_to_single_precision(generator):
    """Over all exponents, p = q = x: s log s = 2x log 2x, relative to 2x."""
    x = 2.0 ** (-125 * torch.rand(4_000, 1, generator=generator))
    pairs = torch.stack([x, x], 1)
    sums = torch.stack([fused_entropy_sums()(pair)[0, 1] for pair in pairs])
    expected = (2 * x.double()).log().squeeze(1)
    error = sums / (2 * x.double().squeeze(1)) - expected
    assert float((error.abs() / expected.abs().clamp_min(1)).max()) < 3e-7


@needs_numba
def test_metrics_do_not_depend_on_the_form(generator, monkeypatch):
    members = ensemble(4, 50, 10, generator=generator).float()
    x, y = torch.randn(2, 10, 40, generator=generator)
    plain = pairwise_mutual_information(members), maximum_mean_discrepancy(x, y)
    monkeypatch.setattr(fused, "WORTH_COMPILING", 0)
    compiled = pairwise_mutual_information(members), maximum_mean_discrepancy(x, y)
    torch.testing.assert_close(compiled, plain, atol=1e-6, rtol=0)


def test_small_and_double_precision_problems_stay_plain():
    def never():
        raise AssertionError

    for rows, dtype in ((10, torch.float32), (10**6, torch.float64)):
        form = pair_sums_for(rows, 10, torch.ones(1, dtype=dtype), torch_entropy_sums, never)
        assert form is torch_entropy_sums


def test_without_numba_large_problems_stay_plain():
    form = pair_sums_for(10**6, 10, torch.ones(1), torch_entropy_sums, lambda: None)
    assert form is torch_entropy_sums
