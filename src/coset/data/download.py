"""Fetch a file from its official address: verified, then renamed into place, or nothing at all."""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coset.errors import CosetError
from coset.vocabulary import Progress

_CHUNK = 1 << 20
_ARCHIVES = (".tar.gz", ".zip")
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError)
"""What unpacking raises; a RuntimeError for bits that ask for what zipfile cannot do."""


@dataclass(frozen=True)
class Remote:
    """A file offered for download: its addresses, the best first, and its checksum."""

    urls: tuple[str, ...]
    checksum: str

    @property
    def file(self) -> str:
        """Name of the file, the last part of the address.

        >>> Remote(("https://example.org/a/b.zip",), "md5:0").file
        'b.zip'
        """
        return self.urls[0].rpartition("/")[2]


def checksum_of(path: Path, kind: str) -> str:
    """Checksum of a file, as ``kind:digits``.

    >>> checksum_of(Path(os.devnull), "md5")
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def verify(path: Path, expected: str, *, shown: str | None = None) -> None:
    """Refuse a file whose checksum is not the expected one.

    Raises:
        CosetError: The file was cut short, changed, or is another one of the same name.
    """
    found = checksum_of(path, expected.partition(":")[0])
    if found != expected:
        raise CosetError(
            f"got {shown or path} with checksum {found} ({path.stat().st_size} bytes)",
            f"needed {expected}",
            "the file is cut short or was changed: fetch it again",
        )


def fetch(remote: Remote, folder: Path, *, progress: Progress | None = None) -> None:
    """Bring a remote file into ``folder``; an archive is unpacked there and not kept.

    Args:
        remote: What to fetch.
        folder: Where it goes; made if absent.
        progress: Told the fraction of the file that has arrived.

    Raises:
        CosetError: No address answered, or what came had the wrong checksum. Nothing is left.
    """
    failures = []
    for url in remote.urls:
        try:
            _fetch_from(url, remote, folder, progress)
            return
        # URLError and a timeout are OSErrors; a server that stops half-way is an HTTPException.
        except (CosetError, OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
    with suppress(OSError):  # not empty: files that arrived earlier stay
        folder.rmdir()
    raise CosetError(f"the download failed ({' | '.join(failures)})")


def _fetch_from(url: str, remote: Remote, folder: Path, progress: Progress | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with _scratch(folder) as scratch:
        part = scratch / remote.file
        _copy(url, part, progress)
        verify(part, remote.checksum, shown=url)
        if remote.file.endswith(_ARCHIVES):
            unpacked = scratch / "unpacked"
            unpack(part, unpacked)
            for entry in sorted(unpacked.iterdir()):
                _put(entry, folder / entry.name, scratch)
        else:
            os.replace(part, folder / remote.file)


def _put(entry: Path, target: Path, scratch: Path) -> None:
    # A folder cannot be renamed onto another; an older, incomplete one goes with the scratch. One
    # that is the same was brought by a process beside us, and may be in use already.
    if target.is_dir():
        if _files(target) == _files(entry):
            return
        os.replace(target, scratch / f"old-{target.name}")
    os.replace(entry, target)


def _files(folder: Path) -> dict[Path, int]:
    """The files of a folder and their sizes."""
    return {
        path.relative_to(folder): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the target, on the same disk so that a rename is atomic; always removed."""
    scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy(url: str, target: Path, progress: Progress | None) -> None:
    with urllib.request.urlopen(url, timeout=30) as answer, target.open("wb") as file:
        length = int(answer.headers.get("Content-Length") or 0)
        arrived = 0
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            arrived += len(chunk)
            if progress is not None:
                fraction = min(arrived / length, 1.0) if length else 0.0
                progress(fraction, f"{target.name}: {arrived / 1e6:.1f} MB")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.tar.gz`` or ``.zip`` archive; no entry may leave the folder.

    Raises:
        CosetError: The archive is damaged or holds an entry that points outside.
    """
    folder.mkdir()
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
        else:
            with tarfile.open(archive, "r:gz") as tarred:
                tarred.extractall(folder, filter="data")
    except (*_DAMAGE, EOFError, OSError) as error:
        raise CosetError(
            f"got the archive {archive.name}, which cannot be unpacked ({error})",
            "needed a whole .tar.gz or .zip archive",
            "fetch it again",
        ) from error
