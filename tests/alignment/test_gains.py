"""Gains with the best signs against all signs, one after the other."""

import itertools

import numpy as np
import pytest

from coset.alignment.gains import Gains

PARITIES = {
    "none": [()],
    "one": [(1,), (0,)],
    "apart": [(1, 0), (0, 1)],
    "joined": [(1, 0), (1, 1), (0, 1), (0, 0)],
    "a ring": [(1, 1, 0), (0, 1, 1), (1, 0, 1)],
    # six norms that read one stream: their weights flip with the stream's sign and their own
    "a star": [(1, *[0] * 6), *[(1, *row) for row in np.eye(6, dtype=int).tolist()]]
    + [(0, *row) for row in np.eye(6, dtype=int).tolist()],
}


@pytest.mark.parametrize("name", PARITIES)
def test_the_best_signs_are_those_of_brute_force(name):
    random = np.random.default_rng(0)
    parities = [tuple(map(bool, parity)) for parity in PARITIES[name]]
    signs = len(parities[0])
    gains = Gains({parity: random.normal(size=(2, 5, 5)) for parity in parities}, signs)
    every = [gains.at(choice) for choice in itertools.product((1, -1), repeat=signs)]
    np.testing.assert_allclose(gains.best(), np.max(every, 0))
    chosen = np.stack([random.permutation(5) for _ in range(2)])
    found = gains.signs_at(chosen)
    assert found.shape == (2, 5, signs)
    for copy, unit in itertools.product(range(2), range(5)):
        value = gains.at(tuple(map(int, found[copy, unit])))[copy, unit, chosen[copy, unit]]
        assert value == pytest.approx(gains.best()[copy, unit, chosen[copy, unit]])


def test_equals_flip_nothing():
    gains = Gains({(True, True): np.zeros((1, 3, 3)), (True, False): np.zeros((1, 3, 3))}, 2)
    assert bool((gains.signs_at(np.array([[2, 0, 1]])) == 1).all())
