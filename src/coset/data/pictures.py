"""How the picture sets are read, from a compact copy or from official files: one table."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from coset.data.classes import CIFAR10, CIFAR100, DIGITS, FASHION, KUZUSHIJI, LETTERS
from coset.data.dataset import Dataset
from coset.data.formats import (
    Bytes,
    Part,
    checked_part,
    class_by_class,
    decode,
    read_cifar,
    read_class_folders,
    read_idx_pair,
    read_npz,
    read_svhn,
    read_tiny_imagenet,
)
from coset.data.lookup import locate
from coset.vocabulary import Progress

PARTS = ("train", "test")

Reader: TypeAlias = Callable[[Path, str], Part | None]
"""From a file or folder and the name of a part to the part; None where there is no such part."""


@dataclass(frozen=True)
class Recipe:
    """How to read the compact and the official copy of a set, and the sets strange to it."""

    compact: Reader
    official: Reader
    partners: tuple[str, ...]


def read_pictures(
    name: str, *, parts: Collection[str] = PARTS, progress: Progress | None = None
) -> Dataset:
    """Find and read a set of pictures.

    Args:
        name: A row of ``RECIPES``.
        parts: Which parts to read; the other comes back with length 0.
        progress: Told how far a download has come.
    """
    recipe = RECIPES[name]
    found = locate(name, progress=progress)
    read = recipe.compact if found.is_compact else recipe.official
    got = {part: read(found.path, part) if part in parts else None for part in PARTS}
    known = next(part for part in got.values() if part is not None)
    return Dataset(
        name,
        *_tensors(got["train"], known),
        *_tensors(got["test"], known),
        classes=known.classes,
        origin=found.origin,
        partners=recipe.partners,
    )


def _tensors(part: Part | None, like: Part) -> tuple[Tensor, Tensor]:
    if part is None:
        shape = (0, *like.pictures.shape[1:])
        return torch.zeros(shape, dtype=torch.float32), torch.zeros(0, dtype=torch.int64)
    return unit_range(torch.tensor(part.pictures)), torch.from_numpy(part.labels)


def unit_range(pictures: UInt8[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Bytes to numbers in [0, 1].

    >>> unit_range(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    return pictures.to(torch.float32).div_(255)


def _with_channel(pictures: Bytes) -> Bytes:
    return pictures[:, None] if pictures.ndim == 3 else pictures.transpose(0, 3, 1, 2)


def _compact(names: tuple[str, ...]) -> Reader:
    """A compact file with keys ``x_train``, ``y_train``, ``x_test`` and ``y_test``."""

    def read(path: Path, part: str) -> Part:
        pictures, labels = read_npz(path, f"x_{part}", f"y_{part}")
        return checked_part(_with_channel(pictures), labels, names, path)

    return read


def _compact_test_only(names: tuple[str, ...]) -> Reader:
    """A compact file with keys ``x`` and ``y``: a test part alone."""

    def read(path: Path, part: str) -> Part | None:
        if part == "train":
            return None
        pictures, labels = read_npz(path, "x", "y")
        return checked_part(_with_channel(pictures), labels, names, path)

    return read


def _compact_omniglot(path: Path, part: str) -> Part | None:
    if part == "train":
        return None
    bits, shape, labels, names = read_npz(path, "x_bits", "shape", "y", "name")
    height, width = (int(size) for size in shape)
    ink = np.unpackbits(bits, axis=1, count=height * width).reshape(-1, 1, height, width)
    return checked_part(ink * np.uint8(255), labels, tuple(names.tolist()), path)


def _compact_tiny_imagenet(path: Path, part: str) -> Part:
    key = "train" if part == "train" else "val"
    stream, offsets, labels, names = read_npz(
        path, f"{key}_jpeg", f"{key}_offsets", f"{key}_label", "name"
    )
    raw = stream.tobytes()
    cuts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    blobs = [(f"picture {k} of {path}", raw[a:b]) for k, (a, b) in enumerate(cuts)]
    if part == "train":  # the copy is sorted by class
        rows = class_by_class(labels)
        blobs, labels = [blobs[row] for row in rows], labels[rows]
    pictures = decode(blobs, "RGB", (64, 64))
    return checked_part(pictures, labels, tuple(names.tolist()), path)


def _idx(names: tuple[str, ...]) -> Reader:
    def read(folder: Path, part: str) -> Part:
        return read_idx_pair(folder, part, names)

    return read


def _cifar(train: tuple[str, ...], test: str, names: tuple[str, ...], label_bytes: int) -> Reader:
    def read(folder: Path, part: str) -> Part:
        files = train if part == "train" else (test,)
        return read_cifar(folder, files, names, label_bytes=label_bytes)

    return read


def _svhn(folder: Path, part: str) -> Part:
    return read_svhn(folder / f"{part}_32x32.mat", DIGITS)


def _notmnist(folder: Path, part: str) -> Part | None:
    if part == "train":
        return None
    # The published archive is known to hold a few empty files.
    letters = folder / "notMNIST_small"
    return read_class_folders(letters, LETTERS, 28, skip_damaged=True)


def _omniglot(folder: Path, part: str) -> Part | None:
    if part == "train":
        return None
    root = folder / "images_background"
    names = sorted(str(p.relative_to(root)) for p in root.glob("*/character*"))
    read = read_class_folders(root, names, 105)
    return read._replace(pictures=255 - read.pictures)  # drawn black on white; ink is 1 here


_CIFAR10_TRAIN = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))

RECIPES: dict[str, Recipe] = {
    "mnist": Recipe(
        _compact(DIGITS),
        _idx(DIGITS),
        ("fashion_mnist", "notmnist", "kmnist", "omniglot"),
    ),
    "fashion_mnist": Recipe(
        _compact(FASHION),
        _idx(FASHION),
        ("mnist", "notmnist", "kmnist", "omniglot"),
    ),
    "kmnist": Recipe(
        _compact_test_only(KUZUSHIJI),
        _idx(KUZUSHIJI),
        ("mnist", "fashion_mnist", "notmnist"),
    ),
    "notmnist": Recipe(
        _compact_test_only(LETTERS), _notmnist, ("mnist", "fashion_mnist", "kmnist")
    ),
    "omniglot": Recipe(_compact_omniglot, _omniglot, ("mnist", "fashion_mnist", "notmnist")),
    "cifar10": Recipe(
        _compact(CIFAR10),
        _cifar(_CIFAR10_TRAIN, "test_batch.bin", CIFAR10, 1),
        ("svhn", "cifar100", "tiny_imagenet"),
    ),
    "cifar100": Recipe(
        _compact(CIFAR100),
        _cifar(("train.bin",), "test.bin", CIFAR100, 2),
        ("svhn", "cifar10"),
    ),
    "svhn": Recipe(_compact(DIGITS), _svhn, ("cifar10", "cifar100", "tiny_imagenet")),
    "tiny_imagenet": Recipe(_compact_tiny_imagenet, read_tiny_imagenet, ("svhn",)),
}
