"""The default engine: worker processes of our own, that may be killed one by one."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from coset.engines.jobs import TRIES, Job, Jobs
from coset.engines.memory import memory_kills
from coset.engines.outcome import Cause, Done, Outcome, Task, in_one_line
from coset.engines.worker import Worker, start_worker
from coset.errors import CosetError, require_counts

_GRACE = 5.0  # seconds in which an idle worker ends by itself


@dataclass(frozen=True)
class Process:
    """Runs tasks in spawned worker processes with one thread each.

    A task whose worker is killed is tried three times, then once alone, then reported; one that
    runs out of memory is tried once more alone.  An error that a task raises is reported at once,
    for a pure function would raise it again.

    Attributes:
        workers: How many; ``None``: as many as there are processors for us.
        limit: Seconds after which a task is ended and reported; ``None``: no limit.

    >>> sorted(outcome.value for outcome in Process(workers=1).map(abs, [-1, 2]))
    [1, 2]
    """

    workers: int | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            require_counts(workers=self.workers)
        require_limit(self.limit)

    def map(
        self, task: Task, keys: Iterable[Any], *, done: Done | None = None
    ) -> Iterator[Outcome]:
        """Yields one outcome a key, in order of completion."""
        return self._outcomes(pickled(task), list(keys), done or _nothing_done)

    def _outcomes(self, task: bytes, keys: list[Any], done: Done) -> Iterator[Outcome]:
        yield from (Outcome(key) for key in keys if done(key))
        jobs = Jobs.of(key for key in keys if not done(key))
        crew = _Crew(task, min(self.workers or processors(), len(jobs.waiting)), self.limit, done)
        try:
            yield from crew.outcomes(jobs)
        finally:
            crew.stop()


@dataclass(eq=False)
class _Place:
    """One worker and what it is doing; ``job`` is ``None`` while it starts or waits."""

    worker: Worker
    memory_kills: int
    ready: bool = False
    job: Job | None = None
    since: float = 0.0


@dataclass
class _Crew:
    """The workers."""

    task: bytes
    size: int
    limit: float | None
    done: Done
    places: list[_Place] = field(default_factory=list)
    stillborn: int = 0

    def outcomes(self, jobs: Jobs) -> Iterator[Outcome]:
        while jobs or self._busy():
            self._assign(jobs)
            for place in self._wait():
                yield from self._hear(place, jobs)

    def stop(self) -> None:
        idle = [place for place in self.places if place.ready and place.job is None]
        for place in idle:
            place.worker.dismiss()
        for place in self.places:
            place.worker.stop(after=_GRACE if place in idle else 0.0)
        self.places.clear()

    def _busy(self) -> list[_Place]:
        return [place for place in self.places if place.job is not None]

    def _assign(self, jobs: Jobs) -> None:
        """Gives jobs to workers that are free."""
        if jobs.only_alone and not self._busy() and self.size > 1:
            self.stop()  # idle workers hold memory as well
            self.size = 1
        left = len(jobs.waiting) + len(jobs.alone)
        for _ in range(min(self.size - len(self.places), left)):
            self.places.append(_Place(start_worker(self.task), memory_kills()))
        for place in self.places:
            if place.ready and place.job is None and (job := jobs.next(busy=bool(self._busy()))):
                self._give(place, job, jobs)

    def _give(self, place: _Place, job: Job, jobs: Jobs) -> None:
        place.since = time.monotonic()
        try:
            place.worker.connection.send((job.key, job.attempts + 1))
            place.job = job.tried()
        except OSError:  # killed while it was idle
            jobs.back(job)

    def _wait(self) -> list[_Place]:
        """The workers that have something to say, have died or are out of time."""
        if not self.places:
            return []
        seconds = None
        if self.limit is not None and (busy := self._busy()):
            seconds = max(0.0, min(p.since for p in busy) + self.limit - time.monotonic())
        signs: list[Any] = [place.worker.connection for place in self.places]
        signs += [place.worker.process.sentinel for place in self.places]
        seen = set(map(id, wait(signs, seconds)))
        count = len(self.places)
        return [
            place
            for place, *own in zip(list(self.places), signs[:count], signs[count:], strict=True)
            if any(id(each) in seen for each in own) or self._is_late(place)
        ]

    def _is_late(self, place: _Place) -> bool:
        late = self.limit is not None and time.monotonic() - place.since >= self.limit
        return place.job is not None and late

    def _hear(self, place: _Place, jobs: Jobs) -> Iterator[Outcome]:
        try:
            if place.worker.connection.poll():
                yield from self._take(place, jobs, place.worker.connection.recv())
                return
        except (EOFError, OSError):  # killed, perhaps while it spoke
            pass
        late = self._is_late(place) and place.worker.process.is_alive()
        place.worker.stop()
        self.places.remove(place)
        if not place.ready:
            self._count_stillborn(place)
        if place.job is not None:
            yield from self._lose(place, place.job, jobs, late=late)

    def _lose(self, place: _Place, job: Job, jobs: Jobs, *, late: bool) -> Iterator[Outcome]:
        """What becomes of the job of a worker that is dead."""
        outcome = Outcome(job.key, attempts=job.attempts, seconds=time.monotonic() - place.since)
        if self.done(job.key):  # written, then killed
            yield outcome
        elif late:
            failure = f"took longer than {self.limit:g} seconds"
            yield replace(outcome, failure=failure, cause="too long")
        else:
            cause: Cause = "memory" if memory_kills() > place.memory_kills else "killed"
            failure = f"its worker was killed ({told_exit(place.worker.process.exitcode)})"
            if told := jobs.lost(job, replace(outcome, failure=failure, cause=cause)):
                yield told

    def _take(self, place: _Place, jobs: Jobs, message: Any) -> Iterator[Outcome]:
        if not place.ready:
            if message is not None:
                raise CosetError(
                    f"got a task that a worker process cannot load ({message})",
                    "needed a function of a module that can be imported",
                )
            place.ready, self.stillborn = True, 0
            return
        job, place.job = place.job, None
        assert job is not None
        told = jobs.lost(job, message) if message.cause == "memory" else message
        if told:
            yield told

    def _count_stillborn(self, place: _Place) -> None:
        self.stillborn += 1
        if self.stillborn > TRIES:
            raise CosetError(
                f"got worker processes that ended "
                f"({told_exit(place.worker.process.exitcode)}) before their first task",
                "needed an interpreter that can start another",
                'if a script defines the task, keep its calls under if __name__ == "__main__"',
            )


def pickled(task: Task) -> bytes:
    """A task as it travels to workers."""
    try:
        return bytes(ForkingPickler.dumps(task))
    except Exception as error:
        raise CosetError(
            f"got a task that cannot travel to a worker process ({in_one_line(error)})",
            "needed a function of a module, or a dataclass with __call__",
            "or use Serial()",
        ) from error


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def told_exit(code: int | None) -> str:
    """How a process ended.

    >>> told_exit(-9), told_exit(3)
    ('SIGKILL', 'exit code 3')
    """
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def require_limit(limit: float | None) -> None:
    """Refuses a limit that is no positive number of seconds."""
    if limit is not None and not (isinstance(limit, int | float) and limit > 0):
        raise CosetError(f"got limit={limit!r}", "needed a positive number of seconds, or None")


def _nothing_done(key: Any) -> bool:
    del key
    return False
