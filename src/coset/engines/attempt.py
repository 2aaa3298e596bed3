"""One attempt at a task, wherever it runs: with one thread, its errors as an outcome."""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coset.engines.outcome import Outcome, Task, in_one_line, is_memory

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def attempt(task: Task, key: Any, *, attempts: int = 1) -> Outcome:
    """Runs a task with one thread; an error it raises becomes a failed outcome."""
    start = time.monotonic()
    try:
        with one_thread():
            value = task(key)
    except Exception as error:  # whatever it is belongs to this task alone
        return Outcome(
            key,
            failure=in_one_line(error),
            cause="memory" if is_memory(error) else "error",
            details=traceback.format_exc(),
            attempts=attempts,
            seconds=time.monotonic() - start,
        )
    return Outcome(key, value=value, attempts=attempts, seconds=time.monotonic() - start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch with one thread, if it is loaded, so that all engines add in the same order."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def limit_threads() -> None:
    """One thread for the numerical libraries that this process has not loaded yet."""
    for name in _THREADS:
        os.environ[name] = "1"
