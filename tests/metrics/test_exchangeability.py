import sys
from itertools import product

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


@pytest.mark.parametrize("counts", [ENSEMBLE, CHAINS])
def test_statistic_and_p_value_of_many_members_are_those_of_scipy(counts):
    assert uniformity(torch.tensor(counts)) == pytest.approx(tuple(chisquare(counts)), rel=1e-9)


@pytest.mark.parametrize("counts", [[3, 5], [5, 0, 0], [2, 2, 1], [1, 3, 0, 2], [2, 0, 0, 0, 1, 1]])
def test_the_law_of_few_members_is_that_of_all_falls_counted(counts):
    """Every way in which the members can fall into the units, one by one."""
    squares = sum(count**2 for count in counts)
    falls = list(product(range(len(counts)), repeat=sum(counts)))
    reached = sum(
        sum(fall.count(unit) ** 2 for unit in range(len(counts))) >= squares for fall in falls
    )
    statistic, p_value = uniformity(torch.tensor(counts))
    assert statistic == pytest.approx(chisquare(counts).statistic, rel=1e-12)
    assert p_value == pytest.approx(reached / len(falls), rel=1e-12)


@pytest.mark.parametrize(("members", "units"), [(8, 512), (20, 4), (50, 50), (40, 512)])
def test_the_null_rate_is_as_promised(members, units, generator):
    """4,000 tests of units that share alike, at 1 % and 5 %.

    The p-value is exact, so each rate is at most its level; four standard errors are allowed, which
    a right test exceeds with a probability of 3e-5.  The chi-square law had 5.3 % at 1 % for 8
    members and 512 units.
    """
    tests, found = 4000, {}
    p_values = []
    for fallen in torch.randint(units, (tests, members), generator=generator):
        counts = torch.bincount(fallen, minlength=units)
        key = int(counts.square().sum())
        if key not in found:
            found[key] = uniformity(counts)[1]
        p_values.append(found[key])
    for level in (0.01, 0.05):
        rate = sum(p <= level for p in p_values) / tests
        assert rate <= level + 4 * (level * (1 - level) / tests) ** 0.5


def test_random_falls_agree_with_the_law(monkeypatch):
    """p of 20 members in 30 units both ways; 9,999 falls have a standard error of 0.005."""
    counts = torch.bincount(torch.tensor([0, 0, 0, 1, 1, *range(2, 17)]), minlength=30)
    exact = uniformity(counts)[1]
    monkeypatch.setattr(sys.modules["coset.metrics.exchangeability"], "_STEPS", 0)
    drawn = uniformity(counts)[1]
    assert drawn != exact
    assert drawn == pytest.approx(exact, abs=0.02)
    assert uniformity(counts)[1] == drawn  # the generator is fixed
    assert uniformity(torch.eye(1, 30, dtype=torch.int64)[0] * 20)[1] == 1e-4


def test_equal_units_share_alike(generator):
    """Signs: the highest weight of every unit is one, and the first had won each time."""
    stack = {"w": torch.ones(200, 8, 5)}
    first = exchangeability(stack, "w")
    assert first.p_value > 1e-3
    assert int(first.counts.max()) < 50
    assert exchangeability(stack, "w").counts.tolist() == first.counts.tolist()
    assert exchangeability(stack, "w", generator=generator).counts.sum() == 200
    ahead = torch.ones(200, 8, 5)
    ahead[:, 3:5] = 2.0
    counts = exchangeability({"w": ahead}, "w").counts
    assert counts.tolist()[:3] + counts.tolist()[5:] == [0] * 6
    assert 70 < int(counts[3]) < 130


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
