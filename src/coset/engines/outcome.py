"""What an engine is, and what it tells of each task."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Task: TypeAlias = Callable[[Any], Any]
Done: TypeAlias = Callable[[Any], bool]
Cause: TypeAlias = Literal["error", "killed", "memory", "too long"]


@dataclass(frozen=True)
class Outcome:
    """What became of one task.

    Attributes:
        key: The task's key.
        value: What the task returned; ``None`` if it failed or had been done before.
        failure: Why there is no value, in one line; ``None`` if the task is done.
        cause: The kind of failure: the task raised an error, its worker was killed, was killed
            for memory, or took too long.
        details: The traceback of an error.
        attempts: How often the task was started; 0 if it had been done before.
        seconds: How long the last attempt took.

    >>> Outcome(7, value=49, attempts=1).failure is None
    True
    """

    key: Any
    value: Any = None
    failure: str | None = None
    cause: Cause | None = None
    details: str = ""
    attempts: int = 0
    seconds: float = 0.0


class Engine(Protocol):
    """Runs a task once for every key."""

    def map(
        self, task: Task, keys: Iterable[Any], *, done: Done | None = None
    ) -> Iterator[Outcome]:
        """Yields one outcome a key, in order of completion.

        Args:
            task: A function of one key.  For worker processes it must be picklable: a function of
                a module, or a dataclass with ``__call__``.
            keys: What to call it with.
            done: Whether a key's result is there already; asked before every attempt.
        """
        ...


def is_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch says so with a plain ``RuntimeError``."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def in_one_line(error: BaseException) -> str:
    """The kind and words of an error.

    >>> in_one_line(KeyError("seed"))
    "KeyError: 'seed'"
    """
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
