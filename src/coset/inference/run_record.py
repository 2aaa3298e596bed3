"""Long runs written down as they go, and taken up again bit for bit.

Every method writes the same: a folder with ``state.safetensors``, which holds all that changes
during the run, and for those that collect draws one file a stretch of them.  Files are renamed into
place when complete, draws before the state that counts them, so a run killed at any moment finds a
folder it can continue from.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from coset.bayes.problem import Problem
from coset.errors import CosetError, require_counts
from coset.inference.run_fingerprint import fingerprint_of, require_same
from coset.posterior.records import describe, restore
from coset.store import blaming_content, clear_unfinished, load_record, save_record
from coset.vocabulary import Weights

State = TypeVar("State")
Found = TypeVar("Found")

FORM = 1
"""Of the records that this version writes; those of another form are refused."""

_CPU = torch.device("cpu")


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


def part_of(checkpoint: Checkpoint | None, name: str) -> Checkpoint | None:
    """A folder inside a checkpoint's, for one part of a fit.

    >>> part_of(Checkpoint("run", every=7), "stack-000")
    Checkpoint(folder=PosixPath('run/stack-000'), every=7)
    """
    if checkpoint is None:
        return None
    return Checkpoint(Path(checkpoint.folder) / name, checkpoint.every)


def refuse_two_checkpoints(method: str, base: object) -> None:
    """Refuses a checkpoint of the training inside a method, which has its own."""
    if getattr(base, "checkpoint", None) is not None:
        raise CosetError(
            f"got {method} with a checkpoint in its base",
            "needed one place that holds the whole run",
            f"give the checkpoint to {method}",
        )


@dataclass(frozen=True)
class RunRecord:
    """Where one run is written down, and what tells it from others.

    Attributes:
        checkpoint: The folder; ``None``: nothing is written and nothing is found.
        fingerprint: What must be the same for the run to be taken up, as plain JSON.
    """

    checkpoint: Checkpoint | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        checkpoint: Checkpoint | None,
        problem: Problem,
        starts: Weights,
        settings: Callable[[], Mapping[str, Any]],
    ) -> "RunRecord":
        """The record of a run.

        Args:
            checkpoint: Where it is; nothing else is looked at without one.
            problem: What is fitted.
            starts: The weights that the run begins from, as a stack.
            settings: What else tells the run from others.
        """
        if checkpoint is None:
            return RunRecord()
        known = {"form": FORM, **settings(), **fingerprint_of(problem, starts)}
        return RunRecord(checkpoint, known)

    @property
    def folder(self) -> Path:
        """The checkpoint's."""
        assert self.checkpoint is not None
        return Path(self.checkpoint.folder)

    def due(self, step: int, *, at_most: int | None = None) -> bool:
        """Whether the state after so many steps is to be written down.

        Args:
            step: Steps done.
            at_most: Steps between two records at most, where steps are slow.
        """
        if self.checkpoint is None:
            return False
        return step % min(self.checkpoint.every, at_most or self.checkpoint.every) == 0

    def write(self, state: Any) -> None:
        """Replaces the state: tensors, numbers, mappings, tuples and dataclasses of such."""
        if self.checkpoint is None:
            return
        described, tensors = describe(_plain(state), "state")
        self._save("state", tensors, {"state": described})

    def append(self, begin: int, end: int, draws: Mapping[str, Sequence[Tensor]]) -> None:
        """Adds what was drawn from step ``begin`` to step ``end``, for a state of then."""
        if self.checkpoint is None:
            return
        stacks = {n: torch.stack([*each]) if each else torch.empty(0) for n, each in draws.items()}
        self._save(f"draws-{begin:09d}", stacks, {"from": begin, "to": end})

    def _save(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._make_folder()
        facts = {"run": self.fingerprint, **facts}
        save_record(self.folder / f"{name}.safetensors", tensors, facts)

    def kept(self, name: str, compute: Callable[[], Found]) -> Found:
        """What a step of the run finds, from its own file where there is one.

        What is computed is given as a file would hold it, so that both are the same to the last
        bit.

        Args:
            name: Of the step; its file is refused if it is damaged or of another run.
            compute: The step; it finds tensors, numbers, texts, or mappings and tuples of such.
        """
        if self.checkpoint is None:
            return compute()
        path = self.folder / f"{name}.safetensors"
        if path.exists():
            tensors, known = self._load(path)
            with blaming_content(path, "a step of this run: begin again in an empty folder"):
                return cast(Found, restore(known["found"], tensors))
        described, tensors = describe(compute(), "found")
        self._save(name, tensors, {"found": described})
        plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
        return cast(Found, restore(described, plain))

    def resume(
        self, take: Callable[[Mapping[str, Any]], Found], *, device: torch.device = _CPU
    ) -> Found | None:
        """Takes up the state that was written last; nothing if the run has not begun.

        The folder is made then, so that one that cannot be written in is refused before any work.

        Args:
            take: Given the state as nested mappings and tuples of tensors on ``device``.
            device: Where the run is computed.

        Raises:
            CosetError: If the file is damaged or of another run, or there cannot be one.
        """
        if self.checkpoint is None:
            return None
        path = self.folder / "state.safetensors"
        self._make_folder()
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise self._refusal(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        clear_unfinished(self.folder)
        if not path.exists():
            return None
        tensors, known = self._load(path)
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
        with blaming_content(path, "the state of this run: begin again in an empty folder"):
            return take(restore(known["state"], moved))

    def appended(self, end: int) -> dict[str, list[Tensor]]:
        """All that was drawn up to step ``end``.

        Raises:
            CosetError: If a file is missing, damaged or of another run.
        """
        draws: dict[str, list[Tensor]] = {}
        begin = 0
        while begin < end:
            path = self.folder / f"draws-{begin:09d}.safetensors"
            found, known = self._load(path, {"from": begin})
            with blaming_content(path, "draws of this run: begin again in an empty folder"):
                for name, values in found.items():
                    draws.setdefault(name, []).extend(values.unbind(0))
                begin = max(int(known["to"]), begin + 1)
        if begin != end:
            raise CosetError(
                f"got {self.folder} with draws up to step {begin}",
                f"needed them up to step {end}, where its state is",
                "files of another run were mixed in: begin again in an empty folder",
            )
        return draws

    def _load(
        self, path: Path, also: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, known = load_record(path)
        run = known.get("run")
        theirs = {**known, **(run if isinstance(run, Mapping) else {"form": None})}
        require_same(path, theirs, {**self.fingerprint, **(also or {})})
        return tensors, known

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> CosetError:
        why = getattr(error, "strerror", None) or error
        return CosetError(
            f"got the checkpoint {str(self.folder)!r}: {why}",
            "needed a folder that can be made and written in",
            "give another folder",
        )


class Steps:
    """The steps of a run that takes the same ones in the same order whenever it is run.

    >>> steps = Steps()
    >>> steps.kept(lambda: 3)  # nothing is written without a record
    3
    """

    def __init__(self, record: RunRecord | None = None) -> None:
        self._record, self._count = RunRecord() if record is None else record, 0

    def kept(self, compute: Callable[[], Found]) -> Found:
        """What the next step finds: computed and written down, or read (:meth:`RunRecord.kept`)."""
        self._count += 1
        return self._record.kept(f"step-{self._count:05d}", compute)

    @property
    def are_written(self) -> bool:
        """Whether anything is."""
        return self._record.checkpoint is not None


def _plain(state: Any) -> Any:
    """Nested dataclasses as mappings."""
    if is_dataclass(state) and not isinstance(state, type):
        return {field.name: _plain(getattr(state, field.name)) for field in fields(state)}
    if isinstance(state, Mapping):
        return {name: _plain(part) for name, part in state.items()}
    return state


def refilled(pattern: State, saved: Any) -> State:
    """Nested dataclasses of tensors like ``pattern``, with what was saved of another.

    >>> from coset.inference.matrix_free.state import Descent
    >>> zero = torch.zeros(1)
    >>> refilled(Descent(zero, zero, zero, zero), {"value": zero + 3, "velocity": zero,
    ...     "average": zero, "count": zero}).value
    tensor([3.])
    """
    if isinstance(pattern, Tensor):
        return cast(State, saved.to(pattern.device))
    parts = {
        field.name: refilled(getattr(pattern, field.name), saved[field.name])
        for field in fields(pattern)  # type: ignore[arg-type]  # a dataclass is all it can be
    }
    return replace(pattern, **parts)  # type: ignore[type-var]
