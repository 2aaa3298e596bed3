"""A zoo that is there: which members it has, and their weights."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import CosetError, names_like, require_counts
from coset.posterior.families import Samples
from coset.store import read_bytes
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.zoo.files import map_flat
from coset.zoo.folder import DESCRIPTION, Folder
from coset.zoo.index import Index, Place
from coset.zoo.making import build_module, first_weights
from coset.zoo.recipe import ZooRecipe, recipe_from

_PART = 256_000_000
"""Bytes of weights that checks and summaries have in memory at a time."""


@dataclass(frozen=True)
class Member:
    """One network of a zoo, at the end of its training or along it.

    Attributes:
        number: Its number among the networks that were kept, from 0.
        seed: Where its training drew all its random numbers from.
        step: The epoch of a snapshot; ``None`` for the end.
        metrics: What was measured when it was trained.
        sha256: Of its stored tensors in layout order.
    """

    number: int
    seed: int
    step: int | None
    metrics: Mapping[str, float]
    sha256: str


@dataclass(frozen=True, eq=False)
class Zoo:
    """Networks trained alike from different seeds, in a folder.

    Attributes:
        folder: Where the files are.
        recipe: How each network was trained.
        seed: Where the seeds of its runs come from.
        index: What is where.
    """

    folder: Path
    recipe: ZooRecipe
    seed: int
    index: Index

    def __repr__(self) -> str:
        return f"Zoo({str(self.folder)!r}): {len(self)} networks of the recipe {self.recipe.name}"

    @staticmethod
    def open(folder: str | Path) -> "Zoo":
        """The zoo in a folder.

        Raises:
            CosetError: There is none, or a file in it is damaged or of another zoo.
        """
        place = Folder(Path(folder))
        recipe, seed = read_description(place)
        return Zoo(place.path, recipe, seed, Index.of(place, recipe))

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """All networks in order of number; the snapshots of each before its end."""
        return tuple(
            Member(number, row.seed, row.step, row.metrics, row.sha256)
            for number, row, _ in self.index.rows()
        )

    def select(self, condition: str) -> tuple[Member, ...]:
        """The members of which a condition of SQL is true, such as ``"accuracy > 0.9"``.

        Its columns are number, seed, step, sha256 and the metrics.
        """
        chosen = set(self.index.select(condition))
        return tuple(each for each in self.members if (each.number, each.step) in chosen)

    @cached_property
    def _places(self) -> Mapping[tuple[int, int | None], Place]:
        return {(number, row.step): place for number, row, place in self.index.rows()}

    def __len__(self) -> int:
        """Networks that were kept; snapshots do not count."""
        return len(self._ends)

    @cached_property
    def _ends(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.step is None)

    @property
    def layout(self) -> Layout:
        """Names and shapes of a member's tensors."""
        if self.index.layout is None:
            raise CosetError(
                f"got the zoo {self.folder}, which has no members", "needed one", "train it first"
            )
        return self.index.layout

    def module(self) -> nn.Module:
        """The network, with fresh weights."""
        return build_module(self.recipe)

    def weights(
        self,
        members: "slice | Sequence[int] | Tensor | None" = None,
        *,
        names: Iterable[str] | None = None,
        step: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Weights:
        """A stack of members; only the bytes that are asked for are read.

        Args:
            members: Numbers of members, or a slice of them; ``None``: all.
            names: Names of tensors; ``None``: all.
            step: The epoch of a snapshot; ``None``: the end.
            dtype: The type of the tensors.

        Raises:
            CosetError: There is no such member, tensor or step, or the stack is larger than the
                memory of this machine.
        """
        numbers = self._numbers(members)
        layout = self.layout if names is None else self._part(names)
        _require_room(len(numbers), layout.size, dtype)
        found = torch.empty(len(numbers), layout.size, dtype=dtype)
        columns = _runs((self.layout.slices[name], layout.slices[name]) for name in layout.names)
        by_file: dict[Path, list[tuple[slice, slice]]] = defaultdict(list)
        for position, number in enumerate(numbers):
            place = self.place(number, step)
            pair = slice(place.row, place.row + 1), slice(position, position + 1)
            by_file[place.path].append(pair)
        for path, pairs in by_file.items():
            flat = map_flat(path, self.layout.size)
            for rows, positions in _runs(pairs):
                for there, here in columns:
                    found[positions, here].copy_(flat[rows, there])
        return layout.unflatten(found)

    def beginnings(self, members: "slice | Sequence[int] | Tensor | None" = None) -> Weights:
        """The weights that members began with, made again from their seeds."""
        runs = {number: row.run for number, row, _ in self.index.rows()}
        return first_weights(self.recipe, self.seed, [runs[n] for n in self._numbers(members)])

    def chunks(
        self, size: int = 256, *, names: Iterable[str] | None = None, step: int | None = None
    ) -> Iterator[Weights]:
        """All members, in stacks of at most ``size``."""
        require_counts(size=size)
        chosen = None if names is None else tuple(names)
        for start in range(0, len(self), size):
            yield self.weights(slice(start, start + size), names=chosen, step=step)

    def parts(self, *, size: int = 256, width: int = 8) -> Iterator[slice]:
        """The members, in parts of at most ``size`` and 256 MB at ``width`` bytes a number."""
        most = max(1, min(size, _PART // max(1, width * self.layout.size)))
        for start in range(0, len(self), most):
            yield slice(start, min(start + most, len(self)))

    def posterior(self) -> Samples:
        """All members as samples, each as likely as the others: a reference to compare with."""
        return Samples(self.weights())

    def _numbers(self, members: "slice | Sequence[int] | Tensor | None") -> list[int]:
        count = len(self)
        if members is None:
            return list(range(count))
        if isinstance(members, slice):
            return list(range(count))[members]
        given = members.tolist() if isinstance(members, Tensor) else list(members)
        for number in given:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
                raise CosetError(
                    f"got member {number!r}", f"needed whole numbers from 0 to {count - 1}"
                )
        return given

    def _part(self, names: Iterable[str]) -> Layout:
        chosen = (names,) if isinstance(names, str) else tuple(names)
        for name in chosen:
            if name not in self.layout.names:
                raise CosetError(
                    f"got the tensor {name!r}",
                    f"needed one of {self.recipe.architecture.model}",
                    f"such as {names_like(name, self.layout.names)}",
                )
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return Layout(chosen, tuple(shapes[name] for name in chosen))

    def place(self, number: int, step: int | None = None) -> Place:
        """Where the weights of a member are."""
        try:
            return self._places[number, step]
        except KeyError:
            kept = sorted({each.step for each in self.members if each.step is not None})
            raise CosetError(
                f"got step={step}",
                f"needed an epoch whose weights are kept ({', '.join(map(str, kept)) or 'none'}), "
                "or None for the end",
            ) from None


def _runs(pairs: Iterable[tuple[slice, slice]]) -> list[tuple[slice, slice]]:
    """Pairs of slices, those that follow each other on both sides as one.

    >>> _runs([(slice(2, 3), slice(0, 1)), (slice(3, 5), slice(1, 3)), (slice(9, 10), slice(3, 4))])
    [(slice(2, 5, None), slice(0, 3, None)), (slice(9, 10, None), slice(3, 4, None))]
    """
    found: list[tuple[slice, slice]] = []
    for there, here in pairs:
        if found and (found[-1][0].stop, found[-1][1].stop) == (there.start, here.start):
            first, second = found.pop()
            found.append((slice(first.start, there.stop), slice(second.start, here.stop)))
        else:
            found.append((there, here))
    return found


def _require_room(count: int, size: int, dtype: torch.dtype) -> None:
    needed = count * size * dtype.itemsize
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise CosetError(
            f"got {count:,} members of {size:,} numbers, {needed / 1e9:,.1f} GB",
            f"needed at most the {memory / 1e9:,.1f} GB of this machine",
            "ask for fewer members, for some tensors by names=, for another dtype=, or go through "
            "chunks()",
        )


def read_description(folder: Folder) -> tuple[ZooRecipe, int]:
    """The recipe and the seed of a zoo.

    Raises:
        CosetError: There is no zoo in the folder.
    """
    path = folder.description
    if not path.is_file():
        raise CosetError(
            f"got the folder {folder.path}, in which there is no {DESCRIPTION}",
            "needed the folder of a zoo",
            "make one with coset zoo train RECIPE FOLDER",
        )
    try:
        facts: dict[str, Any] = json.loads(read_bytes(path))
        recipe = recipe_from(facts["recipe"], where=str(path))
        return recipe, int(facts["seed"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CosetError):
            raise
        raise CosetError(
            f"got {path}, which does not describe a zoo ({error})",
            "needed the file that coset wrote",
        ) from error
