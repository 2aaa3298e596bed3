"""Where things are in the folder of a zoo."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coset.errors import CosetError
from coset.files import sole_writer

DESCRIPTION = "zoo.json"


@dataclass(frozen=True)
class Folder:
    """The folder of a zoo.

    ======================  ==================================================
    ``zoo.json``            the recipe and the seed
    ``members/``            one file a run, while the zoo is trained
    ``dropped/``            one text a run that was given up
    ``shards/``             files of many runs, after packing
    ``index.sqlite``        what is where, rebuilt from the files at any time
    ``.writer``             the lock of whoever trains or packs, as long as that takes
    ======================  ==================================================
    """

    path: Path

    @property
    def description(self) -> Path:
        """The file that says what the zoo is."""
        return self.path / DESCRIPTION

    @property
    def members(self) -> Path:
        """Where trainings write."""
        return self.path / "members"

    @property
    def dropped(self) -> Path:
        """Where runs that were given up are written down."""
        return self.path / "dropped"

    @property
    def shards(self) -> Path:
        """Where packing writes."""
        return self.path / "shards"

    @property
    def index(self) -> Path:
        """The database of what is where."""
        return self.path / "index.sqlite"

    def member(self, run: int) -> Path:
        """The file of one run."""
        return self.members / f"{run:08d}.safetensors"

    def note(self, run: int) -> Path:
        """The text of a run that was given up."""
        return self.dropped / f"{run:08d}.json"

    def is_done(self, run: int) -> bool:
        """Whether a run has been kept or given up, and not been packed yet."""
        return self.member(run).exists() or self.note(run).exists()

    def files(self) -> Iterator[Path]:
        """All files that hold weights, shards first."""
        for place in (self.shards, self.members):
            yield from sorted(place.glob("[0-9]*.safetensors"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps other writers away from the zoo, which any number may read meanwhile.

        On a disk without locks, as some network file systems are, it warns.

        Raises:
            CosetError: Another process trains or packs this zoo.
        """
        with sole_writer(self.path / ".writer") as alone:
            if alone is False:
                raise CosetError(
                    f"got the zoo {self.path}, which another process trains or packs",
                    "needed one writer at a time",
                    "wait until it ends",
                )
            if alone is None:
                warnings.warn(
                    f"the disk of {self.path} keeps no locks: see that nothing else trains or "
                    "packs this zoo meanwhile",
                    stacklevel=4,
                )
            yield
