"""Worker processes: what is killed is tried again, and nothing is lost, twice or torn."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from coset.engines import Outcome, Process, Serial
from coset.errors import CosetError
from engines.tasks import Square


def by_key(outcomes):
    return {outcome.key: outcome for outcome in outcomes}


@pytest.mark.parametrize("engine", [Serial(), Process(workers=2)])
def test_every_key_has_one_outcome(engine, tmp_path):
    outcomes = list(engine.map(Square(tmp_path), range(5)))
    assert sorted(outcome.key for outcome in outcomes) == list(range(5))
    assert all(outcome.value == outcome.key**2 for outcome in outcomes)
    assert all(outcome.attempts == 1 and outcome.failure is None for outcome in outcomes)


@pytest.mark.parametrize("engine", [Serial(), Process(workers=1)])
def test_what_is_done_is_not_run(engine, tmp_path):
    task = Square(tmp_path)
    list(Serial().map(task, [1, 2]))
    found = by_key(engine.map(task, range(4), done=task.done))
    assert found[1] == Outcome(1) == Outcome(1, attempts=0)
    assert found[3].value == 9
    assert task.starts(1) == 1


@pytest.mark.parametrize("engine", [Serial(), Process(workers=1)])
def test_an_error_is_reported_at_once_with_its_traceback(engine, tmp_path):
    found = by_key(engine.map(Square(tmp_path, fails=(1,)), range(3)))
    assert (found[1].failure, found[1].cause, found[1].attempts) == ("KeyError: 1", "error", 1)
    assert "raise KeyError(key)" in found[1].details
    assert found[0].value == 0
    assert found[2].value == 4


def test_workers_have_one_thread_and_leave_the_driver_alone(tmp_path):
    before = dict(os.environ)
    list(Process(workers=1).map(Square(tmp_path), [1]))
    pid, threads = (tmp_path / "starts-1").read_text().split()
    assert int(pid) != os.getpid()
    assert threads == "1"
    assert dict(os.environ) == before


def test_a_task_whose_worker_is_killed_once_runs_again(tmp_path):
    task = Square(tmp_path, kills_once=(1,))
    found = by_key(Process(workers=2).map(task, range(4), done=task.done))
    assert found[1].value == 1
    assert found[1].attempts == 2
    assert task.results() == {key: key**2 for key in range(4)}
    assert [task.starts(key) for key in (0, 2, 3)] == [1, 1, 1]


def test_a_task_that_always_kills_its_worker_is_reported_after_four_tries(tmp_path):
    task = Square(tmp_path, kills=(1,))
    outcomes = list(Process(workers=2).map(task, range(4)))
    assert outcomes[-1].key == 1, "the last try is alone, after all others"
    assert outcomes[-1].failure == "its worker was killed (SIGKILL)"
    assert (outcomes[-1].cause, outcomes[-1].attempts, task.starts(1)) == ("killed", 4, 4)
    assert task.results() == {0: 0, 2: 4, 3: 9}


def test_what_was_written_before_the_kill_counts(tmp_path):
    task = Square(tmp_path, kills_after=(1,))
    found = by_key(Process(workers=1).map(task, [1], done=task.done))
    assert found[1].failure is None
    assert found[1].attempts == task.starts(1) == 1


def test_a_task_that_runs_out_of_memory_is_tried_once_more_alone(tmp_path):
    task = Square(tmp_path, greedy=(0,), greedy_once=(1,))
    found = by_key(Process(workers=2).map(task, range(4)))
    assert (found[0].cause, found[0].attempts) == ("memory", 2)
    assert (found[1].value, found[1].attempts) == (1, 2)
    assert found[2].value == 4


def test_a_task_that_takes_too_long_is_ended(tmp_path):
    task = Square(tmp_path, sleeps=(1,))
    found = by_key(Process(workers=1, limit=1.5).map(task, range(3)))
    assert (found[1].cause, found[1].attempts) == ("too long", 1)
    assert found[1].failure == "took longer than 1.5 seconds"
    assert task.results() == {0: 0, 2: 4}


def test_nothing_runs_on_when_nobody_listens(tmp_path):
    outcomes = Process(workers=2).map(Square(tmp_path, sleeps=(1, 2)), [0, 1, 2])
    assert next(outcomes).key == 0
    pids = [int(path.read_text().split()[0]) for path in tmp_path.glob("starts-*")]
    outcomes.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


DRIVER = """
import sys
from pathlib import Path
from engines.tasks import Square
from coset.engines import Process

task = Square(Path(sys.argv[1]), seconds=0.2)
for outcome in Process(workers=2).map(task, range(12), done=task.done):
    print(outcome.key, outcome.attempts, flush=True)
"""


def start_driver(script, folder):
    paths = [*sys.path, str(Path(__file__).parents[1])]
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_driver_takes_its_workers_along_and_can_go_on(tmp_path):
    driver = start_driver(DRIVER, tmp_path)
    for _ in range(4):
        driver.stdout.readline()
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    task = Square(tmp_path)
    starts = "".join(path.read_text() for path in tmp_path.glob("starts-*"))
    pids = {line.split()[0] for line in starts.splitlines()}
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "workers outlive their driver"
        time.sleep(0.05)
    done = {key for key in range(12) if task.done(key)}
    assert 4 <= len(done) < 12
    for path in tmp_path.glob(".result-*"):
        path.unlink()  # a write that was cut short: never under the name of a result
    again = start_driver(DRIVER, tmp_path)
    out, err = again.communicate(timeout=120)
    assert (again.returncode, err) == (0, "")
    assert len(out.splitlines()) == 12
    assert task.results() == {key: key**2 for key in range(12)}
    assert all(task.starts(key) == 1 for key in done)


IN_MAIN = """
import sys
from coset.engines import Process

def double(key):
    return 2 * key

if __name__ == "__main__":
    print([outcome.value for outcome in Process(workers=1).map(double, [3])])
"""

WITHOUT_A_GUARD = """
import sys
from coset.engines import Process

print([outcome.value for outcome in Process(workers=1).map(abs, [-3])])
"""

WITH_LOCKS = """
import multiprocessing
from coset.engines import Process

kept = []

def lock(key):
    kept.append(multiprocessing.RLock())  # as tqdm does
    return key

if __name__ == "__main__":
    print([outcome.value for outcome in Process(workers=1).map(lock, [3])])
"""


@pytest.mark.parametrize(
    ("script", "said"), [(IN_MAIN, "[6]"), (WITHOUT_A_GUARD, "[3]"), (WITH_LOCKS, "[3]")]
)
def test_scripts_may_define_tasks_and_need_no_guard_for_those_of_modules(script, said, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == (said, "")


def test_a_script_that_starts_itself_again_is_told_of(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(IN_MAIN.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=240)
    assert 'keep its calls under if __name__ == "__main__"' in done.stderr


def test_workers_killed_at_rest_or_at_start_cost_no_attempt(tmp_path):
    task = Square(tmp_path, seconds=0.1)
    from multiprocessing import active_children

    def kill_the_first():
        while not (children := active_children()):
            time.sleep(0.01)
        children[0].kill()

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    found = by_key(Process(workers=1).map(task, range(2)))
    thread.join()
    assert {key: outcome.value for key, outcome in found.items()} == {0: 0, 1: 1}
    assert found[0].attempts == 1


def test_tasks_that_cannot_travel_are_refused():
    with pytest.raises(CosetError, match="cannot travel to a worker process"):
        Process().map(lambda key: key, [1])
    with pytest.raises(CosetError, match="workers=0"):
        Process(workers=0)
    with pytest.raises(CosetError, match="limit=-1"):
        Process(limit=-1)


def test_a_value_that_cannot_travel_is_an_error():
    (outcome,) = Process(workers=1).map(give_a_lambda, [1])
    assert "cannot be sent to the driver" in outcome.failure
    assert outcome.cause == "error"


def give_a_lambda(key):
    return lambda: key


def test_importing_engines_imports_nothing_slow():
    script = "import sys, coset.engines; print('torch' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.split() == ["False", "False"]
