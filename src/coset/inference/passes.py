"""How far work is that passes over the data again and again, row by row."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from coset.bayes.batches import Batches
from coset.bayes.problem import Problem
from coset.progress import forward
from coset.vocabulary import Batch, Progress


@dataclass(frozen=True)
class Stage:
    """A part of some work.

    Attributes:
        text: What it is.
        cost: In any unit that all parts share.
        passes: Over the data; what goes beyond whole ones is work between them.
    """

    text: str
    cost: float
    passes: float = 1.0


class Passes:
    """Tells how far the phases of some work are, and within each how many rows have been read.

    >>> passes = Passes(print)
    >>> passes.phase(0.0, 0.5, "curvature")
    0.0 curvature
    >>> passes.read(25, 100)
    0.125 curvature: row 25 of 100
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = None if progress is None else forward(progress)
        self._begin, self._end, self._text, self._passes = 0.0, 0.0, "", 1.0
        self._rows = 0
        self._stages: list[tuple[float, float, Stage]] = []

    def plan(self, begin: float, end: float, stages: Sequence[Stage]) -> None:
        """Shares the work between two points out among its stages, by their cost.

        >>> passes = Passes(print)
        >>> passes.plan(0.0, 1.0, [Stage("first", 3.0), Stage("second", 1.0)])
        >>> passes.stage(1)
        0.75 second
        """
        ends = list(accumulate((stage.cost for stage in stages), initial=0.0))
        places = [begin + (end - begin) * each / (ends[-1] or 1.0) for each in ends]
        self._stages = list(zip(places, places[1:], stages, strict=False))

    def stage(self, number: int) -> None:
        """Begins a stage of the plan."""
        begin, end, stage = self._stages[number]
        self.phase(begin, end, stage.text, passes=stage.passes)

    def phase(self, begin: float, end: float, text: str, *, passes: float = 1.0) -> None:
        """Begins a phase.

        Args:
            begin: Share of the work that lies before it.
            end: Share that is done at its end.
            text: What it is.
            passes: Over the data, as far as they are known; further ones move nothing.
        """
        self._begin, self._end, self._text, self._passes = begin, end, text, passes
        self._rows = 0
        if self._progress is not None:
            self._progress(begin, text)

    def read(self, rows: int, size: int) -> None:
        """Counts rows of a pass over so many."""
        self._rows += rows
        if self._progress is not None:
            done = min(1.0, self._rows / (self._passes * size))
            row = (self._rows - 1) % size + 1
            share = self._begin + done * (self._end - self._begin)
            self._progress(share, f"{self._text}: row {row:,} of {size:,}")

    def over(self, problem: Problem) -> Problem:
        """The problem with data whose passes are told."""
        if self._progress is None:
            return problem
        size = problem.train.size
        return replace(problem, train=_Heard(problem.train, lambda rows: self.read(rows, size)))


@dataclass(frozen=True)
class _Heard:
    """Data that tell how many of their rows have been used."""

    inner: Batches
    tell: Callable[[int], None]

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def batch_size(self) -> int:
        return self.inner.batch_size

    def __iter__(self) -> Iterator[Batch]:
        for inputs, targets in self.inner:
            yield inputs, targets
            self.tell(len(targets))

    def rows(self, index: Tensor) -> Batch:
        return self.inner.rows(index)


def stretches(train: Batches, count: int) -> Iterator[Batches]:
    """The data in so many stretches of nearly equal length, whose passes are told as before.

    >>> from coset.bayes.batches import InMemory
    >>> train = InMemory(torch.zeros(10, 2), torch.arange(10))
    >>> [targets.tolist() for part in stretches(train, 3) for _, targets in part]
    [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    """
    if count < 2:
        yield train
        return
    for index in torch.arange(train.size).tensor_split(min(count, train.size)):
        if isinstance(train, _Heard):
            yield replace(train, inner=_Stretch(train.inner, int(index[0]), len(index)))
        else:
            yield _Stretch(train, int(index[0]), len(index))


@dataclass(frozen=True)
class _Stretch:
    """Some rows of data that follow each other."""

    inner: Batches
    begin: int
    size: int

    @property
    def batch_size(self) -> int:
        return self.inner.batch_size

    def __iter__(self) -> Iterator[Batch]:
        for index in torch.arange(self.size).split(self.batch_size):
            yield self.rows(index)

    def rows(self, index: Tensor) -> Batch:
        return self.inner.rows(index + self.begin)
