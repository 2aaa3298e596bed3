"""Large products by oneDNN are torch's but for rounding; double precision is torch's own."""

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.nn.functional import linear as torchs

from coset.linalg import large_products
from coset.linalg.large_products import linear

SHARED = {"each its own": (0, 0), "the same rows": (None, 0), "the same weight": (0, None)}


@pytest.fixture(autouse=True)
def slow_mkl(monkeypatch):
    if not (
        torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    ):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(large_products, "mkl_is_slow", lambda: True)


def by_both(function, sides):
    """The outputs of a function and the gradients of a sum of them, by oneDNN and by torch."""
    found = []
    for product in (linear, torchs):
        leaves = [side.detach().requires_grad_() for side in sides]
        outputs = function(product)(*leaves)
        pull = torch.linspace(-1, 1, outputs.numel()).to(outputs).view_as(outputs)
        found.append([outputs.detach(), *torch.autograd.grad(outputs, leaves, pull)])
    return zip(*found, strict=True)


def normal(*shape, kind):
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(shape, generator=generator, dtype=kind)


def compare(pairs, kind):
    for found, wanted in pairs:
        assert found.shape == wanted.shape
        if kind == torch.float64:
            assert torch.equal(found, wanted)
        else:
            assert float((found - wanted).norm()) <= 1e-5 * float(wanted.norm())


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [(520,), (4, 130)])
def test_products_and_gradients_are_those_of_torch(lead, kind):
    sides = [normal(*lead, 257, kind=kind), normal(60, 257, kind=kind), normal(60, kind=kind)]
    compare(by_both(lambda product: product, sides), kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", SHARED)
def test_stacks_are_those_of_torch(shared, kind):
    axes = SHARED[shared]
    rows, weight = normal(3, 520, 257, kind=kind), normal(3, 60, 257, kind=kind)
    sides = [
        side if axis == 0 else side[0] for side, axis in zip((rows, weight), axes, strict=True)
    ]
    compare(by_both(lambda product: vmap(product, in_dims=axes), sides), kind)


def test_weights_with_gaps_and_small_products_are_those_of_torch():
    sides = [normal(520, 257, kind=torch.float32), normal(60, 300, kind=torch.float32)]
    cut = [sides[0], sides[1][:, 43:]]
    compare(by_both(lambda product: product, cut), torch.float32)
    few = [sides[0][:4], cut[1]]
    compare(
        ((each.double(), other.double()) for each, other in by_both(lambda p: p, few)),
        torch.float64,
    )
    empty = linear(sides[0][:0], cut[1])
    assert empty.shape == (0, 60)


def test_equal_numbers_give_equal_bits():
    sides = [normal(520, 257, kind=torch.float32), normal(60, 257, kind=torch.float32)]
    assert torch.equal(linear(*sides), linear(*(side.clone() for side in sides)))


def test_only_large_products_in_single_precision_are_taken(monkeypatch):
    taken, product = [], large_products._product
    monkeypatch.setattr(
        large_products, "_product", lambda *sides: taken.append(1) or product(*sides)
    )
    rows, weight = normal(520, 257, kind=torch.float32), normal(60, 257, kind=torch.float32)
    linear(rows.double(), weight.double()), linear(rows[:4], weight), linear(rows, weight[0])
    assert not taken
    linear(rows, weight)
    assert len(taken) == 1


def test_second_derivatives_and_those_along_a_direction_are_those_of_torch():
    """As networks take them that differentiate in their forward pass."""
    rows, weight = normal(520, 257, kind=torch.float32), normal(60, 257, kind=torch.float32)
    found = []
    for product in (linear, torchs):

        def slope(rows, product=product):
            return grad(lambda rows: product(rows, weight).sin().sum())(rows).square().sum()

        along = jvp(lambda rows, product=product: product(rows, weight), (rows,), (rows.cos(),))
        found.append([grad(slope)(rows), *along])
    compare(zip(*found, strict=True), torch.float32)
