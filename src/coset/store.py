"""Files: written whole or not at all, checked when read, never unpickled."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialise_tensors
from torch import Tensor

from coset.errors import CosetError
from coset.files import (
    clear_unfinished,
    is_pickle,
    pickled,
    read_bytes,
    unreadable,
    write_bytes,
    write_text,
)

__all__ = [
    "clear_unfinished",
    "load_record",
    "load_tensors",
    "read_bytes",
    "save_record",
    "write_bytes",
    "write_text",
]

_BLANK = "0" * 64
_SIGNED = re.compile("[0-9a-f]{64} {")
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    MemoryError,
    RuntimeError,
    SafetensorError,
)
"""What reading a file may raise whose header holds something else than it should."""


def save_record(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Writes tensors and JSON facts as one safetensors file that carries its own sha256.

    The digest is taken over the whole file with the digest's own place blanked, so a byte flipped
    anywhere is noticed by :func:`load_record`.  Digest and facts share one metadata entry, because
    safetensors writes several in no fixed order.
    """
    content = serialise_tensors(_apart(tensors), {"coset": f"{_BLANK} {json.dumps(facts)}"})
    before, after = _around(content, _BLANK)
    digest = hashlib.sha256(content).hexdigest()
    write_bytes(path, before, digest.encode(), after)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each contiguous in memory of its own: safetensors refuses views of one storage."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in taken:
            plain = plain.clone()
        taken.add(plain.untyped_storage().data_ptr())
        found[name] = plain
    return found


def load_record(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what :func:`save_record` wrote, after checking its digest."""
    content = read_bytes(path)
    tensors, facts = _record(content, path)
    del content  # before its tensors are there once more
    return _aligned(tensors), facts


def load_facts(path: str | Path) -> dict[str, Any]:
    """The JSON facts of a file that :func:`save_record` wrote; tensors and digest are not read."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(8)
            size = min(int.from_bytes(start, "little"), os.fstat(file.fileno()).st_size)
            facts = json.loads(_metadata(start + file.read(size))["coset"].partition(" ")[2])
    except OSError as error:
        raise unreadable(path, error) from error
    except _DAMAGE as error:
        raise _foreign(path, start) from error
    if not isinstance(facts, dict):
        raise _foreign(path, start)
    return facts


def map_tensor(path: str | Path, name: str) -> Tensor:
    """A tensor of a safetensors file, memory-mapped: its bytes are read when they are used."""
    try:
        with safe_open(path, framework="pt") as file:
            found: Tensor = file.get_tensor(name)
    except OSError as error:
        raise unreadable(path, error) from error
    except _DAMAGE as error:
        raise CosetError(
            f"got {path}, from which safetensors cannot read {name!r} ({error})",
            "needed a whole safetensors file with it",
        ) from error
    return found


def record_is_whole(path: str | Path) -> bool:
    """Whether the content of a file that :func:`save_record` wrote fits its sha256."""
    try:
        with Path(path).open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            start = bytes(content[: 8 + int.from_bytes(content[:8], "little")])
            digest = _metadata(start)["coset"].partition(" ")[0]
            before, _ = _around(start, digest)
            found = hashlib.sha256(before)
            found.update(_BLANK.encode())
            with memoryview(content) as whole, whole[len(before) + len(digest) :] as after:
                found.update(after)
    except OSError as error:
        raise unreadable(path, error) from error
    except _DAMAGE:
        return False
    return bool(found.hexdigest() == digest)


def _aligned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """In memory as a fit has it, or sums may round differently; what is given is used up."""
    return {name: tensors.pop(name).clone() for name in list(tensors)}


def _record(content: bytes, path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        digest, _, facts = _metadata(content)["coset"].partition(" ")
        before, after = _around(content, digest)
        found = hashlib.sha256(before)
        found.update(_BLANK.encode())
        found.update(after)
        if found.hexdigest() != digest:
            raise CosetError(
                f"got {path}, whose content does not fit its sha256",
                "needed the file as it was saved",
                "it was truncated or changed: take another copy",
            )
        tensors, known = parse_tensors(content), json.loads(facts)
        if not isinstance(known, dict):
            raise TypeError("the facts are not an object")
        return tensors, known
    except _DAMAGE as error:
        if isinstance(error, CosetError):
            raise
        raise _foreign(path, content) from error


def _foreign(path: str | Path, content: bytes) -> CosetError:
    if is_pickle(content):
        return pickled(path)
    return CosetError(
        f"got {path}, which is not a file that coset wrote, or is damaged",
        "needed a safetensors file with coset's metadata and sha256",
    )


def _around(content: bytes, digest: str) -> tuple[memoryview, memoryview]:
    """What stands before and after a digest, without a copy."""
    place = content.index(f'"coset":"{digest} '.encode()) + len('"coset":"')
    whole = memoryview(content)
    return whole[:place], whole[place + len(digest) :]


@contextmanager
def blaming_content(path: str | Path, needed: str) -> Iterator[None]:
    """Blames a file for errors in reading what it holds; ``needed`` says what it should."""
    try:
        yield
    except CosetError as error:
        if str(path) in str(error):
            raise
        raise CosetError(f"in {path}: {error}") from error
    except _DAMAGE as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise CosetError(
            f"got {path}, whose content is not what it should be ({told:.120})", f"needed {needed}"
        ) from error


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """Reads any safetensors file; one that :func:`save_record` wrote must fit its digest."""
    content = read_bytes(path)
    if _ours(content):
        return _aligned(_record(content, path)[0])
    try:
        return parse_tensors(content)
    except _DAMAGE as error:
        if is_pickle(content):
            raise pickled(path) from error
        raise CosetError(
            f"got {path}, which safetensors cannot read ({error})",
            "needed a whole safetensors file",
        ) from error


def _metadata(content: bytes) -> dict[str, Any]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    found: dict[str, Any] = header["__metadata__"]
    return found


def _ours(content: bytes) -> bool:
    """Whether a file has our metadata, or what is left of it after a byte of its name changed."""
    try:
        known = _metadata(content)
        return "coset" in known or any(_SIGNED.match(value) for value in known.values())
    except _DAMAGE:
        return False
