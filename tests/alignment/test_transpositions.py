"""Cayley's distance against a cycle walk and closed forms."""

import itertools
import math

import pytest
import torch

from coset import CosetError
from coset.alignment.transpositions import (
    expected_transpositions,
    permutation_with_transpositions,
    transpositions,
)


def walk(permutation):
    """The reference: follow each cycle."""
    seen, cycles = set(), 0
    for start in range(len(permutation)):
        if start not in seen:
            cycles += 1
            here = start
            while here not in seen:
                seen.add(here)
                here = permutation[here]
    return len(permutation) - cycles


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64])
def test_batches_equal_the_walk(size, generator):
    batch = torch.rand(40, size, generator=generator).argsort(-1)
    assert transpositions(batch).tolist() == [walk(row) for row in batch.tolist()]


def test_leading_axes_keep_their_shape(generator):
    batch = torch.rand(2, 3, 5, generator=generator).argsort(-1)
    assert transpositions(batch).shape == (2, 3)


def test_it_is_a_metric(generator):
    p, q, r = torch.rand(3, 9, generator=generator).argsort(-1)

    def distance(a, b):
        return transpositions(a.argsort()[b])

    assert distance(p, p) == 0
    assert distance(p, q) == distance(q, p)
    assert distance(p, r) <= distance(p, q) + distance(q, r)
    assert distance(r[p], r[q]) == distance(p, q)


def test_the_mean_of_random_permutations(generator):
    """n = 512: mean 505.18, standard deviation 2.27 (n - H_n, H_n - H_n²); five standard errors."""
    batch = torch.rand(400, 512, generator=generator).argsort(-1)
    assert expected_transpositions(512) == pytest.approx(505.18, abs=0.01)
    mean = float(transpositions(batch).double().mean())
    assert abs(mean - expected_transpositions(512)) < 5 * 2.27 / math.sqrt(400)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_exactly_k(n, uniform, generator):
    for k in range(n):
        found = permutation_with_transpositions(n, k, generator=generator, uniform=uniform)
        assert transpositions(found) == k


def test_displaced_units_of_the_even_generator(generator):
    """With m = n - k cycles, n - m (1 - 1/m)^k units move on average."""
    n, k, runs = 60, 30, 300
    moved = [
        int((permutation_with_transpositions(n, k, generator=generator) != torch.arange(n)).sum())
        for _ in range(runs)
    ]
    m = n - k
    expected = n - m * (1 - 1 / m) ** k
    deviation = torch.tensor(moved).double().std() / math.sqrt(runs)
    assert abs(sum(moved) / runs - expected) < 5 * float(deviation)


def test_the_uniform_generator_is_uniform(generator):
    """All 11 permutations of 4 with two cycles, 1,100 draws: chi-square below its 1e-4 quantile."""
    wanted = [p for p in itertools.permutations(range(4)) if walk(p) == 2]
    draws = [
        tuple(permutation_with_transpositions(4, 2, generator=generator, uniform=True).tolist())
        for _ in range(1100)
    ]
    counts = [draws.count(p) for p in wanted]
    assert sum(counts) == 1100
    assert sum((c - 100) ** 2 / 100 for c in counts) < 35.6


@pytest.mark.parametrize(("n", "k"), [(3, 3), (3, -1), (0, 0)])
def test_impossible_counts_are_refused(n, k, generator):
    with pytest.raises(CosetError, match=f"n={n}"):
        permutation_with_transpositions(n, k, generator=generator)


@pytest.mark.parametrize("bad", [torch.tensor([0, 0]), torch.tensor([1.0]), torch.tensor(3)])
def test_what_is_no_permutation_is_refused(bad):
    with pytest.raises(CosetError):
        transpositions(bad)
