"""Zoos given away: a folder in the Hugging Face data set layout, on a disk or on the Hub.

The folder has the shards and ``zoo.json`` as they are in a packed zoo, the index once more as
``index.parquet``, and a card (``README.md``) whose head makes the Hub's viewer show the index.
What is taken in is compared with that index, member by member.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coset.errors import CosetError
from coset.progress import counted, reporting, within
from coset.store import record_is_whole, write_bytes, write_text
from coset.vocabulary import Progress
from coset.zoo.folder import DESCRIPTION, Folder
from coset.zoo.hub import download, hub_place, needed, upload
from coset.zoo.index import rows_of
from coset.zoo.packing import pack, rebuild_index
from coset.zoo.reading import Zoo

INDEX, CARD = "index.parquet", "README.md"

_PATTERNS = (DESCRIPTION, INDEX, "shards/*.safetensors")
_SHARD = re.compile(r"shards/[0-9]{5}\.safetensors")

_CARD = """---
configs:
- config_name: index
  data_files: {index}
tags:
- coset
- model-zoo
- {model}
---

# {count:,} networks of the recipe {recipe}

{about}

| | |
|---|---|
| architecture | `{model}`, {size:,} parameters |
| data | {data} |
| networks | {count:,}{snapshots} |
| accuracy | {accuracy} |
| stored as | {dtype}, {megabytes:,.1f} MB |

`{index}` has one row for each set of weights: `number` of the network, `seed`, `step` (the epoch of
a snapshot; empty: the end of training), what was measured, and the `file` and `row` of the weights.
A file is a safetensors file with one matrix `flat` of shape `[rows, parameters]`; names and shapes
of the tensors are in its metadata. No file holds code.

```python
from coset.zoo import Zoo, import_hub

zoo = import_hub("hf://datasets/OWNER/NAME", "zoo")  # or the folder this file is in
weights = zoo.weights(slice(0, 10))
```
"""


def export_hub(
    folder: str | Path, target: str | Path, *, progress: "Progress | bool | None" = None
) -> str:
    """Copies a zoo into the layout of a data set of the Hugging Face Hub.

    Args:
        folder: The zoo; members that have not been packed are packed in the copy.
        target: A folder that is new or empty, or ``hf://datasets/OWNER/NAME``: a data set of the
            Hub, made if it is not there, written with the token that ``hf auth login`` keeps.
        progress: As for :func:`coset.progress.reporting`.

    Returns:
        Where it is: the path of the folder, or the address of the data set.

    Raises:
        CosetError: The zoo has a damaged file, the target is taken or cannot be reached, or the
            extra ``hub`` is not installed.
    """
    zoo = Zoo.open(folder)
    if not len(zoo):
        raise CosetError(f"got the zoo {folder}, which has no members", "needed one to share")
    parquet = needed("pyarrow.parquet")
    place = hub_place(target)
    if place is None:
        with _made_whole(Path(target)) as made, reporting(progress) as tell:
            _lay_out(zoo, made, parquet, tell)
        return str(target)
    place.require_connection()
    with _scratch(zoo.folder) as made, reporting(progress) as tell:
        _lay_out(zoo, made, parquet, tell)
        return upload(place, made)


def import_hub(
    source: str | Path, folder: str | Path, *, progress: "Progress | bool | None" = None
) -> Zoo:
    """Takes in a zoo that :func:`export_hub` gave away.

    Every file is checked against its sha256, and every member against ``index.parquet``.

    Args:
        source: A folder of that layout, or ``hf://datasets/OWNER/NAME``.  What the Hub's cache has
            is used without a connection; whether there is one is known within three seconds.
        folder: Where the zoo will be: new or empty.
        progress: As for :func:`coset.progress.reporting`.

    Raises:
        CosetError: A file is missing, damaged or another than the index says, the folder is taken,
            there is no connection, or the extra ``hub`` is not installed.
    """
    parquet = needed("pyarrow.parquet")
    place = hub_place(source)
    with _made_whole(Path(folder)) as made, reporting(progress) as tell:
        found = Path(source) if place is None else download(place, _PATTERNS)
        _take_in(found, made, parquet, tell)
    return Zoo.open(folder)


def _take_in(source: Path, made: Path, parquet: Any, tell: "Progress | None") -> None:
    """Copies the files that the index of a source names, and checks that they are what it says."""
    for name in (DESCRIPTION, INDEX):
        if not (source / name).is_file():
            raise CosetError(
                f"got {source}, in which there is no {name}",
                "needed a folder that coset zoo export made, or a whole copy of it",
            )
    told = _told(source / INDEX, parquet)
    write_bytes(made / DESCRIPTION, (source / DESCRIPTION).read_bytes())
    (made / "shards").mkdir()
    files = sorted({file for *_, file, _ in told})
    count = counted(tell, len(files), "files")
    for number, file in enumerate(files):
        count(number)
        if not _SHARD.fullmatch(file):
            raise CosetError(
                f"got {source / INDEX} with the file {file!r:.80}",
                "needed names such as shards/00000.safetensors",
            )
        if not (source / file).is_file():
            raise CosetError(f"got {source} without {file}, which its index names", "needed it")
        shutil.copyfile(source / file, made / file)
        _require_whole(made / file, source / file)
    found = {
        (row.seed, row.step, row.sha256, str(place.path.relative_to(made)), place.row)
        for _, row, place in rebuild_index(made).index.rows()
    }
    if found != told:
        raise CosetError(
            f"got {source}, whose {INDEX} names {len(told - found)} weights that its files do not "
            f"have, and leaves out {len(found - told)} that they have",
            "needed an index of these files",
            "it is of another version: take a whole copy",
        )


def _told(path: Path, parquet: Any) -> set[tuple[int, int | None, str, str, int]]:
    """What an index says is where."""
    columns = ["seed", "step", "sha256", "file", "row"]
    try:
        table = parquet.read_table(path, columns=columns).to_pydict()
        rows = zip(*(table[name] for name in columns), strict=True)
        return {
            (int(seed), None if step is None else int(step), str(sha256), str(file), int(row))
            for seed, step, sha256, file, row in rows
        }
    except (KeyError, TypeError, ValueError, OSError) as error:  # pyarrow's errors are such
        told = " ".join(str(error).split())
        raise CosetError(
            f"got {path}, which is no index of a zoo ({told:.120})",
            "needed the file that coset zoo export made",
        ) from error


def _require_whole(path: Path, shown: Path) -> None:
    if not record_is_whole(path):
        raise CosetError(
            f"got {shown}, whose content does not fit its sha256",
            "needed the file as it was written",
            "it was truncated or changed: take another copy",
        )


def _lay_out(zoo: Zoo, made: Path, parquet: Any, tell: "Progress | None") -> None:
    """Makes all files of the layout; shards are linked where the disk allows it."""
    source, copy = Folder(zoo.folder), Folder(made)
    for path in source.files():
        target = made / path.relative_to(source.path)
        target.parent.mkdir(exist_ok=True)
        _link_or_copy(path, target)
    write_bytes(copy.description, source.description.read_bytes())
    found = pack(made, progress=within(tell, 0.0, 0.5, "packing") or False)
    for name in ("members", "dropped"):
        shutil.rmtree(made / name, ignore_errors=True)
    copy.index.unlink(missing_ok=True)
    shards = list(copy.files())
    count = counted(within(tell, 0.5, 1.0, "checking"), len(shards), "files")
    for number, path in enumerate(shards):
        count(number)
        _require_whole(path, source.path / path.relative_to(made))
    rows = _rows(found)
    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    parquet.write_table(needed("pyarrow").table(columns), made / INDEX)
    write_text(made / CARD, _card(found))


def _rows(zoo: Zoo) -> list[dict[str, Any]]:
    """What the index says, a row for each set of weights."""
    return [
        {
            "number": number,
            "seed": row.seed,
            "step": row.step,
            **row.metrics,
            "sha256": row.sha256,
            "file": str(place.path.relative_to(zoo.folder)),
            "row": place.row,
        }
        for number, row, place in zoo.index.rows()
    ]


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _card(zoo: Zoo) -> str:
    recipe = zoo.recipe
    ends = [member for member in zoo.members if member.step is None]
    steps = sorted({member.step for member in zoo.members if member.step is not None})
    accuracies = sorted(member.metrics["accuracy"] for member in ends)
    snapshots = f", with snapshots after epoch {', '.join(map(str, steps))}" if steps else ""
    paths = list(Folder(zoo.folder).files())
    dtypes = {rows.dtype for rows in rows_of(Folder(zoo.folder), recipe)}
    return _CARD.format(
        index=INDEX,
        model=recipe.architecture.model,
        recipe=recipe.name,
        about=recipe.about,
        count=len(zoo),
        size=zoo.layout.size,
        data=recipe.data.set,
        snapshots=snapshots,
        accuracy=f"{accuracies[0]:.3f} to {accuracies[-1]:.3f}, "
        f"median {accuracies[len(accuracies) // 2]:.3f}",
        dtype=", ".join(sorted(dtypes)),
        megabytes=sum(path.stat().st_size for path in paths) / 1e6,
    )


@contextmanager
def _made_whole(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when it is complete or leaves nothing behind."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CosetError(
            f"got {target}, which is there already", "needed a folder that is new or empty"
        )
    made = target.absolute().with_name(f".{target.name}.part-{secrets.token_hex(4)}")
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        made.mkdir()
        yield made
        os.replace(made, target)
    except OSError as error:
        raise CosetError(
            f"got {target}: {error.strerror}", "needed a place with room for a copy of the zoo"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside another, where its files can be linked, that goes in the end."""
    made = folder.absolute().with_name(f".{folder.name}.part-{secrets.token_hex(4)}")
    try:
        made.mkdir()
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    """One file under two names where that is possible; our files are replaced, never changed."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)
