"""The engine for more than one machine: core tasks of Ray, with our own rules for what is lost."""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from coset.engines.attempt import attempt
from coset.engines.jobs import Job, Jobs
from coset.engines.outcome import Cause, Done, Outcome, Task
from coset.engines.process import pickled, processors, require_limit
from coset.errors import CosetError, require_counts

_OBJECTS = 200 * 1024**2
"""Bytes of memory for objects that workers share; tasks write files, so that little is needed."""


@dataclass(frozen=True)
class Ray:
    """Runs tasks on a Ray cluster, one processor each; needs the extra ``ray``.

    What is killed, with its worker or with its whole machine, is tried again as by
    :class:`Process`.  On several machines the folder that tasks write in must be shared.

    Attributes:
        address: Of a cluster that runs already, such as ``"auto"``; ``None``: a private one on
            this machine is started, which takes about ten seconds, and stopped.
        workers: Processors of a private cluster; ``None``: as many as there are for us.
        limit: Seconds after which a task is ended and reported; the start of a worker counts.
    """

    address: str | None = None
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
        pickled(task)  # refuses what cannot travel
        return self._outcomes(_imported(), task, list(keys), done or (lambda _: False))

    def _outcomes(self, ray: Any, task: Task, keys: list[Any], done: Done) -> Iterator[Outcome]:
        yield from (Outcome(key) for key in keys if done(key))
        jobs = Jobs.of(key for key in keys if not done(key))
        if jobs:
            with self._cluster(ray):
                yield from _Flight(ray, task, self.limit, done).outcomes(jobs)

    @contextmanager
    def _cluster(self, ray: Any) -> Iterator[None]:
        """A cluster for as long as it is needed; one that this process has joined stays."""
        if ray.is_initialized():
            yield
            return
        private = {
            "num_cpus": self.workers or processors(),
            "include_dashboard": False,
            "object_store_memory": _OBJECTS,
        }
        try:
            with _environment(
                RAY_USAGE_STATS_ENABLED="0",
                RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
                PYTHONPATH=os.pathsep.join(sys.path),  # workers find what we find
            ):
                ray.init(
                    address=self.address or "local",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **({} if self.address else private),
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CosetError(
                f"got no Ray cluster at {self.address or 'this machine'} ({error})",
                "needed one that runs",
                "start it with ray start --head, or leave the address out",
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Flight:
    """Tasks that are under way on a cluster."""

    def __init__(self, ray: Any, task: Task, limit: float | None, done: Done) -> None:
        self.ray, self.limit, self.done = ray, limit, done
        run = ray.remote(num_cpus=1, max_retries=0)(_run)  # we count the attempts
        self.start = partial(run.remote, ray.put(task))
        self.flying: dict[Any, tuple[Job, float]] = {}

    def outcomes(self, jobs: Jobs) -> Iterator[Outcome]:
        try:
            while jobs or self.flying:
                self._submit(jobs)
                ready, _ = self.ray.wait(list(self.flying), timeout=self._patience())
                for reference in ready:
                    yield from self._hear(reference, jobs)
                yield from self._end_the_late()
        finally:
            for reference in self.flying:
                self.ray.cancel(reference, force=True)

    def _submit(self, jobs: Jobs) -> None:
        """As many as there are processors, so that the time of a task is not spent in a queue."""
        places = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        while len(self.flying) < places and (job := jobs.next(busy=bool(self.flying))):
            tried = job.tried()
            self.flying[self.start(job.key, tried.attempts)] = (tried, time.monotonic())
            if job.alone:
                return

    def _patience(self) -> float:
        """Seconds to wait: machines may come and go."""
        if self.limit is None:
            return 10.0
        first = min(since for _, since in self.flying.values())
        return min(10.0, max(0.0, first + self.limit - time.monotonic()))

    def _hear(self, reference: Any, jobs: Jobs) -> Iterator[Outcome]:
        job, since = self.flying.pop(reference)
        outcome = Outcome(job.key, attempts=job.attempts, seconds=time.monotonic() - since)
        errors = self.ray.exceptions
        cause: Cause
        try:
            told = self.ray.get(reference)
            if told.cause == "memory":
                told = jobs.lost(job, told)
            if told:
                yield told
            return
        except errors.OutOfMemoryError:
            cause, failure = "memory", "its worker was killed for memory"
        except errors.RayTaskError as error:  # its value cannot be sent, or its module not loaded
            told = " ".join(str(error.cause or error).split())
            cause, failure = "error", f"{told:.300}"
        except errors.RayError as error:
            cause, failure = "killed", f"its worker was killed ({type(error).__name__})"
        yield from self._lose(job, jobs, outcome, cause, failure)

    def _lose(
        self, job: Job, jobs: Jobs, outcome: Outcome, cause: Cause, failure: str
    ) -> Iterator[Outcome]:
        failed = Outcome(job.key, None, failure, cause, "", outcome.attempts, outcome.seconds)
        if self.done(job.key):  # written, then killed
            yield outcome
        elif cause == "error":
            yield failed
        elif told := jobs.lost(job, failed):
            yield told

    def _end_the_late(self) -> Iterator[Outcome]:
        if self.limit is None:
            return
        now = time.monotonic()
        for reference, (job, since) in list(self.flying.items()):
            if now - since < self.limit:
                continue
            del self.flying[reference]
            self.ray.cancel(reference, force=True)
            outcome = Outcome(job.key, attempts=job.attempts, seconds=now - since)
            if self.done(job.key):
                yield outcome
            else:
                failure = f"took longer than {self.limit:g} seconds"
                yield Outcome(job.key, None, failure, "too long", "", job.attempts, now - since)


def _run(task: Task, key: Any, attempts: int) -> Outcome:
    return attempt(task, key, attempts=attempts)


def _imported() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise CosetError(
            "got the engine Ray without the package ray",
            "needed the extra ray",
            "pip install 'coset[ray]', or use Process()",
        ) from error
    return ray
