"""Training runs written down as they go, so that they can be taken up bit for bit.

One file a run, ``state.safetensors``, is replaced whole: a run that is killed at any moment leaves
its last complete record behind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.checkpoint import Checkpoint, read_record
from coset.inference.facts import data_fact, described, facts_of
from coset.inference.training.recipe import Recipe
from coset.posterior.records import describe, restore
from coset.store import save_record
from coset.vocabulary import Weights

_FORM = 4
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
        record = read_record(self._path, self.facts)
        if record is None:
            return None
        tensors, known = record
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
    kind: Any,
    problem: Problem,
    recipe: Recipe,
    seeds: Sequence[int],
    starts: Weights,
) -> Record | None:
    """The record of a run of some kind from these beginnings; none without a checkpoint."""
    if checkpoint is None:
        return None
    held_out = recipe.held_out()
    facts = {
        "kind": kind,
        "form": _FORM,
        "recipe": described(replace(recipe, validation=None)),
        "members of a stack": len(seeds),
        "seeds": [int(seed) for seed in seeds],
        **facts_of(problem, starts),
        "validation data": None if held_out is None else data_fact(held_out),
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
