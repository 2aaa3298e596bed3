"""Pictures of predictions by pixel: what is drawn, and what is refused."""

import re

import pytest
import torch

from coset import CosetError
from coset.report import draw_pixels


def pictures(generator, n=2):
    return torch.rand(n, 3, 5, 4, generator=generator)


def test_labels_have_a_row_a_picture_and_the_same_numbers_the_same_bytes(generator):
    chances = torch.rand(2, 3, 5, 4, generator=generator).softmax(1)
    labels = torch.randint(3, (2, 5, 4), generator=generator)
    labels[0, 0] = 9
    inputs = pictures(generator)
    drawn = draw_pixels(inputs, labels, chances, ignore=9)
    assert drawn == draw_pixels(inputs, labels, chances, ignore=9)
    assert drawn.count("<image") == 10
    words = re.findall(r">(\w[\w ]*)<", drawn)
    known = ["input", "truth", "prediction", "deviation", "error"]
    assert [word for word in words if word != "pixels"] == known
    sampled = draw_pixels(inputs, labels, chances, ignore=9, sample=labels.clamp_max(2))
    assert sampled.count("<image") == 12
    assert draw_pixels(
        inputs.repeat(9, 1, 1, 1), labels.repeat(9, 1, 1), chances.repeat(9, 1, 1, 1)
    )


def test_numbers_with_holes(generator):
    mean = torch.rand(2, 1, 5, 4, generator=generator)
    targets = mean + 0.1
    targets[0, 0, :2] = torch.nan
    drawn = draw_pixels(pictures(generator)[:, :1], targets, mean, torch.ones_like(mean))
    assert drawn.count("<image") == 10


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mean": torch.rand(3, 2, 5, 4)}, "one a picture"),
        ({"targets": torch.rand(2, 2, 5, 4)}, "no variance"),
        (
            {"targets": torch.rand(2, 2, 5, 4), "variance": torch.ones(2, 2, 5, 4)},
            "draw the outputs one by one",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changed, words, generator):
    given = {"targets": torch.zeros(2, 5, 4, dtype=torch.long), "mean": torch.rand(2, 2, 5, 4)}
    with pytest.raises(CosetError, match=words):
        draw_pixels(pictures(generator), **given | changed)
