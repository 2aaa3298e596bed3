"""A worker process: hears keys, runs the task, tells outcomes, and dies with its driver."""

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Lock, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coset.engines.attempt import attempt, limit_threads
from coset.engines.outcome import Outcome, in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_HIDING = Lock()


@dataclass
class Worker:
    """The driver's view of a worker process."""

    process: SpawnProcess
    connection: "Connection[Any, Any]"

    def dismiss(self) -> None:
        """Lets it end by itself once it has nothing to do, and tidy up what libraries opened."""
        self.connection.close()

    def stop(self, *, after: float = 0.0) -> None:
        """Ends it, whatever it does; one that was dismissed has some seconds to end by itself."""
        self.process.join(after)
        self.process.kill()
        self.process.join()
        self.connection.close()


def start_worker(task: bytes) -> Worker:
    """Starts a fresh interpreter that will run a task.

    It first says that it is ready, by ``None``, or why it is not, by a text; then it answers every
    key with an :class:`Outcome`.  Unless the task is defined in the main script, that script is not
    imported again, and so needs no ``if __name__ == "__main__"``.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    if b"__main__" in task:
        process.start()
    else:
        with _hidden_main():
            process.start()
    theirs.close()
    ours.send_bytes(task)
    return Worker(process, ours)


@contextmanager
def _hidden_main() -> "Iterator[None]":
    """The main script out of sight of multiprocessing, which would import it in the worker."""
    with _HIDING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _work(connection: "Connection[Any, Any]") -> None:
    """The whole life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears it too, and ends us
    Thread(target=_die_with_driver, daemon=True).start()
    limit_threads()
    try:
        task = connection.recv()
        connection.send(None)
    except EOFError:
        return
    except Exception as error:  # the task's module cannot be imported here
        connection.send(in_one_line(error))
        return
    while True:
        try:
            key, attempts = connection.recv()
        except (EOFError, OSError):  # dismissed
            return
        _tell(connection, attempt(task, key, attempts=attempts))


def _tell(connection: "Connection[Any, Any]", outcome: Outcome) -> None:
    try:
        connection.send(outcome)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)
    except Exception as error:  # a value that cannot be pickled
        failure = f"the value cannot be sent to the driver: {in_one_line(error)}"
        connection.send(replace(outcome, value=None, failure=failure, cause="error"))


def _die_with_driver() -> None:
    """Files are whole or not there, so that there is nothing to tidy up."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)
