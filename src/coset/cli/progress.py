"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from coset.vocabulary import Progress

_LINES = 4
"""Lines that a piece of work prints where there is no terminal."""


@contextmanager
def shown_progress(console: "Console") -> Iterator["Progress"]:
    """Gives a function to call with the fraction done and a short line."""
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction, line: bar.update(task, completed=fraction, description=line)


class _PlainLines:
    """Prints a line whenever another quarter of the work is done."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._done = -1

    def __call__(self, fraction: float, line: str) -> None:
        quarter = int(fraction * _LINES)
        if quarter > self._done:
            self._done = quarter
            self._console.print(f"{fraction:4.0%}  {line}", highlight=False)
