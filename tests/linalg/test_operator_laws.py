"""Every operator, every verb, against the dense matrix."""

import pytest
import torch

from coset import CosetError
from coset.linalg import (
    BlockDiagonal,
    Dense,
    Diagonal,
    FromFunctions,
    Kronecker,
    LowRankPlusDiagonal,
    RowBlocks,
    cast,
    conjugate_gradients,
    dense,
    diagonal,
    inverse,
    logdet,
    nearly_inverse,
    root,
    scale,
    shift,
    solve,
)

F64 = torch.float64


def positive(size, *lead):
    factor = torch.randn(*lead, size, size, dtype=F64)
    return factor @ factor.mT + torch.eye(size, dtype=F64)


def orthogonal(size, blocks):
    return torch.linalg.qr(torch.randn(blocks, size, size, dtype=F64)).Q


def kronecker(blocks=2, rows=3, columns=4):
    table = torch.rand(blocks, rows, columns, dtype=F64) + 0.5
    return Kronecker(orthogonal(rows, blocks), orthogonal(columns, blocks), table)


def row_blocks():
    return shift(kronecker(), torch.rand(6, dtype=F64).repeat_interleave(4) + 0.1)


def low_rank(sign=1):
    factor = torch.randn(7, 2, dtype=F64) * (1.0 if sign > 0 else 0.2)
    return LowRankPlusDiagonal(torch.rand(7, dtype=F64) + 1, factor, sign)


def block_diagonal():
    blocks = (Dense(positive(3)), kronecker(1, 2, 2), Diagonal(torch.rand(2, dtype=F64) + 1))
    return BlockDiagonal(blocks, torch.randperm(9))


MAKERS = {
    "dense": lambda: Dense(positive(5)),
    "diagonal": lambda: Diagonal(torch.rand(5, dtype=F64) + 0.5),
    "kronecker": kronecker,
    "row blocks": row_blocks,
    "low rank": low_rank,
    "low rank, subtracted": lambda: low_rank(-1),
    "low rank, more columns than rows": lambda: LowRankPlusDiagonal(
        torch.rand(3, dtype=F64) + 1, torch.randn(3, 5, dtype=F64)
    ),
    "block diagonal": block_diagonal,
}


@pytest.fixture(params=MAKERS)
def operator(request):
    return MAKERS[request.param]()


def matrix_of(operator):
    return dense(operator, like=torch.zeros((), dtype=F64))


def test_products_are_linear_and_symmetric(operator):
    matrix = matrix_of(operator)
    x = torch.randn(operator.shape[1], 3, dtype=F64)
    torch.testing.assert_close(operator.matmat(x), matrix @ x)
    torch.testing.assert_close(operator.adjoint().matmat(x), matrix.mT @ x)
    torch.testing.assert_close(matrix, matrix.mT)


def test_verbs_agree_with_the_matrix(operator):
    matrix = matrix_of(operator)
    target = torch.randn(len(matrix), 2, dtype=F64)
    torch.testing.assert_close(solve(operator, target), torch.linalg.solve(matrix, target))
    torch.testing.assert_close(logdet(operator), torch.linalg.slogdet(matrix).logabsdet)
    torch.testing.assert_close(diagonal(operator), matrix.diagonal())
    torch.testing.assert_close(matrix_of(inverse(operator)), torch.linalg.inv(matrix))
    torch.testing.assert_close(matrix_of(scale(operator, 0.3)), 0.3 * matrix)


def test_roots(operator):
    matrix = matrix_of(operator)
    found = root(operator)
    columns = found.matmat(torch.eye(found.shape[1], dtype=F64))
    torch.testing.assert_close(columns @ columns.mT, matrix)
    torch.testing.assert_close(matrix_of(found.adjoint()), columns.mT)


def test_shift_keeps_the_structure(operator):
    if isinstance(operator, RowBlocks):
        pytest.skip("is the result of a shift and is not shifted again")
    precision = torch.full((operator.shape[0],), 0.7, dtype=F64)
    shifted = shift(operator, precision)
    assert type(shifted) is type(operator)
    torch.testing.assert_close(matrix_of(shifted), matrix_of(operator) + torch.diag(precision))


def test_a_precision_for_each_row_of_a_kronecker_product():
    operator = kronecker()
    precision = torch.rand(6, dtype=F64).repeat_interleave(4)
    shifted = shift(operator, precision)
    assert isinstance(shifted, RowBlocks)
    torch.testing.assert_close(matrix_of(shifted), matrix_of(operator) + torch.diag(precision))
    with pytest.raises(CosetError, match="inside a row"):
        shift(operator, torch.rand(24, dtype=F64))


def test_a_basis_that_is_not_orthogonal():
    sizes = torch.rand(2, 3, 1, dtype=F64) + 0.5
    plain = kronecker()
    operator = Kronecker(sizes * plain.left, plain.right, plain.table, orthogonal=False)
    matrix = matrix_of(operator)
    torch.testing.assert_close(diagonal(operator), matrix.diagonal())
    shifted = shift(operator, torch.full((24,), 0.3, dtype=F64))
    torch.testing.assert_close(matrix_of(shifted), matrix + 0.3 * torch.eye(24, dtype=F64))


def test_near_inverses_are_exact_where_that_is_cheap(operator):
    if isinstance(operator, RowBlocks):
        pytest.skip("is the result of a shift and is not shifted again")
    precision = torch.full((operator.shape[0],), 0.7, dtype=F64)
    exact = torch.linalg.inv(matrix_of(operator) + torch.diag(precision))
    torch.testing.assert_close(matrix_of(nearly_inverse(operator, precision, F64)), exact)


@pytest.mark.parametrize("spread", [1.0, 1e12])
def test_near_inverses_of_rows_leave_out_little_curvature(spread):
    plain = kronecker()
    sizes = torch.rand(2, 3, 1, dtype=F64) + 0.5
    table = plain.table * torch.tensor([5.0, 1e-3, 1e-6, 2.0], dtype=F64)
    operator = Kronecker(sizes * plain.left, plain.right, table, orthogonal=False)
    rows = (torch.rand(6, dtype=F64) + 0.5) * torch.tensor([1, 1, spread, 1, spread, 1], dtype=F64)
    precision = rows.repeat_interleave(4)
    near = matrix_of(nearly_inverse(operator, precision, F64))
    torch.testing.assert_close(near, near.mT)
    half = precision.sqrt()  # in units of the prior, where a condition number means something
    system = (matrix_of(operator) + torch.diag(precision)) / (half.unsqueeze(1) * half)
    values = torch.linalg.eigvals((near * half.unsqueeze(1) * half) @ system).real
    assert values.max() <= 1.1 + 1e-9
    assert values.min() >= 1 - 1e-9


def test_cast(operator):
    narrow = cast(operator, torch.float32)
    product = narrow.matmat(torch.ones(operator.shape[1], 1))
    expected = operator.matmat(torch.ones(operator.shape[1], 1, dtype=F64)).float()
    torch.testing.assert_close(product, expected, atol=1e-4, rtol=1e-4)


def test_conjugate_gradients_with_and_without_preconditioner():
    matrix = positive(6)
    target = torch.randn(6, 2, dtype=F64)
    expected = torch.linalg.solve(matrix, target)
    plain = conjugate_gradients(Dense(matrix), target, tolerance=1e-12)
    torch.testing.assert_close(plain.value, expected)
    exact = Dense(torch.linalg.inv(matrix))
    guided = conjugate_gradients(Dense(matrix), target, preconditioner=exact, tolerance=1e-10)
    assert guided.iterations <= 2
    assert guided.converged


def test_operators_without_structure():
    matrix = positive(4)
    plain = FromFunctions((4, 4), lambda x: matrix @ x, lambda x: matrix @ x)
    target = torch.randn(4, 1, dtype=F64)
    torch.testing.assert_close(solve(plain, target), torch.linalg.solve(matrix, target))
    with pytest.raises(CosetError, match="log-determinant is not known"):
        logdet(plain)


def test_what_is_not_positive_definite_is_refused():
    with pytest.raises(CosetError, match="not positive definite"):
        logdet(Dense(-torch.eye(2)))
