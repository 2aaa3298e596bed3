"""Training pictures moved, mirrored and tinted at random, their pixel targets with them.

All are pure functions of a generator; :class:`Augmented` shows them to a fit.
"""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from coset.bayes.batches import InMemory
from coset.errors import CosetError, require_counts, require_kind
from coset.printing import brief
from coset.vocabulary import Batch

Pictures = Float[Tensor, "n channels height width"]


def augment(
    pictures: Pictures,
    targets: Tensor,
    *,
    crop: int = 0,
    flip: bool = False,
    colour: float = 0.0,
    void: int | None = None,
    generator: torch.Generator,
) -> tuple[Pictures, Tensor]:
    """Pictures and targets, each pair cropped, mirrored and tinted in its own way.

    Targets with the pictures' height and width, ``(n, h, w)`` or ``(n, k, h, w)``, move and turn
    with them; others stay.

    Args:
        pictures: In [0, 1].
        targets: One for each picture, or for each of its pixels.
        crop: Pixels by which a picture is moved at most, up or down and left or right.  What is
            bared is zero, and its targets have no say: NaN, or the label ``void``.
        flip: Whether every other picture is mirrored.
        colour: Standard deviation of the logarithms of a factor and a power for each channel.
        void: The label of pixels that have none.
        generator: Chooses.

    >>> pictures, labels = torch.rand(4, 3, 8, 8), torch.zeros(4, 8, 8, dtype=torch.long)
    >>> random = torch.Generator().manual_seed(0)
    >>> moved, labels = augment(pictures, labels, crop=2, flip=True, void=255, generator=random)
    >>> bool(((labels == 255) == (moved == 0).all(1)).all())
    True
    """
    require_counts(0, crop=crop)
    require_kind(float, colour=colour)
    by_pixel = _by_pixel(pictures, targets)
    if by_pixel and crop and not targets.is_floating_point() and void is None:
        raise CosetError(
            f"got crop={crop} for labels of pixels",
            "needed a label for pixels that are moved in from outside",
            "pass void=…, and the same to the likelihood: Categorical(ignore=…)",
        )
    count = len(pictures)
    if crop:
        moves = torch.randint(2 * crop + 1, (count, 2), generator=generator) - crop
        pictures = shifted(pictures, moves)
        if by_pixel:
            bared = math.nan if targets.is_floating_point() else void
            assert bared is not None, "refused above"
            targets = shifted(targets, moves, bared=bared)
    if flip:
        which = torch.rand(count, generator=generator) < 0.5
        pictures = mirrored(pictures, which)
        targets = mirrored(targets, which) if by_pixel else targets
    if colour:
        if not 0 < colour < math.inf:
            raise CosetError(f"got colour={colour}", "needed a finite number, at least 0")
        pictures = tinted(pictures, colour, generator)
    return pictures, targets


def _by_pixel(pictures: Tensor, targets: Tensor) -> bool:
    """Whether targets have the size of the pictures."""
    if pictures.ndim != 4:
        raise CosetError(
            f"got pictures of shape {tuple(pictures.shape)}",
            "needed (n, channels, height, width)",
            "use pictures.movedim(-1, 1) where channels come last",
        )
    if targets.ndim < 3:
        return False
    if targets.shape[-2:] != pictures.shape[-2:] or len(targets) != len(pictures):
        raise CosetError(
            f"got targets of shape {tuple(targets.shape)} for pictures of {tuple(pictures.shape)}",
            "needed one target a pixel, in the size of the pictures",
            "resize labels by their nearest neighbours, never by interpolation",
        )
    return True


def shifted(
    values: Shaped[Tensor, "n ... height width"], moves: Int[Tensor, "n 2"], *, bared: float = 0
) -> Shaped[Tensor, "n ... height width"]:
    """Each picture moved down and to the right by its two numbers.

    >>> shifted(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[1, 0]])).tolist()
    [[[[0.0, 0.0], [1.0, 2.0]]]]
    """
    most = int(moves.abs().max()) if len(moves) else 0
    height, width = values.shape[-2:]
    wide = pad(values, (most,) * 4, value=bared)
    rows = most - moves[:, :1] + torch.arange(height)
    columns = most - moves[:, 1:] + torch.arange(width)
    numbers = torch.arange(len(values))[:, None, None]
    found: Tensor = wide.movedim((-2, -1), (1, 2))[numbers, rows[:, :, None], columns[:, None, :]]
    return found.movedim((1, 2), (-2, -1))


def mirrored(
    values: Shaped[Tensor, "n ... height width"], which: Bool[Tensor, " n"]
) -> Shaped[Tensor, "n ... height width"]:
    """Some pictures with left and right exchanged.

    >>> mirrored(torch.tensor([[[[1.0, 2.0]]], [[[1.0, 2.0]]]]), torch.tensor([True, False]))
    tensor([[[[2., 1.]]],
            [[[1., 2.]]]])
    """
    return torch.where(which.view(-1, *[1] * (values.ndim - 1)), values.flip(-1), values)


def tinted(pictures: Pictures, strength: float, generator: torch.Generator) -> Pictures:
    """``clip(a · p^b)`` with log-normal factors ``a`` and powers ``b`` for each channel.

    >>> grey = torch.full((1, 1, 1, 1), 0.5)
    >>> tinted(grey, 0.0, torch.Generator()).tolist()
    [[[[0.5]]]]
    """
    shape = (2, *pictures.shape[:2], 1, 1)
    factor, power = (strength * torch.randn(shape, generator=generator)).exp().to(pictures)
    found: Tensor = (factor * pictures.clamp(0, 1) ** power).clamp(0, 1)
    return found


@dataclass(frozen=True, eq=False)
class Augmented:
    """Examples that are changed each time they are shown; one pass shows them as they are.

    :func:`coset.fit` takes it as data for methods that train.  Those that look at curvature or
    evidence want fixed examples: give them the plain pair.

    Attributes:
        pictures: As they are.
        targets: As they are.
        generator: Chooses anew each time.
        crop: As of :func:`augment`.
        flip: As of :func:`augment`.
        colour: As of :func:`augment`.
        void: As of :func:`augment`.
        batch_size: Examples in a batch of a pass.

    >>> plain = torch.rand(6, 1, 4, 4), torch.zeros(6, 4, 4, dtype=torch.long)
    >>> shown = Augmented(*plain, flip=True, generator=torch.Generator().manual_seed(0))
    >>> shown.size, shown.rows(torch.tensor([0, 3]))[0].shape
    (6, torch.Size([2, 1, 4, 4]))
    """

    pictures: Pictures
    targets: Tensor
    _: KW_ONLY
    generator: torch.Generator
    crop: int = 0
    flip: bool = False
    colour: float = 0.0
    void: int | None = None
    batch_size: int = 256

    __repr__ = brief

    @property
    def plain(self) -> InMemory:
        """The examples as they are."""
        return InMemory(self.pictures, self.targets, self.batch_size)

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.plain.size

    def __iter__(self) -> Iterator[Batch]:
        """Batches in order, not augmented."""
        return iter(self.plain)

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers, augmented anew."""
        inputs, targets = self.plain.rows(index)
        assert isinstance(inputs, Tensor), "pictures are one tensor"
        pictures, changed = augment(
            inputs.flatten(0, index.dim() - 1),
            targets.flatten(0, index.dim() - 1),
            crop=self.crop,
            flip=self.flip,
            colour=self.colour,
            void=self.void,
            generator=self.generator,
        )
        # where channels lie last, torch 2.13 crashes in gradients of some narrow convolutions
        return pictures.contiguous().view(inputs.shape), changed.view(targets.shape)
