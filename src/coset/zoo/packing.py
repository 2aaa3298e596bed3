"""Packing: the files of single runs into shards, and the index made anew."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coset.errors import CosetError
from coset.progress import counted, reporting
from coset.store import clear_unfinished
from coset.vocabulary import Progress
from coset.weights.layout import Layout
from coset.zoo.files import Row, Rows, digest, map_flat, write_rows
from coset.zoo.folder import Folder
from coset.zoo.index import Index, rows_of
from coset.zoo.reading import Zoo, read_description
from coset.zoo.recipe import ZooRecipe

ROWS, BYTES = 512, 1_000_000_000
"""Rows and bytes that a shard has at most."""

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Stored:
    """A row and the file it is in."""

    row: Row
    path: Path
    place: int


def pack(
    folder: str | Path,
    *,
    dtype: "torch.dtype | str | None" = None,
    progress: "Progress | bool | None" = None,
) -> Zoo:
    """Puts the files of single runs into shards of at most 512 rows and a gigabyte.

    A kill leaves every run in a file, in a shard or in both; a second call goes on.

    Args:
        folder: The zoo.
        dtype: What weights are stored as, such as ``torch.float16``; ``None``: as they are.
        progress: As for :func:`coset.progress.reporting`.
    """
    place = Folder(Path(folder))
    recipe, _ = read_description(place)
    wanted = _type(dtype)
    with place.writing(), reporting(progress) as tell:
        _pack(place, recipe, wanted, tell)
    rebuild_index(place.path)
    return Zoo.open(place.path)


def _pack(
    place: Folder, recipe: ZooRecipe, wanted: torch.dtype | None, tell: "Progress | None"
) -> None:
    """Rewrites shards of another type, then moves what is loose into new ones."""
    every = list(rows_of(place, recipe))
    shards = [rows for rows in every if rows.path.parent == place.shards]
    loose = [rows for rows in every if rows.path.parent != place.shards]
    done = 0
    told = counted(tell, len(every), "files")
    if wanted is not None:
        for rows in shards:
            told(done)
            done += 1
            if rows.dtype != str(wanted).removeprefix("torch."):
                _write(rows.path, _stored([rows]), rows.layout, recipe, wanted)
    if loose:
        place.shards.mkdir(exist_ok=True)
        clear_unfinished(place.shards)
        packed = {row.run for rows in shards for row in rows.rows}
        left = [rows for rows in loose if rows.rows[0].run not in packed]
        numbers = [int(rows.path.stem) for rows in shards]
        number = max(numbers, default=-1) + 1
        for group in _groups(left, wanted):
            told(done)
            done += len(group)
            path = place.shards / f"{number:05d}.safetensors"
            _write(path, _stored(group), group[0].layout, recipe, wanted)
            number += 1
            for rows in group:
                rows.path.unlink(missing_ok=True)
        for rows in loose:
            rows.path.unlink(missing_ok=True)


def rebuild_index(folder: str | Path) -> Zoo:
    """Makes the index of a zoo from its files, whatever the old one said."""
    place = Folder(Path(folder))
    recipe, seed = read_description(place)
    return Zoo(place.path, recipe, seed, Index.rebuilt(place, recipe))


def _type(dtype: "torch.dtype | str | None") -> torch.dtype | None:
    name = str(dtype).removeprefix("torch.")
    if dtype is not None and name not in TYPES:
        raise CosetError(f"got dtype={name}", f"needed one of {', '.join(TYPES)}, or None")
    return TYPES.get(name)


def _groups(loose: Sequence[Rows], dtype: torch.dtype | None) -> Iterator[list[Rows]]:
    """Runs that share a shard, in order."""
    group: list[Rows] = []
    rows = 0
    for each in loose:
        size = each.layout.size * (dtype or TYPES[each.dtype]).itemsize
        most = max(1, min(ROWS, BYTES // size))
        if group and rows + len(each.rows) > most:
            yield group
            group, rows = [], 0
        group.append(each)
        rows += len(each.rows)
    if group:
        yield group


def _stored(group: Sequence[Rows]) -> list[Stored]:
    """The rows of a shard: ends first, then snapshot by snapshot, each in order of the runs."""
    found = [Stored(row, rows.path, place) for rows in group for place, row in enumerate(rows.rows)]
    return sorted(found, key=lambda each: (each.row.step or 0, each.row.run))


def _write(
    path: Path,
    stored: Sequence[Stored],
    layout: Layout,
    recipe: ZooRecipe,
    dtype: torch.dtype | None,
) -> None:
    flats = {each.path: map_flat(each.path, layout.size) for each in stored}
    kind = dtype or flats[stored[0].path].dtype
    flat = torch.empty(len(stored), layout.size, dtype=kind)
    for number, each in enumerate(stored):
        flat[number] = flats[each.path][each.place].to(kind)
    if not bool(flat.isfinite().all()):
        bad = stored[int((~flat.isfinite()).any(1).nonzero()[0])]
        raise CosetError(
            f"got weights of the run with seed {bad.row.seed} that {kind} cannot hold",
            "needed finite weights",
            "pack with dtype=torch.float32",
        )
    rows = [replace(each.row, sha256=digest(line)) for each, line in zip(stored, flat, strict=True)]
    write_rows(path, flat, rows, layout, recipe.digest)
