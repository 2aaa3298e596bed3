"""How many members and rows of data go through a network at once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import count_rows, split_rows
from coset.weights.network import Network
from coset.weights.stacking import members_of

_PREFERRED_ROWS = 512
"""Rows of a chunk when there are many members: more rows add memory, hardly speed."""

_TENSORS_AT_ONCE = 4
"""Activations alive together, as a multiple of the largest: input, output and work space."""


@dataclass(frozen=True)
class Plan:
    """Members and rows of one chunk."""

    members: int
    rows: int


def plan_chunks(network: Network, stack: Weights, inputs: Inputs, memory: int) -> Plan:
    """Runs one row through one member, measures its largest activation, and shares the memory."""
    count, rows = members_of(stack), count_rows(inputs)
    member = {name: tensor[0] for name, tensor in stack.items()}
    row = next(split_rows(inputs, 1))
    network.apply(member, row)  # what a network sets up at its first call is no activation
    with _Largest() as seen:
        network.apply(member, row)
    each = max(1, seen.bytes * _TENSORS_AT_ONCE)
    chunk = max(1, min(rows, _PREFERRED_ROWS, memory // each))
    members = max(1, min(count, memory // (each * chunk)))
    return Plan(members, max(chunk, min(rows, memory // (each * members))))


class _Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that an operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if func.is_view:  # a transposed weight matrix is no activation
            return outputs
        for part in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            if isinstance(part, torch.Tensor):
                self.bytes = max(self.bytes, part.nbytes)
        return outputs
