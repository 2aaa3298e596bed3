"""Rows with precisions of their own, against the dense matrix."""

import pytest
import torch

from coset.inference.laplace.row_evidence import row_effective, row_labels, row_logdet
from coset.linalg import Diagonal, Kronecker, dense

pytestmark = pytest.mark.usefixtures("double")


def block(size, orthogonal=False):
    """Two blocks of four rows and five columns, some columns with hardly any curvature."""
    left = torch.randn(2, 4, 4)
    left = torch.linalg.qr(left).Q if orthogonal else left
    right = torch.linalg.qr(torch.randn(2, 5, 5)).Q
    table = torch.rand(2, 4, 5) * torch.tensor([size, 1e-6, 1.0, 1e-9, 0.0])
    return Kronecker(left, right, table, orthogonal=orthogonal)


@pytest.mark.parametrize("size", [1e-7, 1.0, 1e6])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_against_the_dense_matrix(size, orthogonal):
    operator = block(size, orthogonal)
    precision = torch.rand(2, 4) + 0.5
    flat = precision.unsqueeze(-1).expand(2, 4, 5).flatten()
    matrix = torch.block_diag(*[_dense(operator, b) for b in range(2)])
    whole = matrix + torch.diag(flat)
    expected = torch.linalg.slogdet(whole).logabsdet - flat.log().sum()
    torch.testing.assert_close(row_logdet(operator, precision), expected, rtol=1e-7, atol=1e-9)
    kept = (matrix @ torch.linalg.inv(whole)).diagonal().reshape(2, 4, 5).sum(-1)
    torch.testing.assert_close(row_effective(operator, precision), kept, rtol=1e-7, atol=1e-9)


def _dense(operator, number):
    part = slice(number, number + 1)
    one = Kronecker(operator.left[part], operator.right[part], operator.table[part])
    return dense(one, like=operator.table)


def test_gradients_in_the_precisions():
    operator = block(1.0)
    precision = (torch.rand(2, 4) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: row_logdet(operator, p), precision, rtol=1e-4)


def test_labels_of_rows():
    operator = block(1.0)
    rows = torch.arange(8).reshape(2, 4)
    labels = rows.unsqueeze(-1).expand(2, 4, 5).flatten()
    assert torch.equal(row_labels(operator, labels), rows)
    assert row_labels(operator, torch.arange(40)) is None
    assert row_labels(Diagonal(torch.ones(40)), labels) is None
