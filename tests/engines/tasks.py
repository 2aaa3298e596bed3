"""Tasks for the engines: each writes its own result whole or not at all, and notes its runs."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Square:
    """Writes the square of its key, and a line in a log for every start."""

    folder: Path
    seconds: float = 0.0
    kills: tuple[int, ...] = ()
    kills_once: tuple[int, ...] = ()
    kills_after: tuple[int, ...] = ()
    fails: tuple[int, ...] = ()
    greedy: tuple[int, ...] = ()
    greedy_once: tuple[int, ...] = ()
    sleeps: tuple[int, ...] = ()

    def __call__(self, key):
        before = self.starts(key)
        with (self.folder / f"starts-{key}").open("a") as file:
            file.write(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')}\n")
        time.sleep(self.seconds)
        if key in self.kills or (key in self.kills_once and not before):
            os.kill(os.getpid(), signal.SIGKILL)
        if key in self.fails:
            raise KeyError(key)
        if key in self.greedy or (key in self.greedy_once and not before):
            raise MemoryError
        if key in self.sleeps:
            time.sleep(600)
        temporary = self.folder / f".result-{key}.{os.getpid()}"  # coset.store would import torch
        temporary.write_text(str(key * key))
        os.replace(temporary, self.folder / f"result-{key}")
        if key in self.kills_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return key * key

    def done(self, key):
        return (self.folder / f"result-{key}").exists()

    def starts(self, key):
        path = self.folder / f"starts-{key}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def results(self):
        found = {}
        for path in self.folder.iterdir():
            assert not path.name.startswith("."), "an unfinished file"
            if path.name.startswith("result-"):
                found[int(path.name[7:])] = int(path.read_text())
        return found


@dataclass(frozen=True)
class Writer:
    """Writes a file of some bytes, whole or not at all."""

    folder: Path
    size: int

    def __call__(self, key):
        from coset.files import write_bytes

        write_bytes(self.folder / f"{key}.bin", bytes(self.size))

    def done(self, key):
        return (self.folder / f"{key}.bin").exists()
