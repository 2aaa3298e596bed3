"""Crops and flips against a loop over pictures."""

import torch

from coset.zoo.augmentation import augment, mirrored, shifted
from coset.zoo.recipe import Augmentation


def test_shifts_agree_with_a_loop(generator):
    pictures = torch.rand(20, 2, 5, 7, generator=generator)
    moves = torch.randint(-3, 4, (20, 2), generator=generator)
    found = shifted(pictures, moves)
    for picture, (down, right), got in zip(pictures, moves.tolist(), found, strict=True):
        for row in range(5):
            for column in range(7):
                before = (row - down, column - right)
                inside = 0 <= before[0] < 5 and 0 <= before[1] < 7
                want = picture[:, before[0], before[1]] if inside else torch.zeros(2)
                assert torch.equal(got[:, row, column], want)


def test_flips_agree_with_a_loop(generator):
    pictures = torch.rand(6, 2, 3, 4, generator=generator)
    which = torch.tensor([True, False] * 3)
    for picture, flip, got in zip(pictures, which, mirrored(pictures, which), strict=True):
        assert torch.equal(got, picture.flip(-1) if flip else picture)


def test_augmenting_draws_every_shift_and_both_sides():
    """441 shifts are seen with chance 1 - 441 exp(-20000 / 441) > 1 - 1e-16 with crop 10."""
    picture = torch.zeros(1, 1, 3, 3)
    picture[0, 0, 1, 0] = 1.0
    generator = torch.Generator().manual_seed(0)
    many = augment(picture.expand(20_000, 1, 3, 3), Augmentation(crop=1, flip=True), generator)
    seen = {tuple(map(int, one.flatten())) for one in many}
    positions = {(row, column) for row in range(3) for column in range(3)}
    assert {tuple(one).index(1) for one in seen if 1 in one} == {3 * r + c for r, c in positions}
    assert (0,) * 9 in seen, "some are moved out of sight"
    again = torch.Generator().manual_seed(0)
    same = augment(picture.expand(20_000, 1, 3, 3), Augmentation(crop=1, flip=True), again)
    assert torch.equal(many, same)
