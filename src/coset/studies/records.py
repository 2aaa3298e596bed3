"""Records: one strict JSON file for each cell and seed, with all that a number depends on."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from coset.errors import CosetError
from coset.files import read_bytes, write_text
from coset.studies.study import Parameters, fits


@dataclass(frozen=True)
class Record:
    """What one cell gave for one seed.

    Attributes:
        study: The study.
        cell: The name of the cell in it.
        scale: The scale.
        seed: Which repetition.
        values: Numbers, words, and lists of them; what was not finite is None.
        seconds: CPU time.
        peak_memory: Most bytes that the process held.
        threads: Of torch.
        versions: Of Python and the packages that computed.
        revision: Of the study.
        data: Checksum of the data.
        warnings: What a reader of the numbers must know.
        parameters: Of the cell.
        key: What it is found again by.
        sha256: Of all this; another one tells that the file was changed.
    """

    study: str
    cell: str
    scale: str
    seed: int
    values: Mapping[str, Any]
    seconds: float
    peak_memory: int
    threads: int
    versions: Mapping[str, str]
    revision: int
    data: str
    warnings: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    sha256: str = ""

    @property
    def name(self) -> str:
        """As figures and tables name it: the study, the cell and the seed."""
        return f"{self.study}/{self.cell}/seed {self.seed}"

    @property
    def is_changed(self) -> bool:
        """Whether the file was changed after it was written."""
        return self.sha256 != digest_of(self)

    @property
    def file_name(self) -> str:
        """The name of its file in the folder of its study."""
        plain = "".join(c if c.isalnum() else "-" for c in self.cell)
        return f"{plain[:60]}-seed{self.seed}-{self.key}.json"

    def fits(self, where: Parameters) -> bool:
        """Whether its seed and the parameters of its cell have these values; see :func:`fits`."""
        return fits({**self.parameters, "seed": self.seed}, where)

    def look_up(self, name: str) -> Any:
        """A value, or else a parameter of the cell; None where there is neither."""
        return self.values.get(name, self.parameters.get(name))


def digest_of(record: Record) -> str:
    """The sha256 of a record without its own digest."""
    facts = {name: value for name, value in asdict(record).items() if name != "sha256"}
    return hashlib.sha256(_json(facts).encode()).hexdigest()


def _json(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True, allow_nan=False, ensure_ascii=False)


def finite(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The same with None for numbers that are not finite, and a warning for each name.

    >>> finite({"a": float("nan"), "b": [1.0, float("inf")]})
    ({'a': None, 'b': [1.0, None]}, ('a: not finite', 'b: 1 of 2 not finite'))
    """
    found: dict[str, Any] = {}
    warnings = []
    for name, value in values.items():
        found[name], numbers, lost = _finite(value)
        if lost:
            count = f"{lost} of {numbers} " if isinstance(value, list | tuple) else ""
            warnings.append(f"{name}: {count}not finite")
    return found, tuple(warnings)


def _finite(value: Any) -> tuple[Any, int, int]:
    """A value without what is not finite, how many numbers it holds, and how many were lost."""
    if isinstance(value, list | tuple):
        parts = [_finite(part) for part in value]
        return [p[0] for p in parts], sum(p[1] for p in parts), sum(p[2] for p in parts)
    if isinstance(value, float) and not math.isfinite(value):
        return None, 1, 1
    return value, 1, 0


def write_record(folder: Path, record: Record) -> Path:
    """Writes a record into the folder of its study, whole or not at all."""
    facts = asdict(record) | {"sha256": digest_of(record)}
    place = folder / "records" / record.study
    place.mkdir(parents=True, exist_ok=True)
    path = place / record.file_name
    write_text(path, _json(facts) + "\n")
    return path


_KINDS: dict[str, tuple[type, ...]] = {
    "study": (str,),
    "cell": (str,),
    "scale": (str,),
    "seed": (int,),
    "values": (dict,),
    "seconds": (int, float),
    "peak_memory": (int,),
    "threads": (int,),
    "versions": (dict,),
    "revision": (int,),
    "data": (str,),
    "warnings": (list,),
    "parameters": (dict,),
    "key": (str,),
    "sha256": (str,),
}


def read_record(path: Path) -> Record:
    """Reads a record strictly: all fields, of the right kinds, and no number that is none.

    Raises:
        CosetError: If the file is cut short, is not strict JSON, or lacks a field.
    """
    facts = read_strict(path, "a record")
    missing = [f.name for f in fields(Record) if f.name not in facts]
    unknown = sorted(facts.keys() - _KINDS.keys())
    wrong = [
        name
        for name, kinds in _KINDS.items()
        if name in facts and (not isinstance(facts[name], kinds) or isinstance(facts[name], bool))
    ]
    if "warnings" in facts and "warnings" not in wrong and not _words(facts["warnings"]):
        wrong.append("warnings")
    if missing or unknown or wrong:
        what = (
            f"without {missing[0]!r}"
            if missing
            else f"with the unknown field {unknown[0]!r}"
            if unknown
            else f"whose {wrong[0]!r} is {facts[wrong[0]]!r:.40}"
        )
        raise CosetError(f"got {path}, a record {what}", *_ADVICE)
    return Record(**facts | {"warnings": tuple(facts["warnings"])})


def _words(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


_ADVICE = (
    "needed a record as a study writes it",
    "delete the file and run the study again: only this cell is computed",
)


def read_strict(path: Path, what: str) -> dict[str, Any]:
    """An object in strict JSON, which has no NaN and no infinity."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        facts = json.loads(read_bytes(path), parse_constant=refuse)
        if not isinstance(facts, dict):
            raise ValueError("no object")
    except CosetError:
        raise
    except (ValueError, RecursionError) as error:
        raise CosetError(f"got {path}, which is not {what} ({error})", *_ADVICE) from error
    return facts
