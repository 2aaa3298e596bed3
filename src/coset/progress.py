"""How far long work is: told to a function, or shown on standard error.

A function that works for long takes ``progress`` and opens :func:`reporting` around the work:

==============  ===================================================================
``progress``    what happens
==============  ===================================================================
``None``        a line on a terminal, from the fifth second on; elsewhere nothing
``True``        a line on a terminal at once; elsewhere a plain line every ten seconds
``False``       nothing
a function      it is called with the fraction done and a short text
==============  ===================================================================

A terminal is one that standard error is written to.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import TYPE_CHECKING, TextIO, TypeAlias

from coset.errors import CosetError, told

if TYPE_CHECKING:
    from coset.vocabulary import Progress

PATIENCE = 5.0
"""Seconds of work that a terminal hears nothing of, unless it asked."""

_REDRAWN, _REPEATED = 0.2, 10.0
"""Seconds between two states of a line on a terminal, and between two plain lines."""

_BAR = 20
"""Characters of the bar."""

_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))

Count: TypeAlias = Callable[..., None]
"""Called with how many are done, and a short text if there is something to say."""


@contextmanager
def reporting(
    progress: "Progress | bool | None", *, stream: TextIO | None = None
) -> Iterator["Progress | None"]:
    """Gives the function to tell progress to, or ``None`` where nobody listens.

    Args:
        progress: What the caller of the work asked for.
        stream: Where lines go; ``None``: standard error.

    >>> with reporting(lambda fraction, text: print(f"{fraction:.0%} {text}")) as tell:
    ...     tell(0.5, "halfway")
    50% halfway
    """
    check_progress(progress)
    if not isinstance(progress, bool | None):
        yield progress
        return
    target = sys.stderr if stream is None else stream
    terminal = is_terminal(target)
    if progress is False or (progress is None and not terminal):
        yield None
        return
    line = Line(target, terminal=terminal, patience=0.0 if progress else PATIENCE)
    try:
        yield line
    finally:
        line.close()


def check_progress(progress: object) -> None:
    """Refuses what is neither a function of two arguments nor a switch."""
    if progress is None or isinstance(progress, bool):
        return
    try:
        signature(progress).bind(0.5, "text")  # type: ignore[arg-type]
    except ValueError:  # some functions written in C do not tell
        return
    except TypeError as error:
        raise CosetError(
            f"got progress={told(progress)}",
            "needed a function of 2 arguments, the fraction done and a text, or True, False, None",
        ) from error


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody watches what is written to a stream."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # it is closed
        return False


def counted(progress: "Progress | None", total: int, unit: str) -> Count:
    """Turns "so many are done" into the fraction and a text with the rate.

    The function that comes back is called with the number done and, if there is more to say, a
    text.  Without ``progress`` it does nothing.

    Args:
        progress: What :func:`reporting` gave.
        total: How many there are.
        unit: What they are, in the plural: ``"networks"``.

    >>> tell = counted(lambda fraction, text: print(fraction, text), 4, "networks")
    >>> tell(1, "seed 7")
    0.25 1 of 4 networks, seed 7
    """
    begun: tuple[float, float] | None = None

    def tell(done: float, text: str = "") -> None:
        nonlocal begun
        if progress is None:
            return
        now = time.monotonic()
        begun = begun or (now, done)
        seconds, since = now - begun[0], done - begun[1]
        parts = [f"{done:.6g} of {total} {unit}"]
        if seconds > 1 and since > 0:
            parts.append(rate(since / seconds))
        fraction = min(1.0, done / total) if total else 1.0
        progress(fraction, ", ".join([*parts, *filter(None, [text])]))

    return tell


def within(progress: "Progress | None", begin: float, end: float, phase: str) -> "Progress | None":
    """Reports of one phase of some work, as a part of the whole.

    >>> told = within(print, 0.5, 1.0, "collecting")
    >>> told(0.5, "epoch 2")
    0.75 collecting: epoch 2
    """
    if progress is None:
        return None
    return lambda done, text: progress(begin + done * (end - begin), f"{phase}: {text}")


def forward(progress: "Progress") -> "Progress":
    """Tells nothing that lies behind what was told before.

    >>> told = forward(print)
    >>> told(0.5, "second"); told(0.2, "first"); told(0.7, "third")
    0.5 second
    0.7 third
    """
    reached = 0.0

    def told(share: float, text: str) -> None:
        nonlocal reached
        if share >= reached:
            reached = share
            progress(share, text)

    return told


def rate(each_second: float) -> str:
    """How many a second, or a minute or hour where these are less than one.

    >>> rate(12.34), rate(0.05), rate(0.0005)
    ('12.3 a second', '3 a minute', '1.8 an hour')
    """
    if each_second >= 1:
        return f"{each_second:.3g} a second"
    a_minute = 60 * each_second
    return f"{a_minute:.3g} a minute" if a_minute >= 1 else f"{60 * a_minute:.3g} an hour"


def duration(seconds: float) -> str:
    """A length of time as one says it.

    >>> duration(8.2), duration(100), duration(5000), duration(200_000)
    ('8 s', '1 min 40 s', '1 h 23 min', '2 d 7 h')
    """
    whole = round(seconds)
    for large, size, small, part in _UNITS:
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


class Line:
    """One line that is written anew on a terminal, or again every ten seconds elsewhere.

    Attributes:
        stream: Where it is written.
        terminal: Whether the line before can be overwritten.
        patience: Seconds until it is first written.
        clock: Where seconds come from.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        terminal: bool,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream, self.terminal, self.clock = stream, terminal, clock
        self.patience = patience
        self._begun = clock()
        self._first: tuple[float, float] | None = None
        self._written: float | None = None
        self._last: str | None = None

    def __call__(self, fraction: float, text: str) -> None:
        """Says how far the work is, if it is time to."""
        now = self.clock()
        self._first = self._first or (now, fraction)
        self._last = self._sentence(now, min(1.0, max(0.0, fraction)), text)
        pause = _REDRAWN if self.terminal else _REPEATED
        waits = now - self._begun < self.patience
        if not waits and (self._written is None or now - self._written >= pause):
            self._write(now)

    def note(self, text: str) -> None:
        """Says something that stays."""
        self._put(f"\r\x1b[K{text}\n" if self.terminal else f"{text}\n")

    def close(self) -> None:
        """Takes the line away from a terminal; elsewhere the last state is written."""
        if self.terminal and self._written is not None:
            self._put("\r\x1b[K")
        elif not self.terminal and self._last is not None:
            self._write(self.clock())

    def _sentence(self, now: float, fraction: float, text: str) -> str:
        assert self._first is not None
        since, seconds = fraction - self._first[1], now - self._first[0]
        words = [f"{int(fraction * 100):3d} %", duration(now - self._begun)]
        if since > 0 and seconds >= 1 and fraction < 1:
            words[-1] += f", about {duration(seconds * (1 - fraction) / since)} left"
        filled = int(fraction * _BAR)
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
        return "  ".join([*([bar] if self.terminal else []), *words, " ".join(text.split())])

    def _write(self, now: float) -> None:
        assert self._last is not None
        self._written = now
        if self.terminal:
            self._put(f"\r\x1b[K{self._last[: self._width()]}")
        else:
            self._put(f"{self._last}\n")
            self._last = None

    def _width(self) -> int:
        columns = 0  # what terminals of no known size say, too
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self.stream.fileno()).columns
        return columns - 1 if columns else 79

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody listens any more: the work goes on
            self.stream.write(text)
            self.stream.flush()
