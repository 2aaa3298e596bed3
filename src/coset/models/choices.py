"""How the factories read their arguments: sizes, rates, and names from literal tables."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from torch import nn

from coset.errors import CosetError, require_counts, require_kind

Activation: TypeAlias = Callable[[], nn.Module]
"""Builds one activation, as ``nn.ReLU`` does."""

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "leaky_relu": partial(nn.LeakyReLU, 0.2),
}

Value = TypeVar("Value")


def choose(what: str, choice: str | Value, table: Mapping[str, Value]) -> Value:
    """Return ``choice`` itself, or the row of ``table`` it names.

    >>> choose("activation", "relu", ACTIVATIONS)
    <class 'torch.nn.modules.activation.ReLU'>
    """
    if isinstance(choice, str) and choice in table:
        return table[choice]
    if isinstance(choice, str) or not _is_like(choice, next(iter(table.values()))):
        built = isinstance(choice, nn.Module)
        raise CosetError(
            f"got {what} {choice!r}",
            f"needed one of {', '.join(table)}",
            f"write {type(choice).__name__} without brackets: it is built once for each layer"
            if built
            else "choose one of these names, or pass your own value instead of a name",
        )
    return choice


def _is_like(choice: object, row: object) -> bool:
    """Whether a value may stand for a row of a table: both build something, or are of a type."""
    if callable(row):
        return callable(choice) and not isinstance(choice, nn.Module)
    return isinstance(choice, type(row))


def require_lists(**lists: object) -> None:
    """Refuse what is no list of whole numbers of at least one.

    >>> require_lists(hidden=128)
    Traceback (most recent call last):
    coset.errors.CosetError: got hidden=128; needed a list of whole numbers; such as hidden=(16, 16)
    """
    for name, sizes in lists.items():
        if not isinstance(sizes, Sequence) or isinstance(sizes, str):
            raise CosetError(
                f"got {name}={sizes!r}",
                "needed a list of whole numbers",
                f"such as {name}=(16, 16)",
            )
        for size in sizes:
            require_counts(**{name: size})


def require_builders(**builders: object) -> None:
    """Refuse what cannot be called; the name of a function is none.

    >>> require_builders(shortcut="padding")
    Traceback (most recent call last):
    coset.errors.CosetError: got shortcut='padding'; needed a function; pass itself, not its name
    """
    for name, build in builders.items():
        if not callable(build):
            raise CosetError(
                f"got {name}={build!r}", "needed a function", "pass itself, not its name"
            )


def dropout_of(rate: float, layer: type[nn.Dropout] | type[nn.Dropout2d] = nn.Dropout) -> nn.Module:
    """Return the dropout of this rate; at rate 0 the identity, which draws no random number.

    >>> dropout_of(0.0)
    Identity()
    >>> dropout_of(0.5)
    Dropout(p=0.5, inplace=False)
    """
    require_kind(float, dropout=rate)
    if not 0.0 <= rate < 1.0:
        raise CosetError(
            f"got dropout={rate!r}", "needed a rate of at least 0 and below 1", "change dropout"
        )
    return layer(rate) if rate else nn.Identity()
