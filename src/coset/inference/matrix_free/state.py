"""Where a fit stands, written down so that it can be taken up again bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.inference.run_record import RunRecord, refilled
from coset.linalg.operators import Iterate


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


def last_state(record: RunRecord, first: State) -> State:
    """The state that was written down last; ``first`` where the run has not begun."""

    def taken_up(saved: Mapping[str, Any]) -> State:
        state = refilled(first, saved)
        if not isinstance(state.work, Iterate):
            return state
        # a file keeps rows of numbers; columns must lie in memory as they did
        turned = {
            field.name: as_columns(value)
            for field in fields(state.work)
            if (value := getattr(state.work, field.name)).dim() == 2
        }
        return replace(state, work=replace(state.work, **turned))

    return record.resume(taken_up) or first


def as_columns(stack: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
    """The same numbers with each column in one piece of memory."""
    return stack.mT.contiguous().mT
