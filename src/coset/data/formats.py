"""Readers for the official file formats; nothing is ever unpickled.

Every reader gives plain arrays, pictures as ``(n, channels, height, width)`` bytes, and refuses a
file that is cut short or changed with its name, what was found and what was needed.
"""

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coset.errors import CosetError

Bytes: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

_AGAIN = "fetch the file again"


class Part(NamedTuple):
    """The training or the test part of a set of pictures, with names of its classes."""

    pictures: Bytes
    labels: Labels
    classes: tuple[str, ...]


def resolve(folder: Path, file: str) -> Path | None:
    """A file of a folder, plain or compressed by gzip; None when neither is there."""
    return next((p for p in (folder / file, folder / f"{file}.gz") if p.exists()), None)


def missing_files(folder: Path, files: Iterable[str]) -> list[str]:
    """Those of the files that are in a folder neither plain nor compressed."""
    return [file for file in files if resolve(folder, file) is None]


def needed(folder: Path, file: str) -> Path:
    """A file of a folder, plain or compressed; its absence is an error."""
    path = resolve(folder, file)
    if path is None:
        raise CosetError(f"got no {file} in {folder}", "needed that file", _AGAIN)
    return path


def read_bytes(path: Path) -> bytes:
    """The contents of a file, decompressed when its name ends in ``.gz``."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise CosetError(f"got {path}, unreadable ({error})", "needed a whole file", _AGAIN) from (
            error
        )


def read_idx(path: Path) -> Bytes:
    """Read an idx file of bytes: two zeros, type 8, rank, big-endian sizes, then the values."""
    raw = read_bytes(path)
    rank = raw[3] if len(raw) >= 4 else 0
    if raw[:3] != b"\0\0\x08" or rank == 0 or len(raw) < 4 + 4 * rank:
        raise CosetError(
            f"got {path} beginning with the bytes {raw[:4].hex(' ') or 'none'}",
            "needed an idx file of bytes, beginning with 00 00 08 and its rank",
            _AGAIN,
        )
    start = 4 + 4 * rank
    shape = tuple(np.frombuffer(raw, ">u4", rank, 4).tolist())
    if len(raw) - start != math.prod(shape):
        raise CosetError(
            f"got {path} with {len(raw) - start} values",
            f"needed {math.prod(shape)} for the shape {shape} in its header",
            _AGAIN,
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_idx_pair(folder: Path, part: str, classes: tuple[str, ...]) -> Part:
    """Read the pictures and labels of the ``train`` or ``test`` part of an MNIST-like set."""
    images, labels = IDX_FILES[:2] if part == "train" else IDX_FILES[2:]
    path = needed(folder, images)
    pictures = read_idx(path)
    if pictures.ndim != 3:
        raise CosetError(f"got {path} of rank {pictures.ndim}", "needed rank 3", _AGAIN)
    return checked_part(pictures[:, None], read_idx(needed(folder, labels)), classes, path)


def read_cifar(
    folder: Path, files: Iterable[str], classes: tuple[str, ...], *, label_bytes: int
) -> Part:
    """Read binary CIFAR batches: a record is the labels, then 3·32·32 bytes, channels first.

    Args:
        folder: Where the batches are.
        files: The batches that make the part, in order.
        classes: Names of the classes the last label byte counts.
        label_bytes: 1 for CIFAR-10, 2 for CIFAR-100 (the coarse label, then the fine one).
    """
    size = label_bytes + 3 * 32 * 32
    parts = []
    for file in files:
        path = needed(folder, file)
        raw = np.frombuffer(read_bytes(path), np.uint8)
        if raw.size == 0 or raw.size % size:
            raise CosetError(
                f"got {path} with {raw.size} bytes",
                f"needed whole records of {size} bytes (labels and a 3×32×32 picture)",
                _AGAIN,
            )
        records = raw.reshape(-1, size)
        pictures = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        parts.append(checked_part(pictures, records[:, label_bytes - 1], classes, path))
    return Part(
        np.concatenate([part.pictures for part in parts]),
        np.concatenate([part.labels for part in parts]),
        classes,
    )


def read_svhn(path: Path, classes: tuple[str, ...]) -> Part:
    """Read a cropped-digits file of SVHN: ``X`` (32, 32, 3, n), ``y`` where 10 stands for 0."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # scipy's reader raises whatever it trips over
        raise CosetError(
            f"got {path}, unreadable ({error})", "needed a MATLAB 5 file", _AGAIN
        ) from error
    pictures, labels = found.get("X"), found.get("y")
    if pictures is None or labels is None or pictures.ndim != 4 or pictures.shape[2] != 3:
        raise CosetError(
            f"got {path} with "
            + (", ".join(f"{k} {found[k].shape}" for k in ("X", "y") if k in found) or "neither"),
            "needed X of shape (height, width, 3, n) and y of shape (n, 1)",
            _AGAIN,
        )
    return checked_part(pictures.transpose(3, 2, 0, 1), labels.ravel() % 10, classes, path)


def read_npz(path: Path, *keys: str) -> list[NDArray[Any]]:
    """Read arrays of a compact ``.npz`` file; one that would need pickle is refused."""
    try:
        with path.open("rb") as file:  # opened here, for numpy leaves a broken one open
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, Mapping):
                raise ValueError("one bare array")
            if missing := [key for key in keys if key not in arrays]:
                raise CosetError(
                    f"got {path} with {', '.join(sorted(arrays)[:12])}",
                    f"needed {', '.join(missing)} too",
                    _AGAIN,
                )
            return [arrays[key] for key in keys]
    except CosetError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise CosetError(
            f"got {path}, unreadable ({error})", "needed an .npz file of plain arrays", _AGAIN
        ) from error


def read_tiny_imagenet(folder: Path, part: str) -> Part:
    """Read TinyImageNet folders: ``train/<wnid>/images`` and ``val`` with its annotations.

    The labels count the sorted wnids. Annotations of the test folder were never published, so the
    validation pictures are the test part here, as in the literature. Training pictures come class
    by class in turn (:func:`class_by_class`), since the folders have no order of their own.
    """
    wnids = sorted(_lines(folder / "wnids.txt"))
    words = dict(line.split("\t", 1) for line in _lines(folder / "words.txt") if "\t" in line)
    classes = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)
    if part == "train":
        files = [
            (path, label)
            for label, wnid in enumerate(wnids)
            for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
        ]
        files = [files[row] for row in class_by_class([label for _, label in files])]
    else:
        rows = [line.split("\t") for line in _lines(folder / "val" / "val_annotations.txt")]
        if unknown := {row[1] if len(row) > 1 else row[0] for row in rows} - set(wnids):
            raise CosetError(
                f"got {folder / 'val' / 'val_annotations.txt'} with {sorted(unknown)[0]!r}",
                "needed a file name and a wnid of wnids.txt in each row",
                _AGAIN,
            )
        files = [(folder / "val" / "images" / row[0], wnids.index(row[1])) for row in rows]
    pictures = decode([(str(path), read_bytes(path)) for path, _ in files], "RGB", (64, 64))
    return checked_part(pictures, np.array([label for _, label in files]), classes, folder)


def class_by_class(labels: ArrayLike) -> list[int]:
    """Rows ordered so that the first so many hold every class alike: the classes in turn.

    First comes the first row of each class, by label, then the second of each, and so on; a class
    without further rows is passed over.

    >>> class_by_class([0, 0, 0, 2, 2, 7])
    [0, 3, 5, 1, 4, 2]
    """
    labels = np.asarray(labels)
    seen: dict[int, int] = {}
    turns = np.empty(len(labels), np.int64)
    for row, label in enumerate(labels.tolist()):
        turns[row] = seen[label] = seen.get(label, -1) + 1
    found: list[int] = np.lexsort((labels, turns)).tolist()
    return found


def read_class_folders(
    folder: Path, classes: Sequence[str], side: int, *, skip_damaged: bool = False
) -> Part:
    """Read grey pictures kept as one folder of PNG files for each class.

    Args:
        folder: The folder above the class folders.
        classes: Names of the class folders, in label order.
        side: Height and width that every picture must have.
        skip_damaged: Leave out files that are no picture (notMNIST is published with a few).
    """
    blobs, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((folder / name).glob("*.png")):
            blob = read_bytes(path)
            if skip_damaged and not blob.startswith(b"\x89PNG"):
                continue
            blobs.append((str(path), blob))
            labels.append(label)
    return checked_part(decode(blobs, "L", (side, side)), np.array(labels), tuple(classes), folder)


def decode(blobs: Sequence[tuple[str, bytes]], mode: str, size: tuple[int, int]) -> Bytes:
    """Decode compressed pictures, given with a name each for the error, to one array of bytes."""
    channels = len(mode)
    pictures = np.empty((len(blobs), *size, channels), np.uint8)
    for row, (name, blob) in enumerate(blobs):
        picture = read_picture(name, blob, mode)
        if picture.shape[:2] != size:
            raise CosetError(f"got {name} of {picture.shape[:2]}", f"needed {size}", _AGAIN)
        pictures[row] = picture.reshape(*size, channels)
    return pictures.transpose(0, 3, 1, 2)


def read_picture(name: str, blob: bytes, mode: str | None = None) -> NDArray[Any]:
    """One compressed picture, ``(height, width)`` or ``(height, width, channels)``.

    Without a mode, values are those in the file: labels, or depths of sixteen bits.
    """
    image = _pillow()
    try:
        with image.open(io.BytesIO(blob)) as opened:
            return np.asarray(opened if mode is None else opened.convert(mode))
    except Exception as error:  # Pillow's readers raise whatever they trip over
        raise CosetError(
            f"got {name}, unreadable ({error})", "needed a whole picture", _AGAIN
        ) from error


def picture_size(name: str, blob: bytes) -> tuple[int, int]:
    """Height and width of a compressed picture."""
    height, width = read_picture(name, blob).shape[:2]
    return height, width


def read_table(
    path: Path,
    columns: int,
    *,
    delimiter: str | None = None,
    skip: int = 0,
    gaps: bool = True,
) -> Reals:
    """Read a table of finite numbers; an empty field is a gap and comes back as NaN."""
    try:
        rows = [line.split(delimiter) for line in _lines(path)[skip:]]
        if odd := next((row for row in rows if len(row) != columns), None):
            raise ValueError(f"a row of {len(odd)}: {' '.join(odd)[:40]}")
        if not rows:
            raise ValueError("no row")
        table = np.array([[float(field or "nan") for field in row] for row in rows])
        allowed = [[gaps and not field for field in row] for row in rows]
        if (strange := ~np.isfinite(table) & ~np.array(allowed)).any():
            raise ValueError(f"{table[strange][0]} in row {strange.any(1).argmax() + 1}")
        return table
    except ValueError as error:
        raise CosetError(
            f"got {path}, no table of numbers ({error})",
            f"needed rows of {columns} numbers",
            _AGAIN,
        ) from error


def checked_part(
    pictures: Bytes, labels: NDArray[Any], classes: tuple[str, ...], path: Path
) -> Part:
    """Join pictures and labels once they are known to fit each other and the classes."""
    if pictures.dtype != np.uint8 or labels.ndim != 1 or len(pictures) != len(labels):
        raise CosetError(
            f"got {len(pictures)} pictures of {pictures.dtype} and labels {labels.shape} in {path}",
            "needed pictures of bytes and one label for each",
            _AGAIN,
        )
    if len(labels) == 0:
        raise CosetError(f"got no picture in {path}", "needed at least one", _AGAIN)
    if int(labels.min()) < 0 or int(labels.max()) >= len(classes):
        raise CosetError(
            f"got labels {int(labels.min())} to {int(labels.max())} in {path}",
            f"needed 0 to {len(classes) - 1}",
            _AGAIN,
        )
    return Part(pictures, labels.astype(np.int64), classes)


def _lines(path: Path) -> list[str]:
    return [
        line for line in read_bytes(path).decode("utf-8", "replace").splitlines() if line.strip()
    ]


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise CosetError(
            "got pictures stored as PNG or JPEG, but Pillow is not installed",
            "needed Pillow to decode them",
            "pip install pillow",
        ) from error
    return Image
