"""Data of a cell: parts of real sets, by the names and sizes in its parameters."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.data import (
    Dataset,
    digits,
    fit_images,
    holding_out,
    load,
    outliers_for,
    standardise,
)
from coset.data.pixels import PIXEL_LOADERS


@dataclass(frozen=True)
class Pictures:
    """Training and test pictures with labels, and pictures of something else."""

    train: tuple[Float[Tensor, "n c h w"], Int[Tensor, " n"]]
    test: tuple[Float[Tensor, "t c h w"], Int[Tensor, " t"]]
    outliers: Float[Tensor, "o c h w"]
    classes: int


def pictures(parameters: Mapping[str, Any]) -> Pictures:
    """What ``data``, ``train``, ``test``, ``outliers``, ``side`` and the like name.

    ``data``: a picture set; ``train``, ``test``: how many from the front, all if missing;
    ``side``: pixels a side, if not the set's own; ``outliers``: another set, or the classes of
    ``held_out``, which are left out of training; ``standardise``: whether all are brought to the
    mean 0 and standard deviation 1 of the whole training set, as zoos do.
    """
    return _pictures(
        str(parameters["data"]),
        parameters.get("train"),
        parameters.get("test"),
        parameters.get("outliers"),
        parameters.get("side"),
        tuple(parameters.get("held_out", ())),
        bool(parameters.get("standardise", False)),
    )


@lru_cache(maxsize=4)
def _pictures(
    name: str,
    train: int | None,
    test: int | None,
    outliers: str | None,
    side: int | None,
    held_out: tuple[int, ...],
    standardised: bool,
) -> Pictures:
    found: Dataset = digits() if name == "digits" else load(name)
    if standardised:
        found = standardise(found)
    strange = found.test_inputs[:0]
    if held_out:
        found, unseen = holding_out(found, held_out)
        strange = torch.cat([unseen.train_inputs, unseen.test_inputs])
    elif outliers is not None:
        strange = outliers_for(found, outliers).test_inputs
    parts = [found.train_inputs[:train], found.test_inputs[:test], strange[:test]]
    if side is not None:
        shape = (parts[0].shape[1], side, side)
        parts = [fit_images(part, shape) if len(part) else part for part in parts]
    return Pictures(
        (parts[0], found.train_targets[:train]),
        (parts[1], found.test_targets[:test]),
        parts[2],
        len(found.classes),
    )


def checksum(parameters: Mapping[str, Any]) -> str:
    """Sixteen digits of the sha256 of all numbers that a cell reads; nothing for made-up data."""
    if "data" not in parameters:
        return ""
    parts: tuple[Tensor, ...]
    if parameters["data"] in PIXEL_LOADERS:
        pixels = PIXEL_LOADERS[str(parameters["data"])]()
        parts = (*pixels.train, *pixels.validation, *pixels.test)
    else:
        known = pictures(parameters)
        parts = (*known.train, *known.test, known.outliers)
    total = hashlib.sha256()
    for part in parts:
        total.update(str((part.dtype, tuple(part.shape))).encode())
        total.update(part.contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
