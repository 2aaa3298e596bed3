"""What a network is called with: one tensor or several, the data along the first axis of each.

``module(ids, mask)`` has the inputs ``(ids, mask)``.  Everything else asks here for rows and parts,
so that it need not know how many there are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.vocabulary import Inputs

_CHANNELS = (1, 3, 4)
"""Of pictures: grey, colours, colours with opacity."""


def parts_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """The tensors, in the order in which the network takes them."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def as_inputs(parts: Sequence[Tensor]) -> Inputs:
    """The inverse of :func:`parts_of`: a single tensor stands for itself."""
    return parts[0] if len(parts) == 1 else tuple(parts)


def map_parts(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same done to every tensor.

    >>> import torch
    >>> [len(part) for part in map_parts(lambda part: part[1:], (torch.zeros(3), torch.ones(3, 2)))]
    [2, 2]
    """
    return tuple(map(function, inputs)) if isinstance(inputs, tuple) else function(inputs)


def take_rows(inputs: Inputs, rows: slice | int | Tensor) -> Inputs:
    """Some rows of every tensor."""
    if isinstance(inputs, tuple):
        return tuple(part[rows] for part in inputs)
    return inputs[rows]


def shape_rows(inputs: Inputs, shape: Sequence[int]) -> Inputs:
    """The first axis of every tensor in another shape, such as members and their batches."""
    return map_parts(lambda part: part.reshape(*shape, *part.shape[1:]), inputs)


def for_members(inputs: Inputs, members: int) -> Inputs:
    """The same rows for every member, along a new first axis, without copies."""
    return map_parts(lambda part: part.expand(members, *part.shape), inputs)


def split_rows(inputs: Inputs, rows: int) -> Iterator[Inputs]:
    """The inputs in consecutive chunks of at most ``rows`` data."""
    if isinstance(inputs, tuple):
        yield from zip(*(part.split(rows) for part in inputs), strict=True)
    else:
        yield from inputs.split(rows)


def count_rows(inputs: Inputs) -> int:
    """The number of data ``n``, the first axis of every tensor.

    Raises:
        CosetError: If these are no tensors, or their numbers of rows differ or are zero.
    """
    parts = parts_of(inputs)
    if not parts or not all(isinstance(part, Tensor) and part.dim() for part in parts):
        raise CosetError(
            f"got {_kind(inputs)} as inputs",
            "needed a tensor with the data along its first axis, or a tuple of such tensors",
        )
    sizes = [len(part) for part in parts]
    if len(set(sizes)) > 1 or not sizes[0]:
        raise CosetError(
            f"got inputs with {' and '.join(map(str, sizes))} rows",
            "needed the same number of rows in every tensor, at least one",
        )
    return sizes[0]


def check_finite_inputs(inputs: Inputs, *, first: int = 0) -> None:
    """Refuses numbers that are not finite, and says where the first one is.

    Args:
        inputs: What to look at.
        first: The number of the first row.
    """
    parts = parts_of(inputs)
    for number, part in enumerate(parts, 1):
        # a sum is finite only if all numbers are, and is had without a table of answers
        if not part.is_floating_point() or bool(part.sum().isfinite() or part.isfinite().all()):
            continue
        bad = ~part.isfinite().reshape(len(part), -1).all(1)
        which = f" of tensor {number} of {len(parts)}" if len(parts) > 1 else ""
        raise CosetError(
            f"got inputs that are not finite, in example {first + int(bad.nonzero()[0])}{which}",
            "needed finite numbers",
            "leave such examples out, or fill the gaps",
        )


def other_type(inputs: Inputs, weights: Iterable[Tensor]) -> str | None:
    """What to do about inputs of another type, or with channels last; ``None``: they may fit.

    >>> import torch
    >>> other_type(torch.zeros(2), [torch.zeros(2, dtype=torch.float64)])
    'the weights are torch.float64: give inputs of that type'
    """
    kinds = {tensor.dtype for tensor in weights if tensor.is_floating_point()}
    given = {part.dtype for part in parts_of(inputs) if part.is_floating_point()}
    if len(kinds) == 1 and given - kinds:
        return f"the weights are {kinds.pop()}: give inputs of that type"
    for part in parts_of(inputs):
        if part.dim() == 4 and part.shape[3] in _CHANNELS and part.shape[1] not in _CHANNELS:
            return "put the channels before height and width: inputs.movedim(-1, 1)"
        if part.dim() == 4 and part.dtype == torch.uint8:
            return "give pictures as numbers in [0, 1]: inputs.float() / 255"
    return None


def shapes_of(inputs: Inputs) -> str:
    """Shapes and types, for messages.

    >>> import torch
    >>> shapes_of((torch.zeros(2, 3), torch.arange(2)))
    'shape (2, 3) and type torch.float32, shape (2,) and type torch.int64'
    """
    return ", ".join(
        f"shape {tuple(part.shape)} and type {part.dtype}" for part in parts_of(inputs)
    )


def _kind(inputs: object) -> str:
    """What was given in place of tensors."""
    if isinstance(inputs, tuple):
        return f"a tuple of {', '.join(map(_kind, inputs))}" if inputs else "an empty tuple"
    if isinstance(inputs, Tensor):
        return "a tensor" if inputs.dim() else "a tensor without axes"
    return f"a {type(inputs).__name__}"
