"""Plain files: written whole or not at all.  Nothing here waits for torch."""

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from coset.errors import CosetError, require_kind

_TOKEN, _DEAD = 8, 86_400.0
"""Random bytes in the name of an unfinished file, and seconds after which its writer is taken for
dead where the disk has no locks that would tell."""

_PICKLE = re.compile(rb"\x80[\x02-\x05]|PK\x03\x04")

_LARGEST_HEADER = 100_000_000
"""Bytes that safetensors allows."""

_HEX = f"[0-9a-f]{{{2 * _TOKEN}}}"


def write_bytes(path: str | Path, *pieces: bytes | memoryview) -> None:
    """Writes beside the name, then renames, so that no reader ever sees half a file.

    A link stays and the file it leads to is written, as by ``open``; a folder, a pipe or a device
    is refused, for renaming would put a file in its place.  A file that is replaced keeps its mode
    and group.  Content and name are on the disk when this returns; what earlier writers of the
    same file left behind when they were killed is removed.

    Raises:
        CosetError: If the file cannot be written; the one that was there is as it was.
    """
    require_kind(str | PathLike, path=path)
    try:
        target = _target(path)
        _clear(target.parent, re.escape(_unfinished(target)))
        _replace(target, pieces)
    except CosetError:
        raise
    except (OSError, ValueError) as error:  # names may be too long, or hold what no name can
        raise CosetError(
            f"got the path {_printed(path)}: {_reason(error)}", "needed a place that can be written"
        ) from error


def _target(path: str | Path) -> Path:
    """The file that a path leads to, in a folder that exists."""
    target = Path(os.path.realpath(path))
    if not os.path.isdir(target.parent):
        raise CosetError(f"got the path {path}", f"needed the folder {target.parent} to exist")
    if os.path.exists(target) and not os.path.isfile(target):
        what = "a folder" if os.path.isdir(target) else "no plain file"
        raise CosetError(f"got the path {path}, which is {what}", "needed a file name")
    return target


def _replace(target: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file that belongs to this process, renames it, and syncs both."""
    earlier = os.stat(target) if target.exists() else None
    file, temporary = _create(target, 0o666 if earlier is None else 0o600)
    try:
        if earlier is not None:
            _take_rights(file, earlier)
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                rest = rest[os.write(file, rest) :]
        os.fsync(file)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(file)  # only now is it unlocked
    _sync_folder(target.parent)


def _create(target: Path, mode: int) -> tuple[int, Path]:
    """A new file beside the target, locked for as long as its writer lives."""
    while True:
        # tempfile's names would grow too long where the target's own is as long as it may be
        temporary = target.with_name(_unfinished(target) + secrets.token_hex(_TOKEN))
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if _lock(file) is not False and os.path.exists(temporary):
            return file, temporary
        os.close(file)  # somebody who clears was between us and the lock


def _take_rights(file: int, earlier: os.stat_result) -> None:
    """Gives a file mode, owner and group of an earlier one, or fewer rights."""
    mode, own = stat.S_IMODE(earlier.st_mode), os.fstat(file)
    if (own.st_uid, own.st_gid) != (earlier.st_uid, earlier.st_gid):
        try:
            os.fchown(file, earlier.st_uid, earlier.st_gid)
        except OSError:  # rights of that group are not for another
            mode &= ~stat.S_IRWXG
    os.fchmod(file, mode)


def _sync_folder(folder: Path) -> None:
    """Waits until a new name is on the disk, where the disk has such a thing."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # one may write in folders that one may not read
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise
    finally:
        os.close(opened)


def _lock(file: int) -> bool | None:
    """Locks a file: whether nobody else has; ``None`` where the disk has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def clear_unfinished(folder: str | Path) -> None:
    """Removes what writers that were killed left in a folder, and nothing of those at work.

    Writers lock what they write, and the lock of a process goes with it.
    """
    _clear(Path(folder), r"\..*\.")


@contextmanager
def sole_writer(path: str | Path) -> Iterator[bool | None]:
    """Holds a lock file for as long as somebody writes, and takes it away in the end.

    Gives ``True``; ``False`` if another process holds it; ``None`` where the disk has no locks, as
    some network file systems.  A process that is killed holds it no longer.

    Raises:
        CosetError: If the file cannot be made.
    """
    try:
        file = _opened_lock(path)
    except OSError as error:
        raise CosetError(
            f"got the path {path}: {_reason(error)}", "needed a place that can be written"
        ) from error
    if file is None:
        yield False
        return
    try:
        yield _lock(file)  # ours already: once more changes nothing
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(file)


def _opened_lock(path: str | Path) -> int | None:
    """A locked file of that name, or nothing if another process has locked it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        if _lock(file) is False:
            os.close(file)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)  # its holder took it away between our two steps


def _unfinished(target: Path) -> str:
    """How names of unfinished files for a target begin."""
    return f".{target.name[:32]}."


def _clear(folder: Path, begin: str) -> None:
    """Removes unfinished files of the dead whose names begin as a pattern says."""
    name = re.compile(begin + _HEX, re.DOTALL)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                with suppress(OSError):  # somebody else did, or may
                    _unlink_unless_locked(entry.path)


def _unlink_unless_locked(path: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        dead = _lock(file)
        if dead is None:
            dead = time.time() - os.fstat(file).st_mtime > _DEAD
        if dead:
            os.unlink(path)
    finally:
        os.close(file)


def _printed(path: str | Path) -> str:
    """A path for a message, which has one line and can be read."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def write_text(path: str | Path, content: str) -> None:
    """Text, written like :func:`write_bytes`."""
    write_bytes(path, content.encode())


def read_bytes(path: str | Path) -> bytes:
    """The content of a file that must exist."""
    require_kind(str | PathLike, path=path)
    try:
        if stat.S_ISCHR(os.stat(path).st_mode) or stat.S_ISBLK(os.stat(path).st_mode):
            raise CosetError(f"got {path}, which is a device", "needed a file")  # without an end
        return Path(path).read_bytes()
    except CosetError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unreadable(path: str | Path, error: Exception) -> CosetError:
    """What to raise for a file that the system does not let us read."""
    return CosetError(f"got {_printed(path)}: {_reason(error)}", "needed a file that can be read")


def is_pickle(begin: bytes) -> bool:
    """Whether a file begins as pickles do, or the zips of ``torch.save``.

    >>> import pickle
    >>> is_pickle(pickle.dumps([1])), is_pickle(b"[1]")
    (True, False)
    """
    size = int.from_bytes(begin[:8], "little")  # of the header, if this were safetensors
    return _PICKLE.match(begin) is not None and size > _LARGEST_HEADER


def pickled(path: str | Path) -> CosetError:
    """What to raise for a pickle where weights are needed."""
    return CosetError(
        f"got {_printed(path)}, a pickle or a zip such as torch.save writes",
        "needed safetensors: to read a pickle is to run what is in it",
        "convert it where you trust it: safetensors.torch.save_file(state_dict, path)",
    )
