"""Gains slot by slot: one matrix for each sign along a factor, and one for what no sign flips."""

import numpy as np

from coset.alignment.assignment import Indices, Matrix


def with_best_signs(gains: Matrix, signs: int) -> Matrix:
    """What unit ``j`` is worth in place ``i`` when it is flipped as it is worth most.

    Args:
        gains: Those of the signs first.
        signs: How many of them can be flipped.

    >>> with_best_signs(np.array([[[-2.0]], [[1.0]]]), 1).tolist()
    [[3.0]]
    """
    best: Matrix = np.abs(gains[0]) if signs else gains[0]
    for own in gains[1:signs]:
        best += np.abs(own)
    if 0 < signs < len(gains):
        best += gains[-1]
    return best


def flips_of(worth: Matrix, signs: int) -> Matrix | None:
    """Signs that make gains positive, row by row; where there is nothing to gain they stay.

    Args:
        worth: What units are worth in their places, slot by slot.
        signs: How many slots can be flipped.

    >>> flips_of(np.array([[-2.0, 1.0], [0.5, -0.5]]), 1).tolist()
    [[-1.0, 1.0], [1.0, 1.0]]
    """
    negative = worth[:signs] < 0
    if not negative.any():
        return None
    flips: Matrix = np.ones((signs + 1, worth.shape[1]), worth.dtype)
    flips[:signs][negative] = -1
    return flips


def worth_at(gains: Matrix, pairs: Indices) -> Matrix:
    """What units are worth slot by slot, pairs counted in entries of one matrix."""
    size = gains.shape[-1]
    worth: Matrix = gains.reshape(len(gains), size * size).take(pairs, 1)
    return worth
