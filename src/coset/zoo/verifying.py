"""Whether a zoo is what it says: its bytes, shapes, numbers, and that no member is there twice."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.progress import counted, reporting, within
from coset.store import record_is_whole
from coset.symmetry.discover import discover
from coset.symmetry.removing.canonical import canonicalise
from coset.vocabulary import Progress
from coset.weights.layout import Layout
from coset.weights.network import weights_of
from coset.zoo.files import Rows, digest, map_flat, read_rows
from coset.zoo.folder import Folder
from coset.zoo.index import Index
from coset.zoo.making import build_module, load_examples, measure_stack
from coset.zoo.reading import Zoo, read_description
from coset.zoo.recipe import ZooRecipe

_SAME = 1e-3
"""Relative distance of canonical forms below which two members are one."""

_ACCURACY = 0.005
"""By how much an accuracy that is measured again may differ: weights may be stored rounded."""

_PROBES = 3


@dataclass(frozen=True)
class Fault:
    """Something wrong with a zoo.

    Attributes:
        file: The file it is in, relative to the folder.
        member: The number of the member it concerns; ``None``: the file as a whole.
        what: What is wrong.
    """

    file: str
    member: int | None
    what: str

    def __str__(self) -> str:
        concerned = "" if self.member is None else f", member {self.member}"
        return f"{self.file}{concerned}: {self.what}"


def verify(
    folder: str | Path, *, measure: bool = False, progress: "Progress | bool | None" = None
) -> tuple[Fault, ...]:
    """Checks all files of a zoo: nothing found is an empty tuple.

    Checksums, shapes, recipe and finite numbers come first.  If they are in order, members are
    compared modulo the symmetries of the network, for two that are equal there had one seed.

    Args:
        folder: The zoo.
        measure: Whether accuracies are measured again.
        progress: As for :func:`coset.progress.reporting`.
    """
    place = Folder(Path(folder))
    recipe, _ = read_description(place)
    with reporting(progress) as tell:
        damaged = check_files(place, recipe, within(tell, 0.0, 0.1, "checking files"))
        if damaged:
            return damaged
        zoo, most = Zoo.open(place.path), 0.4 if measure else 1.0
        faults = list(check_twins(zoo, within(tell, 0.1, most, "comparing networks")))
        if measure:
            faults += _check_accuracies(zoo, within(tell, most, 1.0, "measuring accuracies"))
    return tuple(faults)


def check_files(
    place: Folder, recipe: ZooRecipe, tell: "Progress | None" = None
) -> tuple[Fault, ...]:
    """What is wrong with the bytes, shapes and numbers of the files."""
    layout = Layout.of(weights_of(build_module(recipe)))
    paths = list(place.files())
    found: list[_Found] = []
    told = counted(tell, len(paths), "files")
    for number, path in enumerate(paths):
        told(number)
        found += _check_file(path, recipe, layout)
    return tuple(_numbered(place, recipe, found)) if found else ()


@dataclass(frozen=True)
class _Found:
    """A fault of a row, whose member has no number yet."""

    path: Path
    run: int | None
    what: str


def _check_file(path: Path, recipe: ZooRecipe, layout: Layout) -> Iterator[_Found]:
    try:
        rows = read_rows(path)
        flat = map_flat(path, rows.layout.size)
    except CosetError as error:
        yield _Found(path, None, str(error))
        return
    if rows.recipe != recipe.digest:
        yield _Found(path, None, f"it belongs to another recipe than {recipe.name}")
    elif rows.layout != layout:
        yield _Found(path, None, f"its tensors are not those of {recipe.architecture.model}")
    elif len(flat) != len(rows.rows):
        yield _Found(path, None, f"it has {len(flat)} rows and describes {len(rows.rows)}")
    elif not record_is_whole(path):
        yield from _changed(path, rows, flat)
    else:
        for row, line in zip(rows.rows, flat, strict=True):
            if not bool(line.isfinite().all()):
                yield _Found(path, row.run, "its weights are not finite")


def _changed(path: Path, rows: Rows, flat: Float[Tensor, "rows p"]) -> Iterator[_Found]:
    """The rows whose bytes changed, or the file if its metadata did."""
    changed = [row for row, line in zip(rows.rows, flat, strict=True) if digest(line) != row.sha256]
    for row in changed:
        yield _Found(path, row.run, "its bytes do not fit their sha256")
    if not changed:
        yield _Found(path, None, "what it says of itself does not fit its sha256")


def _numbered(place: Folder, recipe: ZooRecipe, found: list[_Found]) -> Iterator[Fault]:
    """Faults with the numbers of members, as far as the index can tell them."""
    numbers: dict[int, int] = {}
    with suppress(CosetError):
        numbers = {row.run: number for number, row, _ in Index.of(place, recipe).rows()}
    for each in found:
        file = str(each.path.relative_to(place.path))
        yield Fault(file, None if each.run is None else numbers.get(each.run), each.what)


def check_twins(zoo: Zoo, tell: "Progress | None" = None) -> Iterator[Fault]:
    """Members that are one network, or one network up to its symmetries."""
    if len(zoo) < 2:
        return
    (inputs, _), _ = load_examples(zoo.recipe.data)
    group = discover(zoo.module(), inputs[:2])
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(zoo.layout.size, _PROBES, generator=generator, dtype=torch.float64)

    def forms(numbers: list[int] | slice) -> Float[Tensor, "m p"]:
        weights = zoo.weights(numbers, dtype=torch.float64)
        return zoo.layout.flatten(canonicalise(group, weights))

    norms, heights = [], []
    told = counted(tell, len(zoo), "networks")
    for part in zoo.parts(size=64):
        told(part.start)
        flat = forms(part)
        norms.append(flat.norm(dim=1))
        heights.append(flat @ probes)
    size, height = torch.cat(norms), torch.cat(heights)
    order = height[:, 0].argsort().tolist()
    window = 6 * _SAME * size  # six standard deviations of what a small difference can do
    for rank, first in enumerate(order):
        for second in order[rank + 1 :]:
            apart = (height[second] - height[first]).abs()
            if apart[0] > window[first]:
                break
            if bool((apart <= window[first]).all()):
                one, other = forms([first, second])
                if float((one - other).norm()) <= _SAME * float(size[first]):
                    low, high = sorted((first, second))
                    yield Fault(_file(zoo, high), high, f"it is member {low} again, up to symmetry")


def _check_accuracies(zoo: Zoo, tell: "Progress | None") -> Iterator[Fault]:
    steps = {member.step for member in zoo.members}
    told = counted(tell, len(steps) * len(zoo), "networks")
    for done, step in enumerate(steps):
        kept = [member for member in zoo.members if member.step == step]
        for part in zoo.parts(size=64):
            told(done * len(zoo) + part.start)
            again = measure_stack(zoo.recipe, zoo.weights(part, step=step))
            for member, metrics in zip(kept[part], again, strict=True):
                found = metrics["accuracy"]
                if abs(found - member.metrics["accuracy"]) > _ACCURACY:
                    yield Fault(
                        _file(zoo, member.number, step),
                        member.number,
                        f"its accuracy is {found:.4f}, not {member.metrics['accuracy']:.4f}",
                    )


def _file(zoo: Zoo, number: int, step: int | None = None) -> str:
    return str(zoo.place(number, step).path.relative_to(zoo.folder))
