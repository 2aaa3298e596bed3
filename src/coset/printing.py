"""How our nouns look when printed: what they hold, not all of its numbers."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

SHORT, FEW = 4, 6
"""Tensors of one axis and lists up to these lengths are written out."""


def brief(noun: Any) -> str:
    """The ``repr`` of a dataclass that holds tensors, for a line or two on a screen.

    Fields that are empty or functions are left out.

    >>> from dataclasses import dataclass
    >>> import torch
    >>> @dataclass(frozen=True)
    ... class Draws:
    ...     stack: dict
    ...     weighting: Tensor
    ...     __repr__ = brief
    >>> Draws({"w": torch.zeros(3, 2), "b": torch.zeros(3)}, torch.zeros(3))
    Draws(stack={2 tensors, 9 numbers}, weighting=[0, 0, 0])
    """
    parts = []
    for field in fields(noun):
        value = getattr(noun, field.name)
        empty = value is None or (isinstance(value, (tuple, list, Mapping)) and not value)
        if field.repr and not empty and not _is_function(value):
            parts.append(f"{field.name}={shown(value)}")
    return f"{type(noun).__name__}({', '.join(parts)})"


def shown(value: Any) -> str:
    """A value in a few words.

    >>> shown({"a": 0.123456, "b": 2})
    '{a: 0.1235, b: 2}'
    """
    match value:
        case Tensor():
            return _tensor(value)
        case float():
            return f"{value:.4g}"
        case nn.Module():
            return type(value).__name__
        case Mapping():
            return _mapping(value)
        case tuple() | list() if type(value) in (tuple, list):
            listed = ", ".join(shown(part) for part in value[:FEW])
            rest = f", … {len(value)} in all" if len(value) > FEW else ""
            comma = "," if len(value) == 1 else ""
            return f"({listed}{comma}{rest})" if isinstance(value, tuple) else f"[{listed}{rest}]"
    return written(value)


def written(value: Any) -> str:
    """The ``repr`` of a value; its class where that of a user raises.

    >>> class Shy:
    ...     def __repr__(self):
    ...         raise RuntimeError
    >>> written(Shy()), written([1])
    ('<Shy>', '[1]')
    """
    try:
        return repr(value)
    except Exception:  # whatever a user's class may raise
        return f"<{type(value).__name__}>"


def _is_function(value: Any) -> bool:
    return callable(value) and hasattr(value, "__qualname__")  # nouns that can be called have none


def _tensor(tensor: Tensor) -> str:
    if tensor.dim() == 0 or (tensor.dim() == 1 and len(tensor) <= SHORT):
        numbers = [f"{number:.4g}" for number in tensor.detach().reshape(-1).tolist()]
        return numbers[0] if tensor.dim() == 0 else f"[{', '.join(numbers)}]"
    return f"Tensor{tuple(tensor.shape)}"


def _mapping(mapping: Mapping[Any, Any]) -> str:
    values = list(mapping.values())
    if values and all(isinstance(value, Tensor) for value in values):
        count = sum(value.numel() for value in values)
        return f"{{{several(len(values), 'tensor')}, {several(count, 'number')}}}"
    if len(values) > 1 and all(_is_plain(value) and value == values[0] for value in values):
        return f"{{{shown(values[0])} for all {len(values)}}}"
    listed = ", ".join(f"{key}: {shown(value)}" for key, value in list(mapping.items())[:FEW])
    rest = f", … {len(values)} in all" if len(values) > FEW else ""
    return f"{{{listed}{rest}}}"


def _is_plain(value: Any) -> bool:
    """Whether a value holds no tensor, which has no single truth to compare by."""
    return isinstance(value, (int, float, str))


def several(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun.

    >>> several(1, "tensor"), several(1200, "number"), several(2, "axis", "axes")
    ('1 tensor', '1,200 numbers', '2 axes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
