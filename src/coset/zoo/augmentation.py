"""Training pictures moved and mirrored at random, as pure functions of a generator."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from coset.zoo.recipe import Augmentation

Pictures = Float[Tensor, "n channels height width"]


def augment(pictures: Pictures, how: Augmentation, generator: torch.Generator) -> Pictures:
    """Pictures cropped and mirrored as a recipe says, each in its own way."""
    count = len(pictures)
    if how.crop:
        moves = torch.randint(2 * how.crop + 1, (count, 2), generator=generator)
        pictures = shifted(pictures, moves - how.crop)
    if how.flip:
        pictures = mirrored(pictures, torch.rand(count, generator=generator) < 0.5)
    return pictures


def shifted(pictures: Pictures, moves: Int[Tensor, "n 2"]) -> Pictures:
    """Each picture moved down and to the right by its two numbers; what is bared is zero.

    >>> shifted(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[1, 0]])).tolist()
    [[[[0.0, 0.0], [1.0, 2.0]]]]
    """
    most = int(moves.abs().max()) if len(moves) else 0
    height, width = pictures.shape[2:]
    wide = pad(pictures, (most,) * 4)
    rows = most - moves[:, :1] + torch.arange(height)
    columns = most - moves[:, 1:] + torch.arange(width)
    numbers = torch.arange(len(pictures))[:, None, None]
    return wide[numbers, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def mirrored(pictures: Pictures, which: Tensor) -> Pictures:
    """Some pictures with left and right exchanged.

    >>> mirrored(torch.tensor([[[[1.0, 2.0]]], [[[1.0, 2.0]]]]), torch.tensor([True, False]))
    tensor([[[[2., 1.]]],
            [[[1., 2.]]]])
    """
    return torch.where(which[:, None, None, None], pictures.flip(3), pictures)
