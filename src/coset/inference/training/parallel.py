"""Stacks trained at the same time, one a thread.

Members never wait for each other, so threads with a stack each use the processor better than one
stack whose every operation is shared out and waited for; and a busy machine does not stall them.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

import torch

from coset.bayes.problem import Problem
from coset.inference.run_record import Checkpoint, part_of
from coset.inference.training.loop import train_in_thread, training_record
from coset.inference.training.planning import Plan
from coset.inference.training.recipe import Recipe
from coset.inference.training.state import Trained, join
from coset.vocabulary import Progress, Weights
from coset.weights.randomness import own_randomness

_SECONDS_BETWEEN_REPORTS = 0.25


class _Stopped(Exception):
    """Ends a thread because another has failed."""


def train_stacks(
    problem: Problem,
    starts: Weights,
    recipe: Recipe,
    seeds: Sequence[int],
    plan: Plan,
    *,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Trains members as several stacks and puts them side by side again.

    Args:
        problem: What to fit; its data have been checked.
        starts: The first weights of all members, as a stack.
        recipe: How to train.
        seeds: One a member.
        plan: How large the stacks are and how many train at the same time.
        progress: Told a few times a second, from this thread, how far training is.
        checkpoint: Where each stack has a folder of its own.
    """
    chunks = [slice(first, first + plan.size) for first in range(0, len(seeds), plan.size)]
    board = _Board([len(seeds[chunk]) for chunk in chunks], progress)

    own = [{name: tensor[chunk] for name, tensor in starts.items()} for chunk in chunks]
    records = [  # here, for the threads of a worker are not those of the run
        training_record(
            part_of(checkpoint, f"stack-{number:03d}"),
            "training",
            problem,
            recipe,
            seeds[chunk],
            own[number],
        )
        for number, chunk in enumerate(chunks)
    ]

    def work(number: int) -> Trained:
        mine = seeds[chunks[number]]
        with own_randomness(mine[0]):
            return train_in_thread(
                problem,
                own[number],
                recipe,
                mine,
                first=chunks[number].start,
                progress=lambda done, _: board.note(number, done),
                record=records[number],
            )

    if plan.workers == 1:
        board.report_at_once = True
        return join([work(number) for number in range(len(chunks))])
    return join(_in_threads(work, len(chunks), plan.workers, board))


class _Board:
    """Where threads note how far they are, and learn that they should stop."""

    def __init__(self, members: Sequence[int], progress: Progress | None) -> None:
        self._members = members
        self._done = [0.0] * len(members)
        self._progress = progress
        self.report_at_once = False
        self.stop = threading.Event()

    def note(self, number: int, done: float) -> None:
        self._done[number] = done
        if self.stop.is_set():
            raise _Stopped
        if self.report_at_once:
            self.report()

    def report(self) -> None:
        if self._progress is None:
            return
        finished = sum(m for m, done in zip(self._members, self._done, strict=True) if done == 1)
        fraction = sum(m * done for m, done in zip(self._members, self._done, strict=True))
        members = sum(self._members)
        self._progress(fraction / members, f"{finished} of {members} members trained")


def _in_threads(
    work: Callable[[int], Trained], count: int, workers: int, board: _Board
) -> list[Trained]:
    def single_threaded(number: int) -> Trained:
        torch.set_num_threads(1)  # inside the operations of this thread
        return work(number)

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(single_threaded, number) for number in range(count)]
        try:
            _await(futures, board)
        finally:
            board.stop.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
    return [future.result() for future in futures]


def _await(futures: Sequence["Future[Trained]"], board: _Board) -> None:
    """Waits for all, reporting in between; raises what the first of them raised."""
    pending = set(futures)
    while pending:
        ended, pending = wait(pending, _SECONDS_BETWEEN_REPORTS, FIRST_EXCEPTION)
        for future in futures:
            if future in ended:
                future.result()
        board.report()
