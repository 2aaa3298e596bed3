"""How the factories read their arguments: sizes, rates, and names from literal tables."""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from torch import nn

from coset.errors import CosetError

Activation: TypeAlias = Callable[[], nn.Module]
"""Builds one activation, as ``nn.ReLU`` does."""

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}

Value = TypeVar("Value")


def choose(what: str, choice: str | Value, table: Mapping[str, Value]) -> Value:
    """Return ``choice`` itself, or the row of ``table`` it names.

    >>> choose("activation", "relu", ACTIVATIONS)
    <class 'torch.nn.modules.activation.ReLU'>
    """
    if not isinstance(choice, str):
        return choice
    if choice not in table:
        raise CosetError(
            f"got {what} {choice!r}",
            f"needed one of {', '.join(table)}",
            "choose one of these names, or pass your own value instead of a name",
        )
    return table[choice]


def require_sizes(**sizes: object) -> None:
    """Refuse sizes that are not whole numbers of at least one; lists have each checked.

    >>> require_sizes(classes=0)
    Traceback (most recent call last):
    coset.errors.CosetError: got classes=0; needed whole numbers of at least 1; change classes
    """
    for name, size in sizes.items():
        for entry in size if isinstance(size, list | tuple) else (size,):
            if not isinstance(entry, int) or entry < 1:
                raise CosetError(
                    f"got {name}={size!r}",
                    "needed whole numbers of at least 1",
                    f"change {name}",
                )


def dropout_of(rate: float, layer: type[nn.Dropout] | type[nn.Dropout2d] = nn.Dropout) -> nn.Module:
    """Return the dropout of this rate; at rate 0 the identity, which draws no random number.

    >>> dropout_of(0.0)
    Identity()
    >>> dropout_of(0.5)
    Dropout(p=0.5, inplace=False)
    """
    if not 0.0 <= rate < 1.0:
        raise CosetError(
            f"got dropout={rate!r}", "needed a rate of at least 0 and below 1", "change dropout"
        )
    return layer(rate) if rate else nn.Identity()
