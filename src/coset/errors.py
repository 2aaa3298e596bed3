"""The one exception of the library, and the checks of settings that raise it.

A message has three parts: what we got, what we needed, what to do next.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from inspect import Parameter, signature
from numbers import Integral
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin

_NAMES = {
    float: "a number",
    bool: "True or False",
    str: "a text",
    Mapping: "a dictionary",
    Collection: "a list",
    type(None): "None",
}


class CosetError(ValueError):
    """Raised for every input the library refuses.

    >>> str(CosetError("got 3 labels", "needed 4, one for each input", "check the targets"))
    'got 3 labels; needed 4, one for each input; check the targets'
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("; ".join(parts))


def require_counts(least: int = 1, /, **counts: object) -> None:
    """Refuses settings, given by their names, that are no whole numbers of at least ``least``.

    >>> require_counts(members=2.5)
    Traceback (most recent call last):
    coset.errors.CosetError: got members=2.5; needed a whole number, at least 1
    """
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or int(count) < least:
            raise CosetError(f"got {name}={count!r}", f"needed a whole number, at least {least}")


def require_kinds(settings: Any) -> None:
    """Refuses a dataclass with a value of another kind than its field is annotated with.

    Whole numbers are left to :func:`require_counts`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Walk:
    ...     pace: float = 1.0
    >>> require_kinds(Walk(pace="slow"))
    Traceback (most recent call last):
    coset.errors.CosetError: got pace='slow'; needed a number
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(field.type, str) or _is_any(field.type, value):
            continue
        example = "" if field.default_factory is MISSING else type(field.default_factory()).__name__
        require_kind(field.type, example, **{field.name: value})


def require_kind(kind: Any, example: str = "", /, **given: object) -> None:
    """Refuses values, given by their names, that are not of a kind.

    Args:
        kind: A class, a protocol, or a union of them.
        example: The name of a class that is of the kind, for the advice.
        given: The values.

    >>> require_kind(CosetError, why="no")
    Traceback (most recent call last):
    coset.errors.CosetError: got why='no'; needed CosetError; write why=CosetError(…)
    """
    kinds = _kinds(kind)
    for name, value in given.items():
        if _is_any(kind, value):
            continue
        got, ours = f"got {name}={told(value)}", [each for each in kinds if _is_ours(each)]
        call = f"{example}()" if example else f"{ours[0].__name__}(…)" if ours else ""
        only = len(ours) == 1 and not _is_protocol(ours[0])
        if isinstance(value, type):
            got = f"got the class {value.__name__} as the {name}"
            if any(_belongs(value, each) for each in kinds):
                call, only = f"{value.__name__}()", True
        advice = [f"{'write' if only else 'for example'} {name}={call}"] if call else []
        raise CosetError(got, f"needed {' or '.join(map(_called, kinds))}", *advice)


def names_like(name: str, known: Iterable[str]) -> str:
    """The names closest to one that there is not, or the first few.

    >>> names_like("haed.*", ["body.weight", "body.bias", "head.weight"])
    'head.weight'
    """
    every = list(known)
    close = get_close_matches(name, every, n=3, cutoff=0.4)
    return ", ".join(close or every[:8]) + (" …" if not close and len(every) > 8 else "")


def told(value: object) -> str:
    """The beginning of a value, in one line, for messages.

    >>> told([1, 2])
    '[1, 2]'
    """
    try:
        text = repr(value)
    except Exception:  # whatever a user's class may raise
        text = f"<{type(value).__name__}>"
    return f"{' '.join(text.split()):.80}"


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_any(kind: Any, value: object) -> bool:
    kinds = _kinds(kind)
    if int in kinds:
        return True
    return not isinstance(value, type) and any(_belongs(value, each) for each in kinds)


def _belongs(value: object, kind: Any) -> bool:
    """Whether a value, or a class by itself, is of a kind; numbers of any library are numbers."""
    if kind in (float, bool):
        return hasattr(value, f"__{kind.__name__}__")
    if get_origin(kind) is Callable:
        return callable(value) and _takes(value, len(get_args(kind)[0]))
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if _is_protocol(kind):
        members = [name for name in vars(kind) if name[0] != "_" or name == "__call__"]
        return set(members) <= set(dir(value)) and _is_called_like(value, kind, members)
    own = get_origin(kind) or kind
    own = (tuple, list) if own is tuple else own
    return issubclass(value, own) if isinstance(value, type) else isinstance(value, own)


def _is_called_like(value: Any, protocol: Any, members: list[str]) -> bool:
    if "__call__" not in members or isinstance(value, type):
        return True
    arguments = list(signature(protocol.__call__).parameters.values())[1:]
    named = [each.name for each in arguments if each.kind is Parameter.KEYWORD_ONLY]
    return _takes(value, len(arguments) - len(named), *named)


def _takes(function: Callable[..., Any], count: int, *named: str) -> bool:
    """Whether a function can be called with so many arguments and those named."""
    try:
        signature(function).bind(*range(count), **dict.fromkeys(named))
    except TypeError:
        return False
    except ValueError:  # some functions written in C do not tell
        return True
    return True


def _is_protocol(kind: Any) -> bool:
    return Protocol in getattr(kind, "__bases__", ())


def _is_ours(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).startswith("coset.")


def _called(kind: Any) -> str:
    if get_origin(kind) is Callable:
        return f"a function of {len(get_args(kind)[0])} arguments"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    found: str = _NAMES.get(kind) or (get_origin(kind) or kind).__name__
    return found
