"""Training the networks of a zoo: as many as are missing, by any engine, again after a kill."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from coset.engines import Engine, Outcome, Process
from coset.errors import CosetError, require_counts, require_kind
from coset.progress import Count, counted, reporting
from coset.store import clear_unfinished, write_text
from coset.vocabulary import Progress
from coset.weights.layout import Layout
from coset.zoo.files import Row, digest, write_rows
from coset.zoo.folder import Folder
from coset.zoo.index import Index
from coset.zoo.making import TrainedRun, check_recipe, run_seed, train_runs
from coset.zoo.reading import Zoo, read_description
from coset.zoo.recipe import ZooRecipe

Runs = tuple[int, ...]


@dataclass(frozen=True)
class TrainStack:
    """The task of an engine: trains a stack and writes the runs of it that are asked for.

    Which runs share a stack follows from their numbers and the recipe alone, and the whole stack is
    trained whichever of them are missing, so that a zoo that was killed and goes on has the same
    bytes as one that was not.
    """

    recipe: ZooRecipe
    folder: Folder
    seed: int

    def __call__(self, wanted: Runs) -> None:
        """Trains the stack that some runs belong to, and writes these."""
        size = self.recipe.training.stack
        first = wanted[0] // size * size
        seeds = [run_seed(self.seed, run) for run in range(first, first + size)]
        trained = train_runs(self.recipe, seeds)
        for run in wanted:
            if not self.folder.is_done(run):
                self._write(run, seeds[run - first], trained[run - first])

    def done(self, wanted: Runs) -> bool:
        """Whether all of them are there."""
        return all(map(self.folder.is_done, wanted))

    def _write(self, run: int, seed: int, found: TrainedRun) -> None:
        if found.dropped:
            note = {"run": run, "seed": seed, "why": found.dropped}
            write_text(self.folder.note(run), json.dumps(note) + "\n")
            return
        layout = Layout.of(found.weights[None])
        flat = torch.stack([layout.flatten(weights) for weights in found.weights.values()])
        rows = [
            Row(run, seed, step, found.metrics[step], digest(each))
            for step, each in zip(found.weights, flat, strict=True)
        ]
        write_rows(self.folder.member(run), flat, rows, layout, self.recipe.digest)


def populate(
    recipe: ZooRecipe,
    folder: str | Path,
    count: int = 1024,
    *,
    engine: Engine | None = None,
    seed: int = 0,
    progress: "Progress | bool | None" = None,
) -> Zoo:
    """Trains what is missing of a zoo.

    A run that the recipe drops is written down and replaced by the next.  A call after a kill goes
    on, and in the end the files are the same, byte for byte.

    Args:
        recipe: How each network is trained.
        folder: Where the zoo is, or will be.
        count: How many networks it will have that are kept.
        engine: What trains them; ``None`` stands for :class:`coset.engines.Process`.
        seed: Where the seeds of all runs come from.
        progress: As for :func:`coset.progress.reporting`.

    Raises:
        CosetError: The folder holds another zoo or has another writer, a run failed, or a file
            cannot be written.
    """
    require_kind(ZooRecipe, recipe=recipe)
    require_counts(count=count)
    require_counts(0, seed=seed)
    place = Folder(Path(folder))
    check_recipe(recipe)
    _make(place.path)
    with place.writing(), reporting(progress) as tell:
        _settle(place, recipe, seed)
        task = TrainStack(recipe, place, seed)
        told = counted(tell, count, "networks")
        _train_all(Process() if engine is None else engine, task, count, told)
    return Zoo.open(place.path)


def _train_all(engine: Engine, task: TrainStack, count: int, told: Count) -> None:
    """Trains runs, and others for those that are dropped, until so many are kept."""
    place, runs = task.folder, count
    packed = Index.of(place, task.recipe).runs
    while True:
        missing = [r for r in range(runs) if r not in packed and not place.is_done(r)]
        kept = runs - _dropped(place, runs) - len(missing)
        told(kept)
        if missing:
            failures = _train(engine, task, missing, told, kept)
            if failures:
                raise _failed(failures, task)
        elif kept < count:
            runs += count - kept
        else:
            return


def _train(
    engine: Engine, task: TrainStack, missing: Iterable[int], told: Count, kept: int
) -> list[Outcome]:
    """Trains runs and returns the tasks of which nothing came."""
    size = task.recipe.training.stack
    keys = [tuple(runs) for _, runs in groupby(missing, lambda run: run // size)]
    failures = []
    for outcome in engine.map(task, keys, done=task.done):
        if outcome.failure is None:
            kept += sum(task.folder.member(run).exists() for run in outcome.key)
            told(kept)
        elif outcome.cause == "error":  # the next would meet it too: a full disk, say
            raise _failed([outcome], task)
        else:
            failures.append(outcome)
    return failures


def _failed(failures: list[Outcome], task: TrainStack) -> CosetError:
    first = failures[0]
    seeds = ", ".join(f"{run} (seed {run_seed(task.seed, run)})" for run in first.key)
    more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
    tried = f" ({first.attempts} attempts)" if first.attempts > 1 else ""
    return CosetError(
        f"got no network from run {seeds} of the recipe {task.recipe.name}{more}: "
        f"{first.failure}{tried}",
        "needed every run to end",
        "what is trained is kept, and a second call goes on",
    )


def _dropped(place: Folder, runs: int) -> int:
    return sum(place.note(run).exists() for run in range(runs))


def _settle(place: Folder, recipe: ZooRecipe, seed: int) -> None:
    """Makes the folder of a new zoo, or refuses the one of another."""
    if place.description.exists():
        found, found_seed = read_description(place)
        if found.digest != recipe.digest or found_seed != seed:
            raise CosetError(
                f"got the recipe {recipe.name} with seed {seed} for {place.path}",
                f"needed the recipe {found.name} with seed {found_seed}, of which that zoo is"
                + (": the recipe has changed" if found.name == recipe.name else ""),
                "give another folder",
            )
    for folder in (place.path, place.members, place.dropped):
        _make(folder)
        clear_unfinished(folder)
    if not place.description.exists():
        facts = {"recipe": recipe.as_json(), "seed": seed}
        write_text(place.description, json.dumps(facts, indent=2) + "\n")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CosetError(
            f"got the folder {folder}: {error.strerror}",
            "needed a place where a folder can be made",
        ) from error
