"""Patches, and their second moment without them."""

import pytest
import torch
from torch.nn import functional

from coset.curvature.patches import channels_last, patches, second_moment

GEOMETRIES = [
    ((7, 6), (3, 3), {"padding": 1}),
    ((7, 6), (3, 2), {"padding": (2, 0), "stride": (1, 2)}),
    ((9, 8), (2, 3), {"padding": 1, "dilation": (2, 1)}),
    ((3, 5), (3, 3), {}),
    ((4, 4), (1, 1), {}),
    ((6, 5), (4, 3), {"padding": "same"}),
    ((8,), (3,), {"padding": 1}),
    ((5, 4, 3), (3, 2, 2), {"padding": 1}),
]


@pytest.mark.parametrize(("sizes", "kernel", "geometry"), GEOMETRIES)
@pytest.mark.parametrize("ones", [False, True])
def test_second_moment_is_that_of_the_patches(sizes, kernel, geometry, ones):
    inputs = torch.randn(3, 2, *sizes, dtype=torch.float64)
    rows = patches(inputs, kernel, 1, **geometry).flatten(0, 2)
    if ones:
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    found = second_moment(inputs, kernel, ones=ones, **geometry)
    torch.testing.assert_close(found[0], rows.mT @ rows)


def test_patches_are_what_unfold_reads():
    inputs = torch.randn(2, 4, 6, 5)
    found = patches(inputs, (3, 2), 1, padding=1, stride=2)
    expected = functional.unfold(inputs, (3, 2), padding=1, stride=2).mT
    by_pixel = expected.unflatten(-1, (4, 6)).mT.flatten(-2)  # unfold goes channel by channel
    torch.testing.assert_close(found[:, 0], by_pixel)
    torch.testing.assert_close(
        patches(channels_last(inputs), (3, 2), 1, padding=1, stride=2), found
    )


def test_groups_read_their_own_channels():
    inputs = torch.randn(2, 4, 6, 5)
    found = patches(inputs, (3, 3), 2)
    torch.testing.assert_close(found[:, 1], patches(inputs[:, 2:], (3, 3), 1)[:, 0])


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_order_only(channels):
    images = torch.randn(2, channels, 4, 5)
    found = channels_last(images)
    assert torch.equal(found, images)
    assert found.stride() == (channels * 20, 1, channels * 5, channels)
