"""The one form of a zoo's files: rows of a flat matrix, and for each row whose weights it holds.

A file that a training writes holds the rows of one run: its snapshots and its end.  A shard holds
those of many.  Both are safetensors files of :mod:`coset.store` with a matrix ``flat`` of shape
``[rows, parameters]`` and, in their metadata, layout, recipe and rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.store import load_facts, map_tensor, save_record
from coset.weights.layout import Layout

KIND = "coset zoo rows 1"
FLAT = "flat"


@dataclass(frozen=True)
class Row:
    """Whose weights a row of a file holds.

    Attributes:
        run: The number of the run in its zoo, dropped ones counted.
        seed: The seed of the run.
        step: The epoch of a snapshot, ``None`` for the end.
        metrics: What was measured of these weights.
        sha256: Of the row's bytes.
    """

    run: int
    seed: int
    step: int | None
    metrics: Mapping[str, float]
    sha256: str


@dataclass(frozen=True)
class Rows:
    """What a file says of itself."""

    path: Path
    layout: Layout
    recipe: str
    dtype: str
    rows: tuple[Row, ...]


def digest(row: Float[Tensor, " p"]) -> str:
    """The sha256 of a row's bytes."""
    return hashlib.sha256(row.contiguous().view(torch.uint8).numpy().data).hexdigest()


def write_rows(
    path: Path, flat: Float[Tensor, "rows p"], rows: Sequence[Row], layout: Layout, recipe: str
) -> None:
    """Writes a file whole or not at all."""
    facts = {
        "kind": KIND,
        "recipe": recipe,
        "dtype": str(flat.dtype).removeprefix("torch."),
        "names": layout.names,
        "shapes": layout.shapes,
        "rows": [asdict(row) for row in rows],
    }
    save_record(path, {FLAT: flat}, facts)


def read_rows(path: Path) -> Rows:
    """What a file says of itself; its weights are not read.

    Raises:
        CosetError: It is not a file of a zoo, or is damaged.
    """
    facts = load_facts(path)
    try:
        if facts["kind"] != KIND:
            raise ValueError(f"its kind is {facts['kind']!r:.40}")
        names = tuple(map(str, facts["names"]))
        shapes = tuple(tuple(map(int, shape)) for shape in facts["shapes"])
        rows = tuple(_row(each) for each in facts["rows"])
        found = Rows(path, Layout(names, shapes), str(facts["recipe"]), str(facts["dtype"]), rows)
        if len(names) != len(shapes) or not rows:
            raise ValueError("its layout or its rows are incomplete")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CosetError(
            f"got {path}, which is no file of a zoo ({error})",
            "needed a file that coset zoo wrote",
        ) from error
    return found


def map_flat(path: Path, size: int) -> Float[Tensor, "rows p"]:
    """The matrix of a file, memory-mapped: bytes are read when they are used."""
    flat = map_tensor(path, FLAT)
    if flat.dim() != 2 or flat.shape[1] != size:
        raise CosetError(
            f"got {path} with a matrix of {tuple(flat.shape)}", f"needed rows of {size} numbers"
        )
    return flat


def _row(facts: Mapping[str, Any]) -> Row:
    metrics = {str(name): float(value) for name, value in facts["metrics"].items()}
    step = None if facts["step"] is None else int(facts["step"])
    return Row(int(facts["run"]), int(facts["seed"]), step, metrics, str(facts["sha256"]))
