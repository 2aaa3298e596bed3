"""The engine without workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coset.engines.attempt import attempt
from coset.engines.outcome import Done, Outcome, Task


@dataclass(frozen=True)
class Serial:
    """Runs one task after the other in this process.

    A task that kills its process ends everything; what was written stays, and a second call goes on
    from there.

    >>> [outcome.value for outcome in Serial().map(abs, [-1, 2])]
    [1, 2]
    """

    def map(
        self, task: Task, keys: Iterable[Any], *, done: Done | None = None
    ) -> Iterator[Outcome]:
        """Yields one outcome a key, in the order of the keys."""
        for key in keys:
            if done is not None and done(key):
                yield Outcome(key)
            else:
                yield attempt(task, key)
