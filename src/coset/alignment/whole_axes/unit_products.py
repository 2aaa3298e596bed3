"""Whole axes of tensors: moved, and units along them multiplied with each other."""

import torch

from coset.alignment.assignment import Indices, Matrix
from coset.alignment.whole_axes.axes import AxisTerm
from coset.linalg.matrix_products import dot

LARGE = 2**16
"""Numbers from which torch gathers faster than numpy along last axes."""


def add_products(total: Matrix, left: Matrix, right: Matrix, term: AxisTerm) -> None:
    """Adds the inner products of all units of two tensors to a matrix."""
    if term.arrangement:
        left, right = left.transpose(term.arrangement), right.transpose(term.arrangement)
    one, other = left.reshape(term.matrix), right.reshape(term.matrix)
    one, other = (one.T, other) if term.own.place else (one, other.T)
    total += dot(one, other)


def moved(array: Matrix, place: int, order: Indices, flips: Matrix | None) -> Matrix:
    """A tensor, or a part of it, with the units along one axis in a new order and flipped."""
    after = taken(array, order, place)
    if flips is not None:
        shape = [1] * array.ndim
        shape[place] = -1
        after *= flips.reshape(shape)
    return after


def taken(array: Matrix, order: Indices, place: int) -> Matrix:
    """The units of an axis that are asked for, in this order."""
    if array.size < LARGE or place < array.ndim - 1:
        return array.take(order, place)
    rows = torch.from_numpy(array.reshape(-1, array.shape[-1]))
    found: Matrix = rows.index_select(1, torch.from_numpy(order)).numpy()
    return found.reshape(*array.shape[:-1], -1)
