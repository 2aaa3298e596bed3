"""What convolutions read."""

import pytest
import torch
from torch.nn import functional

from coset.curvature.patches import channels_last, patches


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
