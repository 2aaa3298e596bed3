"""Locks of writers; what is written whole is tested with :mod:`coset.store`."""

import subprocess
import sys

import pytest

from coset.errors import CosetError
from coset.files import sole_writer

HOLDER = """
import sys, time
from coset.files import sole_writer
with sole_writer(sys.argv[1]) as alone:
    print(alone, flush=True)
    time.sleep(600)
"""


def test_one_process_at_a_time_and_a_killed_one_holds_nothing(tmp_path):
    path = tmp_path / "lock"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "True\n"
    with sole_writer(path) as alone:
        assert alone is False
    assert path.exists(), "it is the other's"
    other.kill()
    other.communicate()
    for _ in range(2):
        with sole_writer(path) as alone:
            assert alone is True
        assert not path.exists()


def test_places_where_nothing_can_be_written_are_refused(tmp_path):
    told = "needed a place that can be written"
    with pytest.raises(CosetError, match=told), sole_writer(tmp_path / "none" / "lock"):
        pass
