"""Where commands write: refused before any work is done, in the words of their options."""

import os
from collections.abc import Iterable
from pathlib import Path

from coset.errors import CosetError


def check_file(option: str, path: Path, sources: Iterable[Path] = ()) -> None:
    """Refuses a file that cannot be written, or that is one of those that are read.

    Args:
        option: The option that names it.
        path: The file.
        sources: What the command reads.
    """
    folder = Path(os.path.realpath(path)).parent  # a link is written through
    if problem := _in_the_way(path) or ("" if folder.is_dir() else "whose folder is missing"):
        raise CosetError(
            f"got {option} {path}, {problem}",
            "needed the name of a file in a folder that exists",
            f"give another {option}",
        )
    _check_writable(option, path, folder)
    if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
        raise CosetError(f"got {option} {path}, which is an input", "needed another name")


def check_folder(option: str, path: Path, file: str) -> None:
    """Refuses a folder that cannot be made, or in which a file cannot be written."""
    existing = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not existing.is_dir():
        raise CosetError(
            f"got {option} {path}, but {existing} is a "
            + ("file" if existing.exists() else "link to nothing"),
            "needed a folder, or a name that is free",
            f"give another {option}",
        )
    _check_writable(option, path, existing)
    if problem := _in_the_way(path / file):
        raise CosetError(
            f"got {option} {path}, where {file} is {problem}",
            f"needed a place for the file {file}",
            f"give another {option}",
        )


def _in_the_way(path: Path) -> str:
    """What stands where a file is to be written, or nothing."""
    if not path.exists() or path.is_file():
        return ""
    return "a folder" if path.is_dir() else "no plain file"


def _check_writable(option: str, path: Path, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CosetError(
            f"got {option} {path}, but nothing may be written in {folder}",
            "needed a folder that may be written in",
            f"give another {option}",
        )
