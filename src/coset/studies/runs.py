"""A run: a folder of records of one scale, and what they say."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coset.errors import CosetError
from coset.files import write_text
from coset.studies.records import Record, read_record, read_strict
from coset.studies.registry import STUDIES, check_scale, study_named
from coset.studies.study import Study
from coset.studies.verdicts import Verdict, disagreeing, judge

_FACTS = "run.json"


@dataclass(frozen=True)
class Run:
    """Records of one scale in a folder.

    Attributes:
        folder: Where they are.
        scale: Of all of them.
        records: In order of study, cell and seed.
    """

    folder: Path
    scale: str
    records: tuple[Record, ...] = ()

    def __repr__(self) -> str:
        """Where it is and what it holds."""
        return f"Run({str(self.folder)!r}, {self.scale!r}, {len(self.records)} records)"

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Reads a folder that a run was made in.

        Raises:
            CosetError: If it is none, or one of its records cannot be believed.
        """
        place = Path(folder)
        if not (place / _FACTS).is_file():
            raise CosetError(
                f"got {folder}, which holds no run",
                f"needed a folder with {_FACTS}",
                "make one: coset study run NAME --out FOLDER",
            )
        scale = read_strict(place / _FACTS, "the facts of a run").get("scale")
        check_scale(str(scale))
        paths = sorted(place.glob("records/*/*.json"))
        records = [read_record(path) for path in paths if not path.name.startswith(".")]
        for record, path in zip(records, paths, strict=True):
            if record.scale != scale:
                raise CosetError(
                    f"got {path}, a record of scale {record.scale!r} in a run of scale {scale!r}",
                    "needed one scale in a folder",
                    "move it to a folder of its own",
                )
        return cls(place, str(scale), tuple(sorted(records, key=_order)))

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """The studies that have records, as they are declared today."""
        held = {record.study for record in self.records}
        return tuple(study_named(name) for name in STUDIES if name in held)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the records say about each claim."""
        with self.blaming_changes():
            return tuple(
                v for study in self.studies for v in judge(study, self.records, self.scale)
            )

    @contextmanager
    def blaming_changes(self) -> Iterator[None]:
        """Names a record that was changed by hand into something that cannot be worked with."""
        try:
            yield
        except (TypeError, ValueError, OverflowError, LookupError, AttributeError) as error:
            changed = [record.name for record in self.records if record.is_changed]
            if isinstance(error, CosetError) or not changed:
                raise
            raise CosetError(
                f"got {changed[0]}, a record that was changed into one without sense ({error})",
                "needed a record as a study writes it",
                "delete its file and run the study again: only this cell is computed",
            ) from error

    @property
    def disagreements(self) -> list[tuple[Record, Record]]:
        """Records of one key with other values."""
        return disagreeing(self.records)

    def of(self, study: str) -> tuple[Record, ...]:
        """The records of one study."""
        return tuple(record for record in self.records if record.study == study)

    def cautions(self, study: Study) -> list[str]:
        """What a reader must know before the numbers of a study."""
        mine = self.of(study.name)
        found = [
            f"{record.name} was made by revision {record.revision}; the study is of "
            f"revision {study.revision}."
            for record in mine
            if record.revision != study.revision
        ]
        found += [
            f"{record.name} was changed after it was written."
            for record in mine
            if record.is_changed
        ]
        found += [
            f"Two records of {one.name} disagree: both are shown, and no mean is taken."
            for one, _ in self.disagreements
            if one.study == study.name
        ]
        return found


def _order(record: Record) -> tuple[int, str, int, str]:
    names = list(STUDIES)
    place = names.index(record.study) if record.study in names else len(names)
    return place, record.cell, record.seed, record.key


def begin(folder: Path, scale: str, studies: Sequence[str]) -> None:
    """Makes the folder of a run, or checks that it is one of this scale."""
    facts = folder / _FACTS
    if facts.exists():
        known = read_strict(facts, "the facts of a run").get("scale")
        if known != scale:
            raise CosetError(
                f"got {folder}, a run of scale {known!r}, for {', '.join(studies)} at {scale!r}",
                "needed a folder of this scale",
                "give another folder",
            )
        return
    if folder.exists() and not folder.is_dir():
        raise CosetError(f"got {folder}, which is a file", "needed a folder, or a free name")
    if folder.is_dir() and any(folder.iterdir()):
        raise CosetError(
            f"got {folder}, a folder with something else in it",
            "needed an empty folder, a free name, or a run to go on with",
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(facts, json.dumps({"scale": scale}) + "\n")
