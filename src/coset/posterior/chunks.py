"""How many members and rows of data go through a network at once."""

from dataclasses import dataclass

from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import count_rows, split_rows
from coset.weights.memory import activations
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
    each = max(1, activations(network, member, row).largest * _TENSORS_AT_ONCE)
    chunk = max(1, min(rows, _PREFERRED_ROWS, memory // each))
    members = max(1, min(count, memory // (each * chunk)))
    return Plan(members, max(chunk, min(rows, memory // (each * members))))
