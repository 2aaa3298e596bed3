import pytest
import torch
from scipy.stats import chisquare

from coset.metrics import compare_unit_laws, exchangeability
from coset.metrics.exchangeability import uniformity

ENSEMBLE = [45, 49, 46, 43, 45, 54, 47, 56, 38, 47, 50, 44, 41, 44, 51, 53]
CHAINS = [33, 144, 0, 0, 64, 30, 6, 34, 8, 44, 213, 112, 40, 7, 0, 18]


def test_the_posters_counts():
    """Laurent et al. 2024: 753 networks of an ensemble, 753 samples of three chains."""
    statistic, p_value = uniformity(torch.tensor(ENSEMBLE))
    assert (statistic, p_value) == pytest.approx((7.54, 0.94), abs=0.005)
    statistic, p_value = uniformity(torch.tensor(CHAINS))
    assert statistic == pytest.approx(1157, abs=0.5)
    assert p_value == pytest.approx(2.5e-237, rel=0.05)


@pytest.mark.parametrize("counts", [ENSEMBLE, CHAINS, [3, 5], [10, 0, 0]])
def test_statistic_and_p_value_are_those_of_scipy(counts):
    assert uniformity(torch.tensor(counts)) == pytest.approx(tuple(chisquare(counts)), rel=1e-9)


def test_counts_by_hand(generator):
    stack = {"w": torch.randn(30, 4, 3, 2, 2, generator=generator), "b": torch.zeros(30, 4)}
    counts = [0] * 4
    at_position = [0] * 4
    for member in stack["w"]:
        counts[max(range(4), key=lambda i: float(member[i].max()))] += 1
        at_position[max(range(4), key=lambda i: float(member[i].flatten()[5]))] += 1
    assert exchangeability(stack, "w").counts.tolist() == counts
    assert exchangeability(stack, "w", position=5).counts.tolist() == at_position


def test_laws_that_differ_in_spread_only_are_noticed(generator):
    w = torch.randn(200, 6, 8, generator=generator)
    w[:, 2] *= 2
    result = compare_unit_laws({"w": w}, "w", permutations=99, generator=generator)
    assert result.p_value == 0.01
    assert int(result.distance.argmax()) == 2


def test_false_alarms_are_as_rare_as_promised(generator):
    """100 tests of equal laws at 10 %: 10 expected, more than 25 has probability 3e-6."""
    alarms = 0
    for _ in range(100):
        stack = {"w": torch.randn(15, 4, 3, generator=generator)}
        result = compare_unit_laws(stack, "w", features=16, permutations=19, generator=generator)
        alarms += result.p_value <= 0.1
    assert alarms <= 25
