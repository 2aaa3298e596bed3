"""What every engine promises when something dies: nothing lost, nothing twice, nothing torn.

==============  ==========================  ==========================  =========================
                serial                      process                     ray
==============  ==========================  ==========================  =========================
worker killed   is the driver               tried again                 tried again
driver killed   a second call goes on       a second call goes on       a second call goes on
poison task     is the driver               reported after 3 + 1 tries  reported after 3 + 1 tries
takes too long  runs to its end             ended and reported          ended and reported
disk full       reported, nothing torn      reported, nothing torn      reported, nothing torn
==============  ==========================  ==========================  =========================
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coset.engines import Process, Ray, Serial
from engines.tasks import Square, Writer

WITH_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
ENGINES = {
    "serial": "Serial()",
    "process": "Process(workers=2)",
    "ray": "Ray(workers=2)",
}
TABLE = [
    "serial",
    "process",
    pytest.param("ray", marks=[WITH_RAY, pytest.mark.slow]),  # half a minute each
]


def build(name, limit=None):
    if name == "serial":
        return Serial()
    return Process(workers=2, limit=limit) if name == "process" else Ray(workers=2, limit=limit)


DRIVER = """
import sys
from pathlib import Path
from engines.tasks import Square
from coset.engines import Process, Ray, Serial

task = Square(Path(sys.argv[1]), **{settings})
for outcome in {engine}.map(task, range({count}), done=task.done):
    print(outcome.key, outcome.attempts, outcome.cause, flush=True)
"""


def drive(name, folder, count=8, **settings):
    script = DRIVER.format(engine=ENGINES[name], settings=settings, count=count)
    paths = [*sys.path, str(Path(__file__).parents[1])]
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def told_by(out):
    """What a driver told of its tasks; Ray writes lines of its own between them."""
    return [line for line in out.splitlines() if re.fullmatch(r"\d+ \d+ \w+", line)]


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def pids_of(folder):
    starts = [path.read_text() for path in folder.glob("starts-*")]
    return {int(line.split()[0]) for text in starts for line in text.splitlines()}


def assert_whole(task, count):
    """Every result is there, and right; what was being written has no name of a result."""
    for path in task.folder.glob(".result-*"):
        path.unlink()
    assert task.results() == {key: key**2 for key in range(count)}


@pytest.mark.parametrize("name", TABLE)
def test_a_killed_worker(name, tmp_path):
    task = Square(tmp_path, kills_once=(3,))
    driver = drive(name, tmp_path, kills_once=(3,))
    driver.communicate(timeout=200)
    if name == "serial":
        assert driver.returncode == -signal.SIGKILL
        driver = drive(name, tmp_path, kills_once=(3,))
        driver.communicate(timeout=200)
    assert driver.returncode == 0
    assert_whole(task, 8)
    assert task.starts(3) == 2
    assert all(task.starts(key) == 1 for key in range(8) if key != 3)


@pytest.mark.parametrize("name", TABLE)
def test_a_killed_driver(name, tmp_path):
    driver = drive(name, tmp_path, seconds=0.3)
    for _ in range(3):
        driver.stdout.readline()
    driver.kill()
    driver.communicate()
    wait_for(lambda: all(map(gone, pids_of(tmp_path))))
    task = Square(tmp_path)
    done = [key for key in range(8) if task.done(key)]
    assert 3 <= len(done) < 8
    again = drive(name, tmp_path)
    told = told_by(again.communicate(timeout=200)[0])
    assert again.returncode == 0
    assert len(told) == 8
    assert_whole(task, 8)
    assert all(task.starts(key) == 1 for key in done)


@pytest.mark.parametrize("name", TABLE)
def test_a_task_that_always_kills_its_worker(name, tmp_path):
    task = Square(tmp_path, kills=(3,))
    driver = drive(name, tmp_path, kills=(3,))
    told = told_by(driver.communicate(timeout=200)[0])
    if name == "serial":
        assert driver.returncode == -signal.SIGKILL
        assert task.results() == {0: 0, 1: 1, 2: 4}
        return
    assert told[-1] == "3 4 killed"
    assert task.starts(3) == 4
    assert task.results() == {key: key**2 for key in range(8) if key != 3}


@pytest.mark.parametrize("name", TABLE)
def test_a_task_that_takes_too_long(name, tmp_path):
    if name == "serial":
        task = Square(tmp_path, seconds=0.2)
        assert all(outcome.seconds >= 0.2 for outcome in Serial().map(task, range(3)))
        assert_whole(task, 3)
        return
    task = Square(tmp_path, sleeps=(1,))
    limit = 15.0 if name == "ray" else 1.5
    found = {outcome.key: outcome for outcome in build(name, limit).map(task, range(4))}
    assert (found[1].cause, found[1].attempts) == ("too long", 1)
    assert task.results() == {0: 0, 2: 4, 3: 9}
    wait_for(lambda: all(map(gone, pids_of(tmp_path))) or name != "process")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a file system")
@pytest.mark.parametrize("name", TABLE)
def test_a_full_disk(name, tmp_path):
    """Files of 16 kB on a disk of 64 kB: the first fit, the others fail, none is torn."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "x", tmp_path])
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        task = Writer(tmp_path, 16_000)
        outcomes = list(build(name).map(task, range(8), done=task.done))
        assert len(outcomes) == 8
        failed = [outcome for outcome in outcomes if outcome.failure]
        assert {outcome.cause for outcome in failed} == {"error"}
        assert all("No space left on device" in outcome.failure for outcome in failed)
        assert 2 <= len(failed) < 8
        assert {path.stat().st_size for path in tmp_path.iterdir()} == {16_000}
        assert len(list(tmp_path.iterdir())) == 8 - len(failed)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


NODES = """
import sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from engines.tasks import Square
from coset.engines import Ray

folder = Path(sys.argv[1])
settings = {"include_dashboard": False, "object_store_memory": 100 * 1024**2, "num_cpus": 1}
cluster = Cluster(initialize_head=True, head_node_args=settings)
second = cluster.add_node(num_cpus=1, object_store_memory=100 * 1024**2)
task = Square(folder, seconds=0.5)

def kill_when_three_are_done():
    while sum(map(task.done, range(12))) < 3:
        time.sleep(0.02)
    cluster.remove_node(second, allow_graceful=False)

threading.Thread(target=kill_when_three_are_done).start()
for outcome in Ray(address=cluster.address).map(task, range(12), done=task.done):
    print(outcome.key, outcome.attempts, outcome.cause, flush=True)
ray.shutdown()
cluster.shutdown()
"""


@WITH_RAY
@pytest.mark.slow
def test_ray_with_one_node_of_two_killed(tmp_path):
    paths = [*sys.path, str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", NODES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = told_by(done.stdout)
    assert len(told) == 12, done.stderr[-2000:]
    assert all(line.endswith("None") for line in told)
    assert_whole(Square(tmp_path), 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serial", "process"])
def test_kills_at_random_moments(name, tmp_path):
    """Driver or worker, at moments drawn from a seed; ``kills.py`` counts more."""
    from engines.kills import kill_at_random

    kills = kill_at_random(
        lambda: drive(name, tmp_path, seconds=0.05, count=30), tmp_path, 6, seed=0
    )
    assert kills == 6
    final = drive(name, tmp_path, count=30)
    final.communicate(timeout=200)
    assert final.returncode == 0
    assert_whole(Square(tmp_path), 30)
