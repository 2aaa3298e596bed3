"""The order of looking for a data set.

A set is looked for in the folder named by ``COSET_DATA``, in an installed package, in the user's
cache (``COSET_CACHE``, else ``XDG_CACHE_HOME/coset``, else ``~/.cache/coset``), and is then
downloaded into the cache from its official address. In a folder, a set is either its official
files, in a sub-folder with the name of the set, or one compact ``.npz`` file.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from coset.data.download import fetch, verify
from coset.data.formats import missing_files
from coset.data.sources import SOURCES, wanted, ways_to_get
from coset.errors import CosetError
from coset.vocabulary import Progress


@dataclass(frozen=True)
class Found:
    """A set that is there: one compact file, or a folder with the official files."""

    path: Path
    origin: str

    @property
    def is_compact(self) -> bool:
        """Whether the set is one compact ``.npz`` file."""
        return self.path.suffix == ".npz"


def cache_folder() -> Path:
    """The folder downloads are kept in."""
    if chosen := os.environ.get("COSET_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "coset"


def locate(name: str, *, progress: Progress | None = None) -> Found:
    """Find a set in the order written at the top of this file.

    Args:
        name: A row of ``SOURCES``.
        progress: Told how far a download has come.

    Raises:
        CosetError: The set is nowhere and cannot be fetched, or what is there is damaged.
    """
    source = SOURCES[name]
    cache = cache_folder()
    try:
        found = _in_data_folder(name) or _in_package(name) or _search(cache, name)
    except OSError as error:
        raise CosetError(
            f"got {error.filename}: {error.strerror}",
            f"needed a place to look for {name} that can be read",
            "change its rights, or the variable that names it",
        ) from error
    if found:
        return found
    reason = "no download is offered"
    if source.remotes:
        reason = "the download did not hold the official files"
        try:
            for remote in source.remotes:
                if not (cache / name / remote.file).exists():
                    fetch(remote, cache / name, progress=progress)
        except (CosetError, OSError) as error:
            reason = str(error)
        if found := _search(cache, name):  # if not by us, then by a process beside us
            return found
    raise CosetError(
        f"got no copy of {name}: not in COSET_DATA ({os.environ.get('COSET_DATA') or 'not set'}), "
        f"no package, not in the cache {cache}, and {reason}",
        f"needed {wanted(name)}",
        f"do one of: {ways_to_get(name)}",
    )


def _in_data_folder(name: str) -> Found | None:
    if not (chosen := os.environ.get("COSET_DATA")):
        return None
    root = Path(chosen)
    if not root.is_dir():
        raise CosetError(
            f"got COSET_DATA={chosen}, which is no folder",
            "needed the folder that holds the data sets",
            "correct the variable or unset it",
        )
    return _search(root, name, half_is_refused=True)


def _in_package(name: str) -> Found | None:
    package = SOURCES[name].package
    folder = package.folder() if package else None
    if folder is None or not _complete(folder, name):
        return None
    return Found(folder, f"official files of an installed package, {folder}")


def _search(root: Path, name: str, *, half_is_refused: bool = False) -> Found | None:
    """The official files first: they are the whole set, a compact copy may be a part of it."""
    source = SOURCES[name]
    for folder in (root / name / source.inner, root / name):
        if _complete(folder, name):
            return Found(folder, f"official files in {folder}")
    if (root / name).is_dir():
        _refuse_pickles(root / name, name)
        if half_is_refused:
            _refuse_half(root / name, name)
    if source.compact and (root / source.compact[0]).is_file():
        path = root / source.compact[0]
        verify(path, f"sha256:{source.compact[1]}")
        return Found(path, f"compact copy {path}")
    return None


def _complete(folder: Path, name: str) -> bool:
    """Whether a folder holds a set; an empty one holds none, not even one of any files."""
    return (
        folder.is_dir() and any(folder.iterdir()) and not missing_files(folder, SOURCES[name].files)
    )


def _refuse_pickles(folder: Path, name: str) -> None:
    for file in SOURCES[name].pickled:
        if (folder / file).exists():
            raise CosetError(
                f"got {folder / file}, the version of {name} made of Python pickles",
                "needed the binary version: opening a pickle can run any program",
                f"unpack {SOURCES[name].remotes[0].urls[0]} there instead",
            )


def _refuse_half(folder: Path, name: str) -> None:
    """Going on to another source would silently replace the copy the user has put there."""
    inner = folder / SOURCES[name].inner
    place = inner if inner.is_dir() else folder
    present = sorted(path.name for path in place.iterdir() if not path.name.startswith("."))
    if present:
        raise CosetError(
            f"got {place} with {', '.join(present[:6])}, "
            f"without {', '.join(missing_files(place, SOURCES[name].files))}",
            f"needed {wanted(name)}",
            "unpack the official archive there, or remove the folder",
        )
