"""Long runs written down as they go, and taken up again bit for bit.

A folder holds ``state.safetensors`` (the state of the chains, of the generator, and the step) and
one file a stretch of draws.  Files are renamed into place when complete, draws before the state
that counts them, so a run killed at any moment finds a folder it can continue from.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from coset.errors import CosetError, require_counts
from coset.inference.facts import require_same
from coset.store import clear_unfinished, load_record, save_record

State = TypeVar("State")


@dataclass(frozen=True)
class Checkpoint:
    """Where a run writes itself down.

    Attributes:
        folder: A folder of its own, made if it is not there.  A run that finds its own state in
            it goes on from there; the state of another run is refused.
        every: Steps between two records.
    """

    folder: str | Path
    every: int = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise CosetError(f"got the folder {self.folder!r}", "needed a path")
        require_counts(every=self.every)


@dataclass(frozen=True)
class Progressed:
    """How far a run was.

    Attributes:
        step: Steps done.
        kept: Draws kept.
        tensors: State of the chains, flattened by :func:`tensors_of`.
        generator: State of the generator.
        torch: State of torch's own, from which a network may draw.
        draws: The kept draws and what was recorded of each step, by name.
    """

    step: int
    kept: int
    tensors: Mapping[str, Tensor]
    generator: Tensor
    torch: Tensor
    draws: Mapping[str, list[Tensor]]


def tensors_of(state: Any, prefix: str = "state") -> dict[str, Tensor]:
    """All tensors of nested dataclasses, named by their place.

    >>> from coset.inference.sampling.targets import Evaluated
    >>> sorted(tensors_of(Evaluated(*[torch.zeros(1)] * 3)))
    ['state.buffers', 'state.energy', 'state.gradient']
    """
    if isinstance(state, Tensor):
        return {prefix: state}
    if not is_dataclass(state):
        raise TypeError(f"the state of a kernel is made of tensors, not {type(state).__name__}")
    found: dict[str, Tensor] = {}
    for field in fields(state):
        found |= tensors_of(getattr(state, field.name), f"{prefix}.{field.name}")
    return found


def refill(pattern: State, tensors: Mapping[str, Tensor], prefix: str = "state") -> State:
    """A state like ``pattern`` with the tensors that :func:`tensors_of` took out of another."""
    changes: dict[str, Any] = {}
    for field in fields(pattern):  # type: ignore[arg-type]  # tensors_of has seen a dataclass
        name, part = f"{prefix}.{field.name}", getattr(pattern, field.name)
        changes[field.name] = (
            tensors[name].to(part.device)
            if isinstance(part, Tensor)
            else refill(part, tensors, name)
        )
    return replace(pattern, **changes)  # type: ignore[type-var]


def read_record(
    path: Path, facts: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What the run with these facts wrote last; nothing if it has not begun.

    Its folder is made then, so that one that cannot be written in is refused before any work.

    Raises:
        CosetError: If the file is damaged or of another run, or there cannot be one.
    """
    folder, found = path.parent, None
    try:
        if path.exists():
            found = load_record(path)
            require_same(path, found[1], facts)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        clear_unfinished(folder)
        if found is None and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CosetError(
            f"got the checkpoint {folder}: {error.strerror}",
            "needed a folder that can be made and written in",
            "give another folder",
        ) from error
    return found


def write(
    checkpoint: Checkpoint,
    facts: Mapping[str, Any],
    progressed: Progressed,
    *,
    already: int,
) -> None:
    """Writes the draws since step ``already`` and then the state."""
    folder = Path(checkpoint.folder)
    folder.mkdir(parents=True, exist_ok=True)
    new = {
        name: torch.stack(values) if values else torch.empty(0)
        for name, values in progressed.draws.items()
    }
    save_record(
        folder / f"draws-{already:09d}.safetensors",
        new,
        {**facts, "from": already, "to": progressed.step},
    )
    known = {**facts, "step": progressed.step, "kept": progressed.kept}
    save_record(
        folder / "state.safetensors",
        {**progressed.tensors, "generator": progressed.generator, "torch": progressed.torch},
        known,
    )


def read(checkpoint: Checkpoint, facts: Mapping[str, Any]) -> Progressed | None:
    """What the folder holds of the run with these facts; nothing if it has not begun.

    Raises:
        CosetError: If the folder holds another run, or a file of it is missing or damaged.
    """
    folder = Path(checkpoint.folder)
    record = read_record(folder / "state.safetensors", facts)
    if record is None:
        return None
    tensors, known = record
    step, kept = int(known["step"]), int(known["kept"])
    draws: dict[str, list[Tensor]] = {}
    begin = 0
    while begin < step:
        path = folder / f"draws-{begin:09d}.safetensors"
        found, part = load_record(path)
        require_same(path, part, {**facts, "from": begin})
        for name, values in found.items():
            draws.setdefault(name, []).extend(values.unbind(0))
        begin = int(part["to"])
    if begin != step:
        raise CosetError(
            f"got {folder} with draws up to step {begin}",
            f"needed them up to step {step}, where its state is",
            "files of another run were mixed in: begin again in an empty folder",
        )
    generator, own = tensors.pop("generator"), tensors.pop("torch")
    return Progressed(step, kept, tensors, generator, own, draws)
