"""Quantiles that hold a share of new truths: counted by hand, and over exchangeable pictures."""

import pytest
import torch

from coset import CosetError
from coset.metrics import conformal_quantile, set_coverage


def by_definition(scores, groups, level):
    """The smallest score at which the mean of the groups' shares above it is low enough."""
    numbers = sorted(set(groups.tolist()))
    for q in scores.sort().values.tolist():
        above = sum(float((scores[groups == g] > q).double().mean()) for g in numbers)
        if above + 1 <= (len(numbers) + 1) * (1 - level) + 1e-9:
            return q
    raise AssertionError("there is one")


@pytest.mark.parametrize("level", [0.5, 0.75, 0.9])
def test_groups_by_definition(level, generator):
    sizes = torch.randint(1, 6, (20,), generator=generator)
    groups = torch.arange(20).repeat_interleave(sizes)
    shuffled = torch.randperm(len(groups), generator=generator)
    scores = torch.rand(len(groups), generator=generator, dtype=torch.float64)
    found = conformal_quantile(scores, level=level, groups=groups[shuffled] * 7)
    assert found == by_definition(scores, groups[shuffled], level)


def test_one_score_a_group_is_split_conformal_prediction(generator):
    scores = torch.rand(99, generator=generator)
    alone = conformal_quantile(scores, level=0.9)
    assert alone == float(scores.sort().values[89])  # ⌈100 · 0.9⌉ = 90
    assert conformal_quantile(scores, level=0.9, groups=torch.arange(99)) == alone


def test_pixels_of_new_pictures_are_held_in_expectation(generator):
    """Pictures with an offset of their own: 4,000 trials of 19 + 1, 90 % within 4 sd above it.

    The shares' standard deviation is below 0.3, so that of their mean is below 0.005.
    """
    shares = []
    for _ in range(4000):
        own = torch.randn(20, 1, generator=generator)
        scores = own + 0.3 * torch.randn(20, 30, generator=generator)
        held = conformal_quantile(
            scores[:19].flatten(), level=0.9, groups=torch.arange(19).repeat_interleave(30)
        )
        shares.append(float((scores[19] <= held).float().mean()))
    mean = sum(shares) / len(shares)
    assert 0.9 - 0.02 < mean < 0.9 + 0.06


def test_coverage_of_sets_passes_void_pixels_by():
    sets = torch.tensor([[[True, False]], [[False, True]]]).movedim(0, 1)  # (1, 2, 1, 2)
    sets = sets.reshape(1, 2, 2)
    labels = torch.tensor([[0, 9]])
    assert float(set_coverage(sets, labels, ignore=9)) == 1.0
    with pytest.raises(CosetError, match="one that counts"):
        set_coverage(sets, torch.tensor([[9, 9]]), ignore=9)
    with pytest.raises(CosetError, match="one for each set"):
        set_coverage(sets, torch.tensor([[0, 0, 0]]))


@pytest.mark.parametrize(
    ("scores", "settings", "words"),
    [
        (torch.rand(8), {"level": 0.9}, "got 8 held-out examples.*needed at least 9"),
        (torch.rand(8), {"level": 0.9, "groups": torch.arange(8) // 2}, "got 4 held-out pictures"),
        (torch.rand(8), {"level": 90}, "got level=90"),
        (torch.tensor([torch.nan] * 9), {"level": 0.5}, "scores"),
    ],
)
def test_bad_scores_are_refused(scores, settings, words):
    with pytest.raises(CosetError, match=words):
        conformal_quantile(scores, **settings)
