import torch

from coset.tomography.taps import (
    DISTANCES,
    JITTER,
    class_weights,
    gram,
    own,
    tap_classes,
    tap_correlation,
)


def test_classes_part_all_pairs_of_taps():
    assert torch.equal(tap_classes().sum(0), torch.ones(9, 9).double())
    assert len(DISTANCES) == 6


def test_the_correlation_is_the_exponential_kernel():
    length = torch.tensor(0.7, dtype=torch.float64)
    places = torch.tensor([(i, j) for i in range(3) for j in range(3)]).double()
    expected = (-torch.cdist(places, places) / length).exp() + JITTER * torch.eye(9).double()
    torch.testing.assert_close(tap_correlation(length), expected, rtol=1e-12, atol=1e-12)
    assert torch.linalg.eigvalsh(tap_correlation(torch.tensor(50.0).double())).min() > 0


def test_eleven_products_give_all_class_sums():
    rows = torch.randn(6, 5, 9, generator=torch.Generator().manual_seed(0)).double()
    expected = torch.einsum("nfp,cpq,mfq->cnm", rows, tap_classes(), rows)
    torch.testing.assert_close(gram(rows), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own(rows), expected.diagonal(dim1=1, dim2=2), rtol=1e-12, atol=1e-12)


def test_weighted_class_sums_are_the_kernel():
    """``Φ (I ⊗ C) Φᵀ`` by brute force."""
    rows = torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(1)).double()
    length = torch.tensor(1.3).double()
    whole = torch.kron(torch.eye(3).double(), tap_correlation(length))
    expected = rows.flatten(1) @ whole @ rows.flatten(1).T
    found = torch.tensordot(class_weights(length), gram(rows), dims=1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_single_precision_is_that_of_the_rows_alone():
    """Sums rounded once more than the rows would not be those of the same weights."""
    rows = torch.randn(5, 4, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gram(rows), gram(rows.double()))
