"""Shared by the benchmarks: medians of repeats taken in turn, one line a case, peak memory."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch


def medians(
    contestants: Mapping[str, Callable[[], object]], *, repeats: int = 5, warmups: int = 1
) -> dict[str, float]:
    """Median seconds of each, taken in turn so that a busy moment hits all of them alike.

    One that takes more than ten times as long as the fastest is not repeated: on a busy machine
    threads that wait for each other can take minutes.
    """
    for _ in range(warmups):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        fastest = min((taken[0] for taken in seconds.values() if taken), default=float("inf"))
        for name, run in contestants.items():
            if seconds[name] and seconds[name][0] > 10 * fastest:
                continue
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def with_threads(count: int, run: Callable[[], object]) -> Callable[[], None]:
    """The same call with another number of intra-operation threads."""

    def threaded() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            run()
        finally:
            torch.set_num_threads(before)

    return threaded


def peak_memory_of(run: Callable[[], object]) -> float:
    """Peak resident mebibytes of the process during a call (since its beginning if unknown)."""
    high_water = Path("/proc/self/clear_refs")
    if high_water.exists():
        high_water.write_text("5")  # Linux: forget the peak so far
    run()
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if sys.platform == "darwin" else peak / 1024


def print_line(case: str, ours: float, other: float, *, wanted: float | None = None) -> None:
    """One line: what, ours, the other, how many times faster we are."""
    goal = "" if wanted is None else f"  wanted {wanted:g}x"
    print(
        f"{case:<44} ours {ours:9.4f} s   other {other:9.4f} s   ratio {other / ours:5.2f}x{goal}"
    )


def chosen(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The cases named on the command line, or all."""
    return [name for name in names if not arguments or name in arguments]
