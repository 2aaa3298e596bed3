import math

import pytest
import torch
from scipy.spatial.distance import cdist

from coset.errors import CosetError
from coset.metrics import (
    discrepancies,
    discrepancy_test,
    gaussian,
    laplace,
    layer_discrepancies,
    maximum_mean_discrepancy,
    stack_discrepancies,
)
from coset.metrics.discrepancy import pooled_distances


@pytest.fixture
def samples(generator):
    x = torch.randn(14, 30, generator=generator, dtype=torch.float64)
    y = 1.5 * torch.randn(11, 30, generator=generator, dtype=torch.float64) + 0.2
    return x, y


def brute_force(x, y, kernel):
    """The three sums, pair by pair."""

    def value(a, b):
        if kernel.distance == "l1":
            return math.exp(-float((a - b).abs().sum()) / kernel.bandwidth)
        return math.exp(-float((a - b).square().sum()) / kernel.bandwidth**2)

    m, n = len(x), len(y)
    xx = sum(value(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j)
    yy = sum(value(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j)
    xy = sum(value(a, b) for a in x for b in y)
    return xx / (m * (m - 1)) + yy / (n * (n - 1)) - 2 * xy / (m * n)


def test_every_kernel_pair_by_pair(samples):
    result = discrepancies(*samples)
    expected = [brute_force(*samples, kernel) for kernel in result.kernels]
    assert result.values.tolist() == pytest.approx(expected, abs=1e-12)
    assert float(maximum_mean_discrepancy(*samples)) == pytest.approx(max(expected), abs=1e-12)


def test_twenty_kernels_with_bandwidths_of_the_cross_distances(samples):
    x, y = (side.numpy() for side in samples)
    kernels = discrepancies(*samples).kernels
    for half, norm in ((kernels[:10], "cityblock"), (kernels[10:], "euclidean")):
        distances = cdist(x, y, norm)
        assert half[0].bandwidth == pytest.approx(distances.min() / 2)
        assert half[9].bandwidth == pytest.approx(distances.max() * 2)


def test_distances_are_those_of_scipy_whatever_the_blocks(samples, monkeypatch):
    pooled = torch.cat(samples)
    monkeypatch.setattr("coset.metrics.discrepancy.SAMPLE_BLOCK", 4)
    distances = pooled_distances(pooled.split(7, dim=1))
    for ours, norm in ((distances.l1, "cityblock"), (distances.l2, "euclidean")):
        expected = torch.from_numpy(cdist(pooled, pooled, norm))
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)


def test_parameter_blocks_do_not_matter(samples, monkeypatch):
    whole = discrepancies(*samples).values
    monkeypatch.setattr("coset.metrics.discrepancy.PARAMETER_BLOCK", 4)
    torch.testing.assert_close(discrepancies(*samples).values, whole, atol=1e-12, rtol=0)


def test_far_from_the_origin_nothing_is_lost(samples):
    x, y = (side + 1e4 for side in samples)
    torch.testing.assert_close(
        discrepancies(x, y).values, discrepancies(*samples).values, atol=1e-9, rtol=0
    )


def test_float32_is_close_to_float64(samples):
    x, y = (side.float() for side in samples)
    value = maximum_mean_discrepancy(x, y)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(maximum_mean_discrepancy(*samples)), abs=1e-5)


def test_half_precision_sums_in_single(generator):
    """4,096 numbers of size 100 sum to more than half precision can hold."""
    x, y = (100 * torch.randn(6, 4096, generator=generator).half() for _ in range(2))
    expected = float(maximum_mean_discrepancy(x.double(), y.double()))
    result = maximum_mean_discrepancy(x, y)
    assert result.dtype == torch.float16
    assert float(result) == pytest.approx(expected, abs=1e-4)


def test_one_tight_mode_against_a_broad_reference(generator):
    """Distances concentrate: about 1 − e⁻⁴ for one mode, a tenth for ten, nothing for one law."""
    reference = torch.randn(300, 400, generator=generator)
    modes = torch.randn(10, 400, generator=generator)
    near = 0.01 * torch.randn(300, 400, generator=generator)
    assert maximum_mean_discrepancy(modes[:1] + near, reference) > 0.9
    ten = maximum_mean_discrepancy(modes.repeat(30, 1) + near, reference)
    assert 0.05 < ten < 0.15
    assert maximum_mean_discrepancy(torch.randn(300, 400, generator=generator), reference) < 0.01


def test_layers_and_the_whole(samples):
    x, y = samples
    stacks = [{"a": side[:, :12].reshape(-1, 3, 4), "b": side[:, 12:]} for side in (x, y)]
    result = layer_discrepancies(*stacks)
    assert list(result) == ["a", "b", ""]
    torch.testing.assert_close(
        result["a"].values, discrepancies(x[:, :12], y[:, :12]).values, atol=1e-12, rtol=0
    )
    whole = stack_discrepancies(*stacks).values
    for values in (result[""].values, whole):
        torch.testing.assert_close(values, discrepancies(x, y).values, atol=1e-12, rtol=0)
    with pytest.raises(CosetError, match=r"differ in the tensors \['b'\]"):
        layer_discrepancies(stacks[0], {"a": stacks[1]["a"]})


def test_the_statistic_of_the_test_is_the_discrepancy(samples, generator):
    kernels = [laplace(20.0), gaussian(8.0)]
    result = discrepancy_test(*samples, kernels=kernels, permutations=5, generator=generator)
    expected = maximum_mean_discrepancy(*samples, kernels=kernels)
    assert result.statistic == pytest.approx(float(expected), abs=1e-12)


def test_permuted_statistics_are_those_of_permuted_samples(generator):
    """Every split of six points into three and three, by hand: the p-value is a count."""
    x, y = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[2.0], [5.0], [6.0]])
    kernel = laplace(2.0)
    result = discrepancy_test(x, y, kernels=[kernel], permutations=4_000, generator=generator)
    from itertools import combinations

    pooled, observed = torch.cat([x, y]), brute_force(x, y, kernel)
    values = []
    for chosen in combinations(range(6), 3):
        rest = [i for i in range(6) if i not in chosen]
        values.append(brute_force(pooled[list(chosen)], pooled[rest], kernel))
    exact = sum(value >= observed - 1e-9 for value in values) / len(values)
    assert result.p_value == pytest.approx(exact, abs=0.04)  # five standard deviations


def test_false_alarms_are_as_rare_as_promised(generator):
    """200 tests of equal laws at 5 %: 10 expected, more than 24 has probability 2e-5."""
    alarms = 0
    for _ in range(200):
        x, y = torch.randn(2, 10, 3, generator=generator)
        alarms += discrepancy_test(x, y, permutations=39, generator=generator).p_value <= 0.05
    assert alarms <= 24


def test_different_laws_are_noticed(generator):
    x, y = torch.randn(2, 40, 5, generator=generator)
    assert discrepancy_test(x, y + 1, permutations=99, generator=generator).p_value == 0.01
