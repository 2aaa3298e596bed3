import pytest
import torch
from metric_cases import ensemble

from coset.metrics import (
    mutual_information,
    pairwise_mutual_information,
    sample_pairwise_mutual_information,
)


def brute_force(members):
    count = len(members)
    matrix = torch.zeros(count, count, dtype=members.dtype)
    for i in range(count):
        for j in range(count):
            matrix[i, j] = mutual_information(members[[i, j]]).mean()
    return matrix


def test_matrix_is_the_mutual_information_of_each_pair(generator):
    members = ensemble(9, generator=generator)
    torch.testing.assert_close(
        pairwise_mutual_information(members), brute_force(members), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(("columns", "block"), [(7, 14), (300, 10), (10_000, 1 << 20)])
def test_blocks_do_not_matter(generator, monkeypatch, columns, block):
    members = ensemble(6, generator=generator)
    whole = pairwise_mutual_information(members)
    monkeypatch.setattr("coset.metrics.pairwise.COLUMNS", columns)
    monkeypatch.setattr("coset.metrics.pairwise.BLOCK", block)
    torch.testing.assert_close(pairwise_mutual_information(members), whole, atol=1e-13, rtol=0)


def test_float32_agrees_to_a_millionth(generator):
    members = ensemble(5, 5_000, 10, generator=generator)
    single = pairwise_mutual_information(members.float())
    assert single.dtype == torch.float32
    assert (single - pairwise_mutual_information(members)).abs().max() < 1e-6


def test_zeros_and_equal_members():
    sure = torch.tensor([[1.0, 0.0]])
    matrix = pairwise_mutual_information(torch.stack([sure, sure, 1 - sure]))
    assert matrix[0, 1] == 0
    assert float(matrix[0, 2]) == pytest.approx(0.6931472)
    assert matrix.equal(matrix.T)


def test_the_whole_as_a_sample_has_no_error(generator):
    members = ensemble(5, generator=generator)
    sample = sample_pairwise_mutual_information(
        members, pairs=100, inputs=1_000, generator=generator
    )
    matrix = pairwise_mutual_information(members)
    torch.testing.assert_close(sample.value, matrix[sample.pairs[:, 0], sample.pairs[:, 1]])
    assert sample.standard_error.abs().max() == 0
    assert sample.mean_standard_error == 0


def test_the_standard_error_covers(generator):
    """±3 errors hold the truth in at least 90 of 100 cases, for the mean and for a pair."""
    members = ensemble(12, 400, generator=generator)
    matrix = pairwise_mutual_information(members)
    truth = matrix[tuple(torch.triu_indices(12, 12, 1))].mean()
    held = pair_held = 0
    for _ in range(100):
        sample = sample_pairwise_mutual_information(
            members, pairs=20, inputs=80, generator=generator
        )
        held += bool((sample.mean - truth).abs() <= 3 * sample.mean_standard_error)
        i, j = sample.pairs[0]
        pair_held += bool((sample.value[0] - matrix[i, j]).abs() <= 3 * sample.standard_error[0])
    assert held >= 90
    assert pair_held >= 90
