"""Training runs written down as they go, so that they can be taken up bit for bit.

One file a run, ``state.safetensors``, is replaced whole: a run that is killed at any moment leaves
its last complete record behind.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.bayes.batches import Batches, InMemory
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.checkpoint import Checkpoint
from coset.inference.training.recipe import Recipe
from coset.posterior.records import describe, restore
from coset.store import load_record, save_record
from coset.vocabulary import Weights

_FORM = 1
"""Of the records that this version writes."""


@dataclass(frozen=True)
class Record:
    """Where one training run is written down, and what tells it from others.

    Attributes:
        checkpoint: The folder.
        facts: What must be the same for a run to be taken up.
    """

    checkpoint: Checkpoint
    facts: Mapping[str, Any]

    def due(self, step: int) -> bool:
        """Whether the state after so many steps is to be written down."""
        return step % self.checkpoint.every == 0

    def write(self, snapshot: Mapping[str, Any]) -> None:
        """Replaces the record by that of a snapshot."""
        Path(self.checkpoint.folder).mkdir(parents=True, exist_ok=True)
        state, tensors = describe(snapshot, "state")
        save_record(self._path, tensors, {**self.facts, "state": state})

    def read(self, device: torch.device) -> Mapping[str, Any] | None:
        """The snapshot that was written last; nothing if the run has not begun.

        Raises:
            CosetError: If the record is damaged, or belongs to another run.
        """
        if not self._path.exists():
            return None
        tensors, known = load_record(self._path)
        foreign = [name for name, value in self.facts.items() if known.get(name) != value]
        if foreign:
            theirs, ours = known.get(foreign[0]), self.facts[foreign[0]]
            raise CosetError(
                f"got {self._path}, the record of a run with {foreign[0]} {theirs!r:.120}",
                f"needed {ours!r:.120}",
                "give another folder, or the settings, the data and the seed of that run",
            )
        # copies: what was read from a file lies in memory as it comes, and sums depend on that
        found: Mapping[str, Any] = restore(
            known["state"], {name: tensor.clone().to(device) for name, tensor in tensors.items()}
        )
        return found

    @property
    def _path(self) -> Path:
        return Path(self.checkpoint.folder) / "state.safetensors"


def record_of(
    checkpoint: Checkpoint | None,
    kind: str,
    problem: Problem,
    recipe: Recipe,
    seeds: Sequence[int],
    starts: Weights,
) -> Record | None:
    """The record of a run from these beginnings; none without a checkpoint."""
    if checkpoint is None:
        return None
    held_out = recipe.held_out()
    facts = {
        "kind": kind,
        "form": _FORM,
        "recipe": repr(replace(recipe, validation=None)),
        "likelihood": repr(problem.likelihood),
        "prior": repr(problem.prior),
        "seeds": [int(seed) for seed in seeds],
        "first weights": _digest(starts),
        "data": _data(problem.train),
        "validation data": None if held_out is None else _data(held_out),
    }
    return Record(checkpoint, facts)


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


def _data(batches: Batches) -> str:
    """Size and content of tensors; of a data set, which may draw at random, only the size."""
    content = ""
    if isinstance(batches, InMemory):
        content = _digest({"inputs": batches.inputs, "targets": batches.targets})
    return f"{batches.size} examples {content}".strip()


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
