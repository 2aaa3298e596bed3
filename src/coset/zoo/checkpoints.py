"""Published sets of networks: archives of safetensors files, read network by network."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor, nn

from coset.errors import CosetError, require_kind
from coset.files import is_pickle, pickled, unreadable
from coset.vocabulary import Weights
from coset.weights.network import weights_of
from coset.weights.refusals import check_floating, require_finite
from coset.weights.stacking import check_fit
from coset.zoo.archive import Entry, entries
from coset.zoo.tune import trials

_Load: TypeAlias = Callable[[], Mapping[str, Tensor]]

_PICKLES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle"})
_ZIP = b"PK\x03\x04"
_PREFIX = "model."
_HEADER = 10_000_000
"""Bytes that a file may have besides its numbers in double precision."""


def read_checkpoints(
    archive: str | Path,
    module: nn.Module,
    *,
    members: "Collection[int] | slice | None" = None,
    renamed: Mapping[str, str] | None = None,
    epoch: int | None = None,
) -> Iterator[Weights]:
    """Networks of an archive such as those of ``torch-uncertainty/Checkpoints``.

    The archive is a ``.tar`` or ``.tar.gz`` of safetensors files, one a network.  It is read once
    from its beginning and never unpacked, so that memory holds one network at a time.  Numbers
    come in the types of the module, whatever the archive has, and a prefix ``model.`` is dropped.

    It may also be a ``.zip`` of Ray Tune folders, as the model zoos of Schürholt et al. are: files
    ``NETWORK/checkpoint_000010/checkpoints``, read with ``weights_only=True``.  Their other form,
    pickled data sets, is refused.

    Args:
        archive: The file.
        module: The network whose weights they are.
        members: Which of the networks, numbered from 0 in the order of the archive; ``None``: all.
            The archive is read no further than to the last of them.
        renamed: What parts of the module are called in the archive, such as
            ``{"fc1": "linear1"}``: what begins with the first, a dot after it, is the second here.
        epoch: Of a zip: which of the epochs that are kept of each network; ``None``: the last.

    Raises:
        CosetError: The archive is cut, damaged or of another network, holds pickles, links or paths
            that lead out of it, or has fewer networks than are asked for.
    """
    require_kind(nn.Module, module=module)
    path = Path(archive)
    pattern = weights_of(module)
    ignored = set(module.state_dict()) - set(pattern)
    largest = 8 * sum(tensor.numel() for tensor in pattern.values()) + _HEADER
    chosen = _chosen(members)
    files = _files(path, epoch, largest)
    return _networks(path, files, pattern, ignored, renamed or {}, chosen)


def _files(path: Path, epoch: int | None, largest: int) -> Iterator[tuple[str, _Load]]:
    """Names of the networks, and what reads each, in order."""
    head = _head(path)
    if head.startswith(_ZIP):
        yield from trials(path, epoch, largest)
        return
    if is_pickle(head):
        raise pickled(path)
    if epoch is not None:
        raise CosetError(
            f"got epoch={epoch!r} for {path}", "needed a zip of Ray Tune folders, or None"
        )
    for entry in entries(path, suffix=".safetensors", largest=largest):
        if entry.content is None:
            _refuse_pickle(entry, path)
        else:
            yield entry.name, partial(_parsed, entry.name, entry.content, path)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError as error:
        raise unreadable(path, error) from error


def _parsed(file: str, content: bytes, path: Path) -> Weights:
    try:
        return parse_tensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CosetError(
            f"got {file!r:.120} of {path}, which safetensors cannot read ({error})",
            "needed whole files",
        ) from error


def _chosen(members: "Collection[int] | slice | None") -> "range | frozenset[int] | None":
    """The numbers asked for; ``None``: all."""
    if members is None:
        return None
    if isinstance(members, slice):
        start, stop, step = members.start or 0, members.stop, members.step or 1
        if start < 0 or step < 1 or (stop is not None and stop < 0):
            raise CosetError(
                f"got members={members}",
                "needed a slice that counts upwards from the beginning",
                "how many an archive holds is known only at its end",
            )
        return None if (start, stop, step) == (0, None, 1) else range(start, stop or 2**62, step)
    for number in members:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise CosetError(f"got member {number!r}", "needed whole numbers from 0")
    return frozenset(members)


def _networks(
    path: Path,
    files: Iterator[tuple[str, _Load]],
    pattern: Weights,
    ignored: Collection[str],
    renamed: Mapping[str, str],
    chosen: "range | frozenset[int] | None",
) -> Iterator[Weights]:
    last = None if chosen is None or isinstance(chosen, range) else max(chosen, default=-1)
    number = -1
    if last == -1:
        return
    for file, load in files:
        number += 1
        if chosen is None or number in chosen:
            yield _network(f"{file!r:.120} of {path}", load(), pattern, ignored, renamed)
        if number == last:
            return
    if number < 0 or (last is not None and number < last):
        raise CosetError(
            f"got the archive {path} with {number + 1} networks",
            "needed at least one" if last is None else f"needed member {last}",
        )


def _refuse_pickle(entry: Entry, path: Path) -> None:
    if PurePosixPath(entry.name).suffix in _PICKLES:
        raise CosetError(
            f"got the archive {path} with {entry.name!r:.120}, a pickle",
            "needed safetensors files: to read a pickle is to run what is in it",
            "convert it where you trust it: safetensors.torch.save_file(state_dict, path)",
        )


def _network(
    what: str,
    found: Mapping[str, Tensor],
    pattern: Weights,
    ignored: Collection[str],
    renamed: Mapping[str, str],
) -> Weights:
    named = {_name(name, renamed): tensor for name, tensor in found.items()}
    if len(named) < len(found):
        raise CosetError(f"got {what}, in which two tensors come to one name", "needed one each")
    weights: dict[str, Tensor] = {n: w for n, w in named.items() if n not in ignored}
    check_fit(weights, pattern, what=what)
    check_floating(weights, pattern, what)
    cast = {name: weights[name].to(like.dtype) for name, like in pattern.items()}
    require_finite(cast, cast, what)
    return cast


def _name(name: str, renamed: Mapping[str, str]) -> str:
    """What a tensor of the archive is called in the module."""
    name = name.removeprefix(_PREFIX)
    for theirs, ours in renamed.items():
        if name.startswith(f"{theirs}."):
            return ours + name[len(theirs) :]
    return name
