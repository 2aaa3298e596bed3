"""Zips of Ray Tune folders, as the model zoos of Schürholt et al. are published.

A network is a folder, and each epoch that was kept a folder in it, ``checkpoint_000010``, whose
file ``checkpoints`` is a state dict that ``torch.save`` wrote.  It is read with
``weights_only=True``, by which nothing but tensors comes about; other pickles are refused.
"""

import io
import re
import stat
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from coset.errors import CosetError
from coset.files import unreadable

_PLACE = re.compile(r"(?P<network>.+)/checkpoint_(?P<epoch>\d{1,9})/checkpoints")
_PICKLE = re.compile(r"(.*/)?data\.pkl")
"""What every file of ``torch.save`` has in it, for such a file is a zip, too."""


def trials(
    path: Path, epoch: int | None, largest: int
) -> Iterator[tuple[str, Callable[[], Mapping[str, Tensor]]]]:
    """The networks of a zip in order of their folders: a name, and a function that reads it.

    Args:
        path: The zip.
        epoch: Which of the epochs that were kept; ``None``: the last of each network.
        largest: Bytes that the file of a network may have.

    Raises:
        CosetError: The zip is damaged, holds links, paths that lead out of it or no such folders,
            or a network has no such epoch.
    """
    with _opened(path) as archive:
        for name, kept in sorted(_places(archive, path).items()):
            chosen = max(kept) if epoch is None else epoch
            if chosen not in kept:
                raise CosetError(
                    f"got epoch={epoch} for {name!r:.120} of {path}",
                    f"needed one that is kept ({_listed(sorted(kept))}), or None for the last",
                )
            info = kept[chosen]
            if not 0 <= info.file_size <= largest:
                raise _too_large(path, info.filename, info.file_size, largest)
            yield info.filename, partial(_state, archive, info, path, largest)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A whole zip: a cut one may end with the list of a zip that is one of its own files."""
    with _blaming(path), zipfile.ZipFile(path) as archive:
        if min((info.header_offset for info in archive.infolist()), default=0):
            raise zipfile.BadZipFile("its list of files does not begin with the first")
        yield archive


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:  # or encrypted
        raise CosetError(
            f"got the archive {path}, which is cut or damaged ({error})",
            "needed a whole zip",
            "fetch it again",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _places(archive: zipfile.ZipFile, path: Path) -> dict[str, dict[int, zipfile.ZipInfo]]:
    """The files of weights, by network and epoch."""
    found: dict[str, dict[int, zipfile.ZipInfo]] = defaultdict(dict)
    for info in archive.infolist():
        name, place = info.filename, PurePosixPath(info.filename)
        if place.is_absolute() or ".." in place.parts or "\\" in name or stat.S_ISLNK(_mode(info)):
            raise CosetError(
                f"got the archive {path} with {name!r:.120}, a link or a path that leads out of it",
                "needed plain files and folders",
                "take another copy",
            )
        if match := _PLACE.fullmatch(name):
            found[match["network"]][int(match["epoch"])] = info
    if not found:
        raise _without_folders(archive, path)
    return found


def _mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16


def _without_folders(archive: zipfile.ZipFile, path: Path) -> CosetError:
    needed = "needed a zip of folders NETWORK/checkpoint_000010/checkpoints"
    if any(_PICKLE.fullmatch(name) for name in archive.namelist()):
        return CosetError(
            f"got {path}, a pickle of torch.save{_told_classes(path)}",
            needed,
            "to read a pickle is to run what is in it: fetch the zip of the raw zoo instead",
        )
    return CosetError(f"got the archive {path} without networks", needed)


def _state(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, largest: int
) -> Mapping[str, Tensor]:
    """The state dict of a network."""
    with _blaming(path), archive.open(info) as file:
        content = file.read(largest + 1)
    _require_small(content, info.filename, path, largest)
    try:
        found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no class of errors here
        raise CosetError(
            f"got {info.filename!r:.120} of {path}, which is more than a state dict"
            + _told_classes(io.BytesIO(content)),
            "needed what torch.save makes of tensors: other pickles run what is in them",
        ) from error
    tensors = isinstance(found, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    )
    if not tensors:
        raise CosetError(
            f"got {info.filename!r:.120} of {path}, which is no state dict",
            "needed a dictionary of tensors by name",
        )
    return dict(found)


def _require_small(content: bytes, name: str, path: Path, largest: int) -> None:
    """Refuses a file of ``torch.save`` whose own entries would unfold to more than they may."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            size = sum(info.file_size for info in inner.infolist())
    except zipfile.BadZipFile as error:
        raise CosetError(
            f"got {name!r:.120} of {path}, which torch.save did not write, or before 2020",
            "needed its form since torch 1.6",
            "load and save it again where you trust it",
        ) from error
    if size > largest:
        raise _too_large(path, name, size, largest)


def _too_large(path: Path, name: str, size: int, largest: int) -> CosetError:
    return CosetError(
        f"got the archive {path} with {name!r:.120} of {size:,} bytes",
        f"needed at most {largest:,}, with which a network of this module does",
        "check that the archive belongs to the module",
    )


def _told_classes(file: "Path | io.BytesIO") -> str:
    """The names that a pickle would import, in brackets; it is read and not run."""
    try:
        names = get_unsafe_globals_in_checkpoint(file)
    except Exception:  # it is damaged, too
        return ""
    return f" with {_listed(sorted(names))}" if names else ""


def _listed(values: list[Any]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return f"{shown}, and {len(values) - 8} more" if len(values) > 8 else shown
