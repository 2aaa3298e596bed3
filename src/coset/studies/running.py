"""Runs a study: every cell that has no record yet, in whatever order the engine takes them."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from coset.engines import Engine, Process, Serial
from coset.errors import CosetError, require_counts
from coset.progress import reporting
from coset.studies.records import Record, finite, write_record
from coset.studies.registry import check_scale, study_named
from coset.studies.runs import Run, begin
from coset.studies.study import Cell, Study, key_of

if TYPE_CHECKING:
    from coset.vocabulary import Progress


@dataclass(frozen=True)
class CellTask:
    """Computes one cell for one seed and writes its record: running it twice is harmless.

    Attributes:
        study: Name of the study.
        scale: The scale.
        folder: Of the run.
    """

    study: str
    scale: str
    folder: Path

    def __call__(self, key: tuple[str, int]) -> str:
        """The name of the record's file."""
        from coset.studies.cells.data import checksum

        name, seed = key
        study = study_named(self.study)
        cell = study.cell(self.scale, name)
        module, function = study.compute.split(":")
        compute = getattr(import_module(module), function)
        begun = time.process_time()
        values = compute(cell.parameters, seed=seed, folder=self.folder)
        seconds = time.process_time() - begun
        warnings = tuple(values.pop("warnings", ()))
        kept, lost = finite(values)
        data = checksum(cell.parameters)
        record = Record(
            self.study,
            name,
            self.scale,
            seed,
            kept,
            round(seconds, 3),
            _peak_memory(),
            _threads(),
            _versions(),
            study.revision,
            data,
            (*warnings, *lost),
            dict(cell.parameters),
            key_of(self.study, cell, seed, data, study.revision),
        )
        return write_record(self.folder, record).name


def _peak_memory() -> int:
    """Most bytes that this process has held; Linux counts in kibibytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _versions() -> dict[str, str]:
    import platform

    import numpy
    import scipy
    import torch

    from coset.version import __version__

    return {
        "coset": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }


def run(
    name: str,
    folder: str | Path,
    *,
    scale: str = "demo",
    engine: Engine = Process(),
    seeds: Sequence[int] | None = None,
    progress: "Progress | bool | None" = None,
) -> Run:
    """Runs a study, or goes on where it stopped.

    Args:
        name: One of :func:`names`.
        folder: Where records are written; holds one scale, and as many studies as wanted.
        scale: ``"tiny"``, ``"demo"``, ``"small"``; ``"paper"`` is planned, never run.
        engine: Who computes the cells.
        seeds: The repetitions; those of the scale if None.
        progress: Told after each cell.

    Raises:
        CosetError: If there is no such study or scale, the folder holds another scale, or a cell
            fails; what was computed before stays.
    """
    study = study_named(name)
    check_scale(scale)
    place = Path(folder)
    if scale == "paper":
        return Run(place, scale)
    chosen = study.seeds[scale] if seeds is None else tuple(seeds)
    for seed in chosen:
        require_counts(0, seed=seed)
    begin(place, scale, [name])
    done = {record.key for record in _readable(place, name)}
    keys = [
        (cell.name, int(seed))
        for seed in dict.fromkeys(chosen)
        for cell in study.cells[scale]
        if _key(name, cell, int(seed), study.revision) not in done
    ]
    task = CellTask(name, scale, place)
    failures = []
    with reporting(progress) as tell:
        for number, outcome in enumerate(engine.map(task, keys), 1):
            cell_name, seed = outcome.key
            if outcome.failure is not None:
                failures.append(f"{cell_name}, seed {seed}: {outcome.failure}")
            if tell is not None:
                tell(number / len(keys), f"{name}: {number} of {len(keys)}: {cell_name}")
    if failures:
        raise CosetError(
            f"got {len(failures)} of {len(keys)} cells of {name} that failed ({failures[0]})",
            "needed all of them",
            "what was computed stays: mend the cause and run the study again",
        )
    _set_aside(place, study)
    return Run.open(place)


def _set_aside(folder: Path, study: Study) -> None:
    """Moves records that no cell of today's study would write out of the way, into ``old``.

    They are of another revision, of other parameters, or of other data.
    """
    for record in _readable(folder, study.name):
        cells = [cell for cell in study.cells[record.scale] if cell.name == record.cell]
        if any(record.key == _key(study.name, c, record.seed, study.revision) for c in cells):
            continue
        place = folder / "records" / study.name
        (place / "old").mkdir(exist_ok=True)
        (place / record.file_name).replace(place / "old" / record.file_name)


def _key(study: str, cell: Cell, seed: int, revision: int) -> str:
    from coset.studies.cells.data import checksum

    return key_of(study, cell, seed, checksum(cell.parameters), revision)


def _readable(folder: Path, study: str) -> list[Record]:
    """The records of a study; those that cannot be read are computed again."""
    from coset.studies.records import read_record

    found = []
    for path in (folder / "records" / study).glob("*.json"):
        try:
            record = read_record(path)
        except CosetError:
            continue
        if not record.is_changed and path.name == record.file_name:
            found.append(record)
    return found


def engine_named(name: str) -> Engine:
    """The engine of a name, as on the command line.

    >>> engine_named("serial")
    Serial()
    """
    if name == "serial":
        return Serial()
    if name == "process":
        return Process()
    if name == "ray":
        from coset import engines

        ray: Engine = getattr(engines, "Ray")()  # noqa: B009 (there from its extra on)
        return ray
    raise CosetError(
        f"got the engine {name!r}", "needed serial, process or ray", "leave it out for process"
    )
