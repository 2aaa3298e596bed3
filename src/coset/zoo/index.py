"""What is where in a zoo: a database that is made from the files, and never the truth.

The database is built in memory and written whole, by a rename.  SQLite never works on the disk, so
that its locks and its log, which network file systems do not keep, are not needed, and a kill
leaves the old index or the new.  The index knows the names, sizes and times of the files it was
made of; where they differ in anything, it is made anew.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coset.errors import CosetError
from coset.store import write_bytes
from coset.weights.layout import Layout
from coset.zoo.files import Row, Rows, read_rows
from coset.zoo.folder import Folder
from coset.zoo.recipe import ZooRecipe

_FORMAT = "2"
_STEPS = 10_000_000
"""Instructions after which a condition is given up."""


@dataclass(frozen=True)
class Place:
    """Where the weights of a row are."""

    path: Path
    row: int


class Index:
    """The rows of a zoo's files, numbered.

    Attributes:
        layout: Names and shapes of a member's tensors; ``None`` in an empty zoo.
    """

    def __init__(self, folder: Folder, database: sqlite3.Connection) -> None:
        self.folder, self._database = folder, database
        facts = dict(database.execute("SELECT name, value FROM facts"))
        self.layout: Layout | None = None
        if "names" in facts:
            shapes = tuple(map(tuple, json.loads(facts["shapes"])))
            self.layout = Layout(tuple(json.loads(facts["names"])), shapes)

    @staticmethod
    def of(folder: Folder, recipe: ZooRecipe) -> "Index":
        """The index that is there, if it fits the files, or a new one.

        Raises:
            CosetError: A file is damaged, or belongs to another recipe.
        """
        stamp = _stamp(folder)
        found = _read(folder.index, stamp)
        return Index.rebuilt(folder, recipe) if found is None else Index(folder, found)

    @staticmethod
    def rebuilt(folder: Folder, recipe: ZooRecipe) -> "Index":
        """An index made from the files, and written where that is possible."""
        stamp = _stamp(folder)
        database = _built(folder, recipe, stamp)
        with suppress(CosetError):  # one may read zoos in folders that one may not write in
            write_bytes(folder.index, database.serialize())
        return Index(folder, database)

    @property
    def runs(self) -> set[int]:
        """The runs that were kept."""
        return {run for (run,) in self._database.execute("SELECT DISTINCT run FROM places")}

    def rows(self) -> Iterator[tuple[int, Row, Place]]:
        """Number, row and place of all weights, in order of number, snapshots before the end."""
        for number, run, seed, step, metrics, sha256, file, row in self._database.execute(
            "SELECT number, run, seed, step, metrics, sha256, file, row FROM places "
            "ORDER BY number, step IS NULL, step"
        ):
            place = Place(self.folder.path / file, row)
            yield number, Row(run, int(seed), step, json.loads(metrics), sha256), place

    def select(self, condition: str) -> list[tuple[int, int | None]]:
        """Number and step of the rows of which a condition of SQL is true.

        Raises:
            CosetError: It is no condition on columns that there are.
        """
        database = self._database
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(members)")]
        database.set_authorizer(_one_reading())
        database.set_progress_handler(lambda: 1, _STEPS)
        try:
            return database.execute(
                f"SELECT number, step FROM members WHERE ({condition}) "
                "ORDER BY number, step IS NULL, step"
            ).fetchall()
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise CosetError(
                f"got the condition {condition!r} ({error})",
                f"needed one on {', '.join(columns)}",
                "such as accuracy > 0.9",
            ) from error
        finally:
            database.set_authorizer(None)
            database.set_progress_handler(None, 0)


def _one_reading() -> Callable[..., int]:
    """What SQLite asks before it does anything: one selection that reads columns may go on."""
    selections = 0

    def allow(action: int, *_: str | None) -> int:
        nonlocal selections
        selections += action == sqlite3.SQLITE_SELECT
        reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
        return sqlite3.SQLITE_OK if action in reading and selections < 2 else sqlite3.SQLITE_DENY

    return allow


def _stamp(folder: Folder) -> str:
    """Changes whenever a file does; times are compared for equality, so clocks may go back."""
    found = hashlib.sha256(_FORMAT.encode())
    for path in folder.files():
        facts = path.stat()
        name = path.relative_to(folder.path)
        found.update(f"{name} {facts.st_size} {facts.st_ino} {facts.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _read(path: Path, stamp: str) -> sqlite3.Connection | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(content)
        if database.execute("SELECT value FROM facts WHERE name = 'stamp'").fetchone() == (stamp,):
            return database
    except (sqlite3.Error, MemoryError):  # damaged: it is made anew
        pass
    database.close()
    return None


def _built(folder: Folder, recipe: ZooRecipe, stamp: str) -> sqlite3.Connection:
    found: dict[tuple[int, int | None], tuple[Row, str, int]] = {}
    facts = {"stamp": stamp}
    for rows in rows_of(folder, recipe):
        file = str(rows.path.relative_to(folder.path))
        facts |= {"names": json.dumps(rows.layout.names), "shapes": json.dumps(rows.layout.shapes)}
        for place, row in enumerate(rows.rows):
            found.setdefault((row.run, row.step), (row, file, place))  # shards come first
    numbers = {run: number for number, run in enumerate(sorted({run for run, _ in found}))}
    metrics = sorted({name for row, _, _ in found.values() for name in row.metrics})
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE facts (name TEXT, value TEXT)")
    database.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
    # seeds have 62 bits, which SQLite's whole numbers hold
    database.execute(
        "CREATE TABLE places (number INTEGER, run INTEGER, seed INTEGER, step INTEGER, "
        "metrics TEXT, sha256 TEXT, file TEXT, row INTEGER)"
    )
    database.executemany(
        "INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        _records(found.values(), numbers),
    )
    columns = "".join(f", {_quoted(name)} REAL" for name in metrics)
    database.execute(
        f"CREATE TABLE members (number INTEGER, seed INTEGER, step INTEGER, sha256 TEXT{columns})"
    )
    database.executemany(
        f"INSERT INTO members VALUES ({', '.join('?' * (4 + len(metrics)))})",
        (
            (numbers[row.run], row.seed, row.step, row.sha256, *map(row.metrics.get, metrics))
            for row, _, _ in found.values()  # what is no number is stored as missing
        ),
    )
    database.commit()
    return database


def _records(
    found: Iterable[tuple[Row, str, int]], numbers: dict[int, int]
) -> Iterator[tuple[Any, ...]]:
    for row, file, place in found:
        metrics = json.dumps(dict(row.metrics))
        yield numbers[row.run], row.run, row.seed, row.step, metrics, row.sha256, file, place


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rows_of(folder: Folder, recipe: ZooRecipe) -> Iterator[Rows]:
    """What each file of a zoo says of itself, shards first.

    Raises:
        CosetError: One of them belongs to another recipe or has another layout.
    """
    first: Rows | None = None
    for path in folder.files():
        rows = read_rows(path)
        first = first or rows
        if rows.recipe != recipe.digest or rows.layout != first.layout:
            raise CosetError(
                f"got {path}, which belongs to another recipe or has another layout",
                f"needed files of the recipe {recipe.name}, as all others in {folder.path}",
                "move it away",
            )
        yield rows
