"""Where a fit stands, written down so that it can be taken up again bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.inference.checkpoint import Checkpoint, read_record, refill, tensors_of
from coset.linalg.iterative import Iterate
from coset.store import save_record


@dataclass(frozen=True)
class Descent:
    """Between two steps of stochastic descent; the mode is the last row, where it is sought."""

    value: Float[Tensor, "k p"]
    velocity: Float[Tensor, "k p"]
    average: Float[Tensor, "k p"]
    count: Int[Tensor, ""]


@dataclass(frozen=True)
class State:
    """Between two records of a fit.

    Attributes:
        step: Updates of the precisions that are done.
        precision: Of each group.
        noise: ``1 / σ²``.
        mode: Weights at which the evidence is taken.
        outputs: The tangent model's outputs there.
        curved: Outputs at which the curvature of the likelihood is taken.
        solving: One while samples are being found.
        work: The samples and what their solver needs.
    """

    step: Int[Tensor, ""]
    precision: Float[Tensor, " g"]
    noise: Float[Tensor, ""]
    mode: Float[Tensor, " p"]
    outputs: Tensor
    curved: Tensor
    solving: Int[Tensor, ""]
    work: Iterate | Descent

    @property
    def busy(self) -> bool:
        """Whether samples are being found."""
        return bool(self.solving)


def number(value: int) -> Int[Tensor, ""]:
    """A count as a tensor, which is what records hold."""
    return torch.tensor(value, dtype=torch.long)


@dataclass(frozen=True)
class Record:
    """A file that holds the last state of one run, or nothing at all.

    Attributes:
        checkpoint: Where the file is; ``None``: nowhere.
        facts: What tells this run from any other.
    """

    checkpoint: Checkpoint | None
    facts: Mapping[str, Any]

    def due(self, count: int, longest: int) -> bool:
        """Whether to write after so many iterations; ``longest`` is what one would like to lose."""
        return self.checkpoint is not None and count % min(self.checkpoint.every, longest) == 0

    def write(self, state: State) -> None:
        """Replaces the file, as a whole."""
        if self.checkpoint is None:
            return
        folder = Path(self.checkpoint.folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_record(folder / _FILE, tensors_of(state), self.facts)

    def read(self, pattern: State) -> State:
        """The state of this run, or ``pattern`` where it has not begun.

        Raises:
            CosetError: If the folder holds another run, or its file is damaged.
        """
        if self.checkpoint is None:
            return pattern
        record = read_record(Path(self.checkpoint.folder) / _FILE, self.facts)
        if record is None:
            return pattern
        state = refill(pattern, record[0])
        if not isinstance(state.work, Iterate):
            return state
        # a file keeps rows of numbers; columns must lie in memory as they did
        turned = {
            field.name: as_columns(value)
            for field in fields(state.work)
            if (value := getattr(state.work, field.name)).dim() == 2
        }
        return replace(state, work=replace(state.work, **turned))


_FILE = "matrix-free.safetensors"


def as_columns(stack: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
    """The same numbers with each column in one piece of memory."""
    return stack.mT.contiguous().mT
