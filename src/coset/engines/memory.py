"""Whether the kernel has killed processes for want of memory."""

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def memory_kills(counters: Path = _COUNTERS) -> int:
    """How many processes the kernel has killed for memory since it started; 0 if it does not tell.

    >>> memory_kills() >= 0
    True
    """
    try:
        lines = counters.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
