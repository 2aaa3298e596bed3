"""What an engine still has to do, and when it gives up: the same rules for all engines."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from coset.engines.outcome import Outcome

TRIES = 3
"""Attempts beside other tasks; one more follows alone."""


@dataclass(frozen=True)
class Job:
    """A key that has no outcome yet."""

    key: Any
    attempts: int = 0
    alone: bool = False

    def tried(self) -> "Job":
        """The job in its next attempt."""
        return replace(self, attempts=self.attempts + 1)


@dataclass
class Jobs:
    """Jobs that wait for a worker, and those that will run when no other does.

    >>> jobs = Jobs.of("ab")
    >>> jobs.next(busy=False).key, jobs.next(busy=True).key, jobs.next(busy=True)
    ('a', 'b', None)
    >>> job = Job("b", attempts=3)
    >>> jobs.lost(job, Outcome("b", cause="killed")), jobs.next(busy=True)
    (None, None)
    >>> jobs.next(busy=False)
    Job(key='b', attempts=3, alone=True)
    """

    waiting: deque[Job]
    alone: deque[Job] = field(default_factory=deque)

    @staticmethod
    def of(keys: Iterable[Any]) -> "Jobs":
        """One job a key."""
        return Jobs(deque(map(Job, keys)))

    def __bool__(self) -> bool:
        return bool(self.waiting or self.alone)

    @property
    def only_alone(self) -> bool:
        """Whether nothing is left that may run beside others."""
        return not self.waiting and bool(self.alone)

    def next(self, *, busy: bool) -> Job | None:
        """A job for a worker that is free, if there is one; ``busy``: others are at work."""
        if self.waiting:
            return self.waiting.popleft()
        if self.alone and not busy:
            return replace(self.alone.popleft(), alone=True)
        return None

    def back(self, job: Job) -> None:
        """Takes back a job that was not tried."""
        (self.alone if job.alone else self.waiting).appendleft(job)

    def lost(self, job: Job, outcome: Outcome) -> Outcome | None:
        """Puts back a job whose worker was killed, or gives the outcome to report."""
        if job.alone:
            return outcome
        if outcome.cause == "memory" or job.attempts >= TRIES:
            self.alone.append(job)
        else:
            self.waiting.append(job)
        return None
