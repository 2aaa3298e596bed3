"""Second moments of rows and of patches, against plain products."""

import pytest
import torch

from coset.curvature.moments import add_moment, patch_moment, symmetric
from coset.curvature.patches import channels_last, patches

GEOMETRIES = [
    ((7, 6), (3, 3), {"padding": 1}),
    ((7, 6), (3, 2), {"padding": (2, 0), "stride": (1, 2)}),
    ((9, 8), (2, 3), {"padding": 1, "dilation": (2, 1)}),
    ((11, 12), (3, 4), {"padding": (3, 1), "dilation": (3, 2)}),
    ((3, 5), (3, 3), {}),
    ((4, 4), (4, 4), {}),
    ((4, 4), (1, 1), {}),
    ((4, 5), (1, 3), {"padding": (0, 1)}),
    ((5, 4), (5, 1), {"padding": 2}),
    ((2, 2), (3, 3), {"padding": 2, "dilation": 2}),
    ((6, 5), (4, 3), {"padding": "same"}),
    ((8,), (3,), {"padding": 1}),
    ((5, 4, 3), (3, 2, 2), {"padding": 1}),
]


@pytest.mark.parametrize(("sizes", "kernel", "geometry"), GEOMETRIES)
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_moment_of_patches_is_that_of_all_of_them(sizes, kernel, geometry, ones, channels):
    images = channels_last(torch.randn(3, channels, *sizes, dtype=torch.float64))
    rows = patches(images, kernel, 1, **geometry).flatten(0, 2)
    if ones:
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    found = symmetric(patch_moment(images, kernel, ones=ones, **geometry))
    torch.testing.assert_close(found[0], rows.mT @ rows)


SIDES = {
    "a linear layer": (9, 1, 1, 6),
    "a wide one": (9, 1, 1, 130),
    "tokens": (4, 1, 3, 5),
    "many positions": (4, 1, 20, 5),
    "groups": (4, 2, 20, 5),
    "a norm": (4, 3, 20, 1),
    "no wider than its stripes": (3, 1, 1, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SIDES.values(), ids=SIDES)
@pytest.mark.parametrize("planes", [False, True])
def test_moments_are_added(shape, planes, dtype):
    side = torch.randn(shape, dtype=dtype)
    if planes:  # as the gradients of a convolution with few channels lie
        side = side.mT.contiguous().mT
    start = torch.randn(shape[1], shape[3], shape[3], dtype=dtype)
    start = start + start.mT
    total = start.clone()
    add_moment(total, side, 3)
    expected = start.double() + 3 * torch.einsum("nbri,nbrj->bij", side.double(), side.double())
    torch.testing.assert_close(symmetric(total).double(), expected, rtol=1e-5, atol=1e-4)


def test_a_part_of_a_larger_tensor_is_read_where_it_is():
    whole = torch.randn(6, 1, 20, 5)
    total = torch.zeros(1, 5, 5)
    add_moment(total, whole[2:4])
    rows = whole[2:4].reshape(-1, 5)
    torch.testing.assert_close(symmetric(total)[0], rows.mT @ rows)
