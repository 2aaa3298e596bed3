import pytest
import torch
from scipy.stats import pearsonr, rankdata, spearmanr

from coset.errors import CosetError
from coset.metrics import diversity_correlation
from coset.metrics.correlation import weighted_pearson, weighted_ranks


def matrices(m, generator, *, shared):
    """Pairwise values that depend on the networks of the pair, and partly on a common factor."""
    common, own, other = torch.randn(3, m, m, generator=generator, dtype=torch.float64)
    first, second = shared * common + own, shared * common + other
    return first + first.T, second + second.T


def test_correlations_are_those_of_scipy(generator):
    first, second = matrices(20, generator, shared=1)
    second = second.round()  # ties
    upper = tuple(torch.triu_indices(20, 20, 1))
    result = diversity_correlation(first, second, resamples=2, generator=generator)
    a, b = first[upper].numpy(), second[upper].numpy()
    assert result.pearson == pytest.approx(pearsonr(a, b).statistic, abs=1e-12)
    assert result.spearman == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_weights_stand_for_copies(generator):
    values = torch.randn(30, generator=generator, dtype=torch.float64).round()
    other = torch.randn(30, generator=generator, dtype=torch.float64)
    copies = torch.randint(4, (30,), generator=generator)
    levels = values.unique(return_inverse=True)[1]
    repeated = rankdata(values.repeat_interleave(copies))
    ranks = weighted_ranks(levels, copies.double())
    torch.testing.assert_close(ranks.repeat_interleave(copies), torch.from_numpy(repeated))
    expected = pearsonr(values.repeat_interleave(copies), other.repeat_interleave(copies)).statistic
    assert weighted_pearson(values, other, copies.double()) == pytest.approx(expected, abs=1e-12)


def test_the_error_is_that_over_networks(generator):
    """The bootstrap error is within a factor of two of the spread over fresh sets of networks."""

    def draw():
        # A network has one trait that shows in all its pairs: pairs are far from independent.
        trait, noise = torch.randn(2, 25, generator=generator, dtype=torch.float64)
        other = 0.5 * trait + noise
        return trait + trait.unsqueeze(1), other + other.unsqueeze(1)

    spread = torch.tensor(
        [
            diversity_correlation(*draw(), resamples=2, generator=generator).pearson
            for _ in range(80)
        ]
    ).std()
    errors = [
        diversity_correlation(*draw(), resamples=60, generator=generator).pearson_standard_error
        for _ in range(8)
    ]
    assert 0.5 < sum(errors) / 8 / float(spread) < 2


def test_two_networks_are_too_few(generator):
    with pytest.raises(CosetError, match="at least three"):
        diversity_correlation(torch.zeros(2, 2), torch.zeros(2, 2), generator=generator)
