"""Kills drivers and workers at random moments.

Run as a script it counts many of them: ``python tests/engines/kills.py 40``.
"""

import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path


def children_of(pid):
    """All processes below one, however deep."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children_of(child)]
    return found


def kill_at_random(start, folder, count, *, seed):
    """Kills the driver or one of its workers, until it has done so ``count`` times.

    Drivers that were killed or have ended are started again, after their results are taken away if
    all were there.
    """
    chance = random.Random(seed)
    kills = 0
    while kills < count:
        driver = start()
        while kills < count and driver.poll() is None:
            time.sleep(chance.uniform(0.0, 1.0))
            victims = [pid for pid in children_of(driver.pid) if "python" in name_of(pid)]
            victim = chance.choice([driver.pid, *victims])
            if driver.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    kills += 1
            if victim == driver.pid:
                break
        if driver.poll() is None:
            driver.kill()
        driver.communicate()
        torn = [p for p in folder.glob("result-*") if int(p.read_text()) != int(p.name[7:]) ** 2]
        assert not torn, "a result is torn"
        if len(list(folder.glob("result-*"))) == 30:
            for path in folder.iterdir():
                path.unlink()
    return kills


def name_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    return ""


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from engines.tasks import Square
    from engines.test_engine_table import assert_whole, drive

    total = int(sys.argv[1])
    for name in sys.argv[2:] or ["serial", "process", "ray"]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            count = -(-total // 3)
            start = partial(drive, name, folder, seconds=0.3, count=30)
            kills = kill_at_random(start, folder, count, seed=1)
            final = drive(name, folder, count=30)
            final.communicate()
            assert_whole(Square(folder), 30)
            print(f"{name}: {kills} kills, 30 of 30 results, none torn", flush=True)
