import io
import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from coset import CosetError, MaximumAPosteriori, fit
from coset.progress import Line, counted, duration, reporting

DATA = (torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def told(line, clock, seconds, work):
    """What is written when a piece of work tells its progress every second."""
    for second in range(seconds + 1):
        clock.now = second
        line(second / work, f"step {second}")


def test_a_terminal_hears_of_work_from_the_fifth_second_on(monkeypatch):
    stream, clock = Terminal(), Clock()
    line = Line(stream, terminal=True, patience=5.0, clock=clock)
    told(line, clock, 4, 20)
    assert stream.getvalue() == ""
    told(line, clock, 5, 20)
    assert "25 %  5 s, about 15 s left  step 5" in stream.getvalue()


def test_time_left_counts_from_the_first_report():
    """A run that is taken up at a half has done the first half in no time."""
    stream, clock = Terminal(), Clock()
    line = Line(stream, terminal=True, clock=clock)
    for clock.now, fraction in ((0.0, 0.5), (10.0, 0.6)):
        line(fraction, "epoch")
    assert "about 40 s left" in stream.getvalue()


def test_plain_lines_come_every_ten_seconds_and_at_the_end():
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, terminal=False, clock=clock)
    told(line, clock, 35, 35)
    line.close()
    lines = stream.getvalue().splitlines()
    assert [one.split()[-1] for one in lines] == ["0", "10", "20", "30", "35"]
    assert "\r" not in stream.getvalue()


def test_the_line_goes_away_when_the_work_ends_or_fails():
    stream = Terminal()

    def fail():
        with reporting(True, stream=stream) as tell:
            tell(0.5, "half\nway")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "half way" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("progress", "stream"), [(None, io.StringIO()), (False, io.StringIO()), (False, Terminal())]
)
def test_who_did_not_ask_hears_nothing(progress, stream):
    with reporting(progress, stream=stream) as tell:
        assert tell is None
        counted(tell, 3, "networks")(1)
    assert stream.getvalue() == ""


def test_a_reader_that_went_away_does_not_end_the_work():
    stream = Terminal()
    with reporting(True, stream=stream) as tell:
        tell(0.1, "first")
        stream.close()
        tell(0.9, "last")


@pytest.mark.parametrize("progress", [3, "yes", lambda done: None])
def test_other_kinds_are_refused(progress):
    with pytest.raises(CosetError, match=r"got progress=.* needed a function of 2 arguments"):
        fit(nn.Linear(1, 2), DATA, progress=progress)


def test_counts_give_the_rate(monkeypatch):
    clock, said = Clock(), []
    monkeypatch.setattr("coset.progress.time.monotonic", clock)
    tell = counted(lambda *each: said.append(each), 1024, "networks")
    tell(24)
    clock.now = 10.0
    tell(74, "seed 73")
    assert said == [
        (24 / 1024, "24 of 1024 networks"),
        (74 / 1024, "74 of 1024 networks, 5 a second, seed 73"),
    ]


def test_times_are_said_in_two_units():
    assert [duration(s) for s in (0.2, 59.6, 3600, 90000)] == ["0 s", "1 min", "1 h", "1 d 1 h"]


def test_fit_says_plain_lines_when_asked_and_nothing_otherwise(capsys):
    method = MaximumAPosteriori(epochs=3)
    quiet = fit(nn.Linear(1, 2), DATA, method=method)
    assert capsys.readouterr() == ("", "")
    spoken = fit(nn.Linear(1, 2), DATA, method=method, progress=True)
    heard = capsys.readouterr()
    assert heard.out == ""
    assert re.fullmatch(r"( *\d+ %  .*\n)+", heard.err)
    assert heard.err.splitlines()[-1].startswith("100 %")
    torch.testing.assert_close(quiet(DATA[0]).mean, spoken(DATA[0]).mean, rtol=0, atol=0)


def test_a_fit_of_six_seconds_is_shown_on_a_real_terminal():
    """A pseudo-terminal as standard error: the line appears by itself, and is gone at the end."""
    pty = pytest.importorskip("pty")
    script = textwrap.dedent(
        """
        import time, torch
        from torch import nn
        import coset, coset.progress
        coset.progress.PATIENCE = 0.2
        class Slow:
            def fit(self, problem, *, start=None, generator, progress=None):
                for step in range(4):
                    progress(step / 4, f"step {step}")
                    time.sleep(0.2)
                return coset.PointMass(problem.network.weights)
        coset.fit(nn.Linear(1, 2), (torch.zeros(2, 1), torch.tensor([0, 1])), method=Slow())
        """
    )
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", script], stderr=slave, stdout=subprocess.PIPE, check=False
    )
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0, shown
    assert "step 3" in shown
    assert shown.endswith("\r\x1b[K")
    assert done.stdout == b""
