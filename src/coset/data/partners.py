"""Outliers for a set: pictures of a partner, brought to its size, channels and scale."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from coset.data.classes import SAME_THING
from coset.data.corruptions import check_images
from coset.data.dataset import Dataset, standardise_inputs
from coset.data.pictures import RECIPES, read_pictures
from coset.errors import CosetError
from coset.vocabulary import Progress


def outliers_for(
    dataset: Dataset, partner: str | None = None, *, progress: Progress | None = None
) -> Dataset:
    """The test pictures of a partner set, made to fit the inputs of ``dataset``.

    Pictures whose class is a class of ``dataset`` too are left out (the cats of TinyImageNet are
    no outliers to CIFAR-10); the others are resized, converted between grey and colour, and
    standardised if ``dataset`` is.

    Args:
        dataset: The set a network is trained on.
        partner: Name of a picture set; None takes the first of ``dataset.partners``.
        progress: Told how far a download has come.

    Returns:
        A set with a test part only; its ``name`` and ``origin`` say what was taken.
    """
    if partner is None:
        partner = dataset.partners[0] if dataset.partners else "no partner"
    if partner not in RECIPES:
        raise CosetError(
            f"got {partner} as the outliers for {dataset.name}",
            f"needed a picture set, one of {', '.join(RECIPES)}",
            f"its own partners are {', '.join(dataset.partners) or 'none'}",
        )
    strange = _without(read_pictures(partner, parts=("test",), progress=progress), dataset.classes)
    inputs = fit_images(strange.test_inputs, tuple(dataset.test_inputs.shape[1:]))
    if dataset.statistics is not None:
        inputs = standardise_inputs(inputs, dataset.statistics)
    return replace(
        strange,
        train_inputs=inputs[:0],
        test_inputs=inputs,
        partners=(),
        statistics=dataset.statistics,
    )


def _without(dataset: Dataset, known: tuple[str, ...]) -> Dataset:
    same = set(known).union(*(SAME_THING.get(name, ()) for name in known))
    same |= {kind for kind, things in SAME_THING.items() if not set(known).isdisjoint(things)}
    strange = torch.tensor([name not in same for name in dataset.classes])[dataset.test_targets]
    if not strange.any():
        raise CosetError(
            f"got {dataset.name} as outliers, with no class of its own",
            f"needed classes other than {', '.join(known)}",
            "choose another partner",
        )
    return replace(
        dataset,
        test_inputs=dataset.test_inputs[strange],
        test_targets=dataset.test_targets[strange],
    )


def fit_images(
    images: Float[Tensor, "n c h w"], shape: tuple[int, ...]
) -> Float[Tensor, "n channels height width"]:
    """Resize pictures and convert them between grey and colour.

    Grey becomes three equal channels; colour becomes luminance 0.299 R + 0.587 G + 0.114 B.
    Sizes change by bilinear interpolation with antialiasing, which keeps to the range of a picture.

    >>> fit_images(torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1), (1, 2, 2)).unique().item()
    0.29899999499320984
    """
    check_images(images)
    if len(shape) != 3 or {images.shape[1], shape[0]} - {1, 3}:
        raise CosetError(
            f"got pictures {tuple(images.shape[1:])} to bring to {shape}",
            "needed (channels, height, width) with 1 or 3 channels on both sides",
            "outliers are for sets of pictures only",
        )
    if images.shape[1] == 3 and shape[0] == 1:
        luminance = images.new_tensor([0.299, 0.587, 0.114])
        images = torch.einsum("nchw,c->nhw", images, luminance)[:, None]
    elif images.shape[1] == 1:
        images = images.expand(-1, shape[0], -1, -1)
    if tuple(images.shape[2:]) == shape[1:]:
        return images.contiguous()
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    resized = interpolate(images, size=shape[1:], mode="bilinear", antialias=True)
    return resized.clamp(low, high)  # rounding alone would leave the range
