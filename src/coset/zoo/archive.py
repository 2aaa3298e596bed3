"""Tar archives read in one pass, entry by entry, without unpacking them and without trust.

The standard library takes the first damaged header of an archive for its end, and keeps headers of
any size in memory.  Here an archive ends with two blocks of zeros, or it is refused.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from coset.errors import CosetError
from coset.files import unreadable

_Stream: TypeAlias = IO[bytes] | gzip.GzipFile

_BLOCK = 512
_CHUNK = 1 << 20
_NAMES = 1 << 16
"""Bytes that the further headers of an entry, which hold its long name, may have."""

_MAGIC = b"\x1f\x8b"
_ADVICE = "fetch it again"


@dataclass(frozen=True)
class Entry:
    """A plain file in an archive.

    Attributes:
        name: Its path there.
        content: Its bytes; ``None`` if it was passed over.
    """

    name: str
    content: bytes | None


def entries(path: Path, *, suffix: str, largest: int) -> Iterator[Entry]:
    """The plain files of a ``.tar`` or ``.tar.gz``, in order; others than ``suffix`` passed over.

    Args:
        path: The archive.
        suffix: How the names of the files end whose bytes are wanted.
        largest: Bytes that an entry may have.

    Raises:
        CosetError: The archive is cut or damaged, an entry is a link or too large, or its name
            leads out of the archive.
    """
    with _opened(path) as stream:
        while (header := _header(stream, path)) is not None:
            info, name = header
            if info.isdir():
                continue
            _check(info, name, path, largest)
            if PurePosixPath(name).suffix == suffix:
                content = _read(stream, info.size, path)
            else:
                content = None
                _pass_over(stream, info.size, path)
            _pass_over(stream, -info.size % _BLOCK, path)
            yield Entry(name, content)
        while stream.read(_CHUNK):  # a compressed one ends with a checksum of all
            pass


@contextmanager
def _opened(path: Path) -> Iterator[_Stream]:
    """The bytes of an archive; what goes wrong while they are read is blamed on it."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            if packed:
                with gzip.open(file) as stream:
                    yield stream
            else:
                yield file
    except EOFError as error:
        raise _cut(path) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _header(stream: _Stream, path: Path) -> tuple[tarfile.TarInfo, str] | None:
    """The next entry and its name, or nothing at the end."""
    name, size = "", None
    while True:
        block = stream.read(_BLOCK)
        if len(block) < _BLOCK:
            raise _cut(path)
        if not any(block):
            if stream.read(_BLOCK) != bytes(_BLOCK):
                raise _cut(path)
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        except (tarfile.TarError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        if info.type == tarfile.XHDTYPE:
            told = _records(_further(stream, info, path), path)
            name, size = told.get("path", name), told.get("size", size)
        elif info.type == tarfile.GNUTYPE_LONGNAME:
            name = _further(stream, info, path).rstrip(b"\0").decode("utf-8", "replace")
        elif info.type == tarfile.XGLTYPE:
            _further(stream, info, path)
        else:
            info.size = info.size if size is None else _whole(size, path)
            return info, name or info.name


def _further(stream: _Stream, info: tarfile.TarInfo, path: Path) -> bytes:
    if not 0 <= info.size <= _NAMES:
        raise _damaged(path, f"a header of {info.size} bytes")
    content = _read(stream, info.size, path)
    _pass_over(stream, -info.size % _BLOCK, path)
    return content


def _records(content: bytes, path: Path) -> dict[str, str]:
    """Keys and values of a header of POSIX: ``"length key=value"`` and a new line each."""
    found = {}
    while content.rstrip(b"\0"):
        length = _whole(content.partition(b" ")[0].decode("utf-8", "replace"), path)
        line, content = content[:length], content[length:]
        key, mark, value = line.partition(b" ")[2].rstrip(b"\n").partition(b"=")
        if not (length and mark):
            raise _damaged(path, "a header of no known form")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def _whole(text: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _damaged(path, f"{text!r:.20} where a length should be")
    return int(text)


def _check(info: tarfile.TarInfo, name: str, path: Path, largest: int) -> None:
    place = PurePosixPath(name)
    if not info.isreg() or info.sparse is not None:
        kind = "a link" if info.issym() or info.islnk() else "no plain file"
        raise CosetError(
            f"got the archive {path} with {name!r:.120}, which is {kind}",
            "needed plain files and folders",
            "such entries may lead anywhere: take another copy",
        )
    if place.is_absolute() or ".." in place.parts or "\\" in name or "\0" in name:
        raise CosetError(
            f"got the archive {path} with the path {name!r:.120}",
            "needed paths that stay inside the archive",
            "take another copy",
        )
    if not 0 <= info.size <= largest:
        raise CosetError(
            f"got the archive {path} with {name!r:.120} of {info.size:,} bytes",
            f"needed at most {largest:,}, with which a network of this module does",
            "check that the archive belongs to the module",
        )


def _read(stream: _Stream, size: int, path: Path) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise _cut(path)
    return content


def _pass_over(stream: _Stream, size: int, path: Path) -> None:
    while size:
        found = len(stream.read(min(size, _CHUNK)))
        if not found:
            raise _cut(path)
        size -= found


def _cut(path: Path) -> CosetError:
    return CosetError(
        f"got the archive {path}, which ends too early", "needed a whole .tar or .tar.gz", _ADVICE
    )


def _damaged(path: Path, why: str) -> CosetError:
    return CosetError(
        f"got the archive {path}, which is damaged or no archive ({why})",
        "needed a whole .tar or .tar.gz",
        _ADVICE,
    )
