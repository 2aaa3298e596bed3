"""Crops and flips against a loop over pictures; targets go with them."""

import pytest
import torch

from coset import Categorical, GaussianPrior, MaximumAPosteriori, fit
from coset.data import Augmented, augment
from coset.data.augmentation import mirrored, shifted, tinted
from coset.errors import CosetError
from coset.models import dilated


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
    twenty = picture.expand(20_000, 1, 3, 3), torch.zeros(20_000)
    many, labels = augment(*twenty, crop=1, flip=True, generator=generator)
    assert torch.equal(labels, twenty[1]), "one label a picture stays"
    seen = {tuple(map(int, one.flatten())) for one in many}
    positions = {(row, column) for row in range(3) for column in range(3)}
    assert {tuple(one).index(1) for one in seen if 1 in one} == {3 * r + c for r, c in positions}
    assert (0,) * 9 in seen, "some are moved out of sight"
    again = torch.Generator().manual_seed(0)
    same, _ = augment(*twenty, crop=1, flip=True, generator=again)
    assert torch.equal(many, same)


def test_targets_go_where_their_pixels_go(generator):
    """Pictures that carry their own labels and depths as colours still do afterwards."""
    labels = torch.randint(1, 9, (30, 6, 5), generator=generator)
    depths = labels.double().unsqueeze(1)
    pictures = labels.unsqueeze(1) / 10.0
    for targets, void in ((labels, 0), (depths, None)):
        random = torch.Generator().manual_seed(3)
        moved, found = augment(pictures, targets, crop=3, flip=True, void=void, generator=random)
        assert found.shape == targets.shape
        assert found.dtype == targets.dtype
        here = found.nan_to_num(0.0).reshape(30, 1, 6, 5)
        assert torch.allclose(moved.double(), here.double() / 10)
        assert (here == 0).any()


def test_tints_keep_black_white_and_the_order_of_brightness(generator):
    ramp = torch.linspace(0, 1, 11).view(1, 1, 1, 11).repeat(50, 3, 1, 1)
    found = tinted(ramp, 0.3, generator)
    assert (found.diff(dim=-1) >= 0).all()
    assert (found[..., 0] == 0).all()
    assert float(found.amax()) <= 1
    assert float(found[:, 0, 0, 5].std()) > 0.05


def test_training_sees_augmented_pictures_and_says_so(generator):
    pictures = torch.rand(12, 3, 8, 8, generator=generator)
    labels = (pictures[:, 0] > 0.5).long()
    shown = Augmented(
        pictures, labels, crop=1, flip=True, colour=0.1, void=9, batch_size=4, generator=generator
    )
    assert torch.equal(next(iter(shown))[0], pictures[:4])
    predictor = fit(
        dilated(in_channels=3, classes=2, width=4, dilations=(1, 1)),
        shown,
        method=MaximumAPosteriori(epochs=1),
        likelihood=Categorical(ignore=9),
        prior=GaussianPrior(1.0),
    )
    assert any("augmentation" in warning for warning in predictor.posterior.report.warnings)
    assert predictor(pictures).mean.shape == (12, 2, 8, 8)


def test_what_cannot_be_moved_together_is_refused(generator):
    pictures, labels = torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
    with pytest.raises(CosetError, match="void"):
        augment(pictures, labels, crop=1, generator=generator)
    with pytest.raises(CosetError, match="nearest"):
        augment(pictures, labels[:, :2], flip=True, generator=generator)
    with pytest.raises(CosetError, match="movedim"):
        augment(pictures[0], labels, flip=True, generator=generator)
    with pytest.raises(CosetError, match="colour"):
        augment(pictures, labels, colour=-1.0, generator=generator)
