"""The formula of Kronecker factors, against products written out."""

import pytest
import torch

from coset.curvature.kronecker_factors import Sums, kronecker


def sums_of(left, right):
    return Sums(torch.einsum("no,np->op", left, left)[None], (right.mT @ right)[None])


@pytest.mark.parametrize("scaled", [False, True])
def test_it_is_the_product_of_the_two_moments(scaled):
    left = torch.randn(7, 3, dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.1])
    right = torch.randn(7, 4, dtype=torch.float64)
    sums = sums_of(left, right)
    found = kronecker(sums, 7, scaled=scaled).matmat(torch.eye(12, dtype=torch.float64))
    expected = torch.kron(sums.left[0], sums.right[0]) / 7
    torch.testing.assert_close(found, expected)


def test_one_example_and_column_is_exact():
    """With a single term nothing is taken for independent that is not."""
    left, right = torch.randn(1, 3).double(), torch.randn(1, 4).double()
    gradient = torch.outer(left[0], right[0]).flatten()
    found = kronecker(sums_of(left, right), 1).matmat(torch.eye(12, dtype=torch.float64))
    torch.testing.assert_close(found, torch.outer(gradient, gradient))


def test_sums_that_vanish_take_the_eigenvectors_of_single_positions():
    """Before a group norm sums over positions vanish: rounding must not choose the basis."""
    single = sums_of(torch.randn(9, 3).double(), torch.randn(9, 4).double())
    nothing = Sums(torch.zeros_like(single.left), torch.zeros_like(single.right))
    found = kronecker(nothing, 9, single=single, rounding=(1e-15, 1e-15))
    for basis, moment in ((found.left[0], single.left[0]), (found.right[0], single.right[0])):
        turned = basis.mT @ moment @ basis
        torch.testing.assert_close(turned, turned.diagonal().diag(), atol=1e-9, rtol=0)
