"""Products by either library are those of double precision, however matrices lie in memory."""

import pytest
import torch

from coset.linalg import matrix_products as products

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)

LARGE = [(64, 512, 256), (256, 64, 512), (8, 1024, 600), (600, 1024, 8), (257, 129, 131)]
SMALL = [(3, 4, 5), (1, 5000, 1000), (1000, 5000, 1), (2000, 3, 2000), (0, 4, 5), (600, 0, 900)]
ERROR = 1e-5
"""Relative to the norm; single precision has 6e-8 a term."""


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def slow_mkl(request, monkeypatch):
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "mkl_is_slow", lambda: request.param)
    return request.param


def matrix(rows, columns, laid, *, generator):
    """Random numbers, laid row by row, column by column, or with gaps in between."""
    by_columns, gap = "columns" in laid, 7 if "gaps" in laid else 0
    shape = (columns + gap, rows + gap) if by_columns else (rows + gap, columns + gap)
    whole = torch.randn(shape, generator=generator)
    return (whole.mT if by_columns else whole)[:rows, :columns]


LAID = ["rows", "columns", "rows with gaps", "columns with gaps"]


@pytest.mark.parametrize("laid_right", LAID)
@pytest.mark.parametrize("laid_left", LAID)
@pytest.mark.parametrize("sizes", LARGE + SMALL, ids=str)
@pytest.mark.usefixtures("slow_mkl")
def test_products_are_those_of_double_precision(sizes, laid_left, laid_right):
    rows, inner, columns = sizes
    generator = torch.Generator().manual_seed(0)
    left = matrix(rows, inner, laid_left, generator=generator)
    right = matrix(inner, columns, laid_right, generator=generator)
    bias = torch.randn(columns, generator=generator)
    wanted = left.double() @ right.double()

    def far(found, wanted):
        return (found.double() - wanted).norm() <= ERROR * (1 + wanted.norm())

    out = torch.full((rows, columns), torch.nan)
    assert far(products.mm(left, right), wanted)
    assert products.mm(left, right, out=out) is out
    assert far(out, wanted)
    assert far(products.addmm(bias, left, right), wanted + bias.double())
    assert far(products.matmul(left, right), wanted)
    found = products.dot(left.numpy(), right.numpy())
    assert found.dtype == left.numpy().dtype
    assert far(torch.from_numpy(found), wanted)


@pytest.mark.parametrize("sizes", [LARGE[0], SMALL[0]], ids=str)
@pytest.mark.usefixtures("slow_mkl")
def test_stacks_are_multiplied_one_by_one(sizes):
    rows, inner, columns = sizes
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(3, rows, inner, generator=generator)
    right = torch.randn(3, columns, inner, generator=generator).mT
    bias = torch.randn(3, rows, 1, generator=generator)
    wanted = left.double() @ right.double()
    out = torch.full((columns, 3, rows), torch.nan).permute(1, 2, 0)  # any order of memory
    near = {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(products.bmm(left, right).double(), wanted, **near)
    torch.testing.assert_close(products.bmm(left, right, out=out).double(), wanted, **near)
    found = products.baddbmm(bias, left, right)
    torch.testing.assert_close(found.double(), wanted + bias.double(), **near)
    torch.testing.assert_close(products.matmul(left, right).double(), wanted, **near)
    four = left.unsqueeze(1)
    assert products.matmul(four, right[0]).shape == (3, 1, rows, columns)
    assert products.matmul(four, right.unsqueeze(1)).shape == (3, 1, rows, columns)


@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_products_go_to_onednn_where_mkl_is_slow(sizes, slow_mkl):
    left, right = torch.zeros(sizes[:2]), torch.zeros(sizes[1:])
    assert products._goes_to_onednn(left, right) == slow_mkl
    assert not products._goes_to_onednn(left.double(), right.double())
    assert not products._goes_to_onednn(left.requires_grad_(), right)


@needs_onednn
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_small_and_flat_products_stay_with_torch(sizes, monkeypatch):
    monkeypatch.setattr(products, "mkl_is_slow", lambda: True)
    assert not products._goes_to_onednn(torch.zeros(sizes[:2]), torch.zeros(sizes[1:]))


@pytest.mark.usefixtures("slow_mkl")
def test_gradients_come_through():
    left, right = torch.randn(64, 512, requires_grad=True), torch.randn(512, 256)
    products.mm(left, right).sum().backward()
    torch.testing.assert_close(left.grad, right.sum(1).expand(64, -1), rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize(
    ("maker", "vectors", "slow"),
    [("AuthenticAMD", "AVX512", True), ("AuthenticAMD", "AVX2", False), ("Intel", "AVX512", False)],
)
def test_the_processor_decides(maker, vectors, slow, monkeypatch):
    monkeypatch.setattr(products, "_processor", lambda: f"vendor_id : {maker}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    decide = products.mkl_is_slow.__wrapped__  # without what was remembered of this one
    assert decide() == slow
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not decide()
