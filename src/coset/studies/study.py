"""What a study is: a grid of cells, the published claims it tests, and what it shows.

A study is data. Its numbers come from one function of a cell and a seed, named by its address, so
that a study can be listed, judged and shown without torch.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCALES = ("tiny", "demo", "small", "paper")
"""Seconds; a share of the demo's ten minutes; an hour; the papers' own sizes, never run here."""

LEAST_SEEDS = 3
"""Fewer repetitions give no interval worth a verdict."""

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One pure task of a study: what it depends on, apart from the seed.

    Attributes:
        name: Different for each cell of a study.
        parameters: All that its numbers depend on, as JSON values.
        seconds: Estimated CPU seconds for one seed.
    """

    name: str
    parameters: Parameters
    seconds: float = 1.0

    def fits(self, where: Parameters) -> bool:
        """Whether all named parameters have these values."""
        return fits(self.parameters, where)


def fits(parameters: Parameters, where: Parameters) -> bool:
    """Whether all named parameters have these values.

    A cell whose parameters name a ``cause`` looks for the cause of a claim that was not reproduced:
    it is judged and shown only where the cause is asked for.

    >>> fits({"k": 1, "data": "digits"}, {"k": 1})
    True
    >>> looking = {"k": 1, "cause": "rate"}
    >>> fits(looking, {"k": 1}), fits(looking, {"cause": "rate"})
    (False, True)
    """
    if "cause" in parameters and "cause" not in where:
        return False
    return all(parameters.get(name) == value for name, value in where.items())


@dataclass(frozen=True)
class Claim:
    """One published statement, and what would count as reproducing it.

    A claim on the *size* holds if our 95 % interval lies within ``tolerance`` of ``published``; a
    claim on the *sign* if it lies on one side of ``bound``.

    Attributes:
        name: Different for each claim of a study.
        says: The statement in words.
        source: The paper.
        where: Its figure, table or section.
        quantity: The name of the number in the records' values.
        kind: What is judged.
        published: The published number, where there is one.
        tolerance: For a size: how far ours may be from it.
        side: For a sign: where our number must lie.
        bound: For a sign: of what.
        cells: The cells whose mean over a seed is judged, by their parameters.
        scales: Where our number can be compared with the published one.
    """

    name: str
    says: str
    source: str
    where: str
    quantity: str
    kind: Literal["size", "sign"] = "sign"
    published: float | None = None
    tolerance: float = 0.0
    side: Literal["above", "below"] = "above"
    bound: float = 0.0
    cells: Parameters = field(default_factory=dict)
    scales: tuple[str, ...] = ("small", "paper")


@dataclass(frozen=True)
class Control:
    """A number whose right value is known: where it is off, no number of the study is believed.

    Attributes:
        name: Different for each control of a study.
        says: What was done, in words.
        quantity: The name of the number in the records' values.
        most: Its largest allowed size.
    """

    name: str
    says: str
    quantity: str
    most: float


@dataclass(frozen=True)
class Series:
    """What a panel draws: the names of numbers, or lists of them, in values or parameters.

    Attributes:
        label: In the legend.
        x: Name of the numbers along the horizontal axis.
        y: Name of those along the vertical axis.
        cells: The cells they are taken from, by their parameters.
        band: Name of the half-width of a band around a line of the first seed.
        dots: Whether a line's points stand alone.
    """

    label: str
    x: str
    y: str = ""
    cells: Parameters = field(default_factory=dict)
    band: str = ""
    dots: bool = False


PanelKind = Literal["lines", "points", "histogram", "heat", "density", "bars"]


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    ``lines``: means over the seeds with a band of one standard deviation, or the first seed by
    itself; ``points``: those of the first seed; ``histogram``: of all seeds; ``heat``: a matrix,
    the mean over the seeds; ``density``: pairs, of all seeds; ``bars``: a number for each word.

    Attributes:
        kind: How the series are drawn.
        series: What is drawn.
        title: Above the panel.
        x: Label of the axis.
        y: Label of the axis.
        levels: Horizontal lines, such as published values, by their label.
        marks: Vertical lines by their label.
        log: The axes that are logarithmic: ``""``, ``"x"``, ``"y"``, ``"xy"``.
        diagonal: Whether the line x = y is drawn.
        first: Whether lines or a matrix are those of the first seed, as where each seed has its own
            data.
        limits: The least and the most that the vertical axis, or the colours of a matrix, show.
    """

    kind: PanelKind
    series: tuple[Series, ...]
    title: str = ""
    x: str = ""
    y: str = ""
    levels: tuple[tuple[str, float], ...] = ()
    marks: tuple[tuple[str, float], ...] = ()
    log: str = ""
    diagonal: bool = False
    first: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Exhibit:
    """A figure of panels side by side."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    where: str = ""


@dataclass(frozen=True)
class TableExhibit:
    """A table: a row for each set of cells, a column for each number.

    Attributes:
        name: Different for each exhibit of a study.
        title: Above it.
        caption: What to see.
        rows: Label of each row and the cells it is the mean of, by their parameters and ``seed``.
        columns: Label of each column and the name of its number, whose ``{row}`` is filled in.
        where: Which table of the paper it stands for.
        published: Published rows, shown greyed below ours: never a mean of both.
    """

    name: str
    title: str
    caption: str
    rows: tuple[tuple[str, str, Parameters], ...]
    columns: tuple[tuple[str, str], ...]
    where: str = ""
    published: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class ExplorerExhibit:
    """Something to try on the page, with the numbers of the first seed's record.

    Attributes:
        name: Different for each exhibit of a study.
        kind: Which explorer; see :class:`coset.report.Explorer`.
        title: Above it.
        caption: What to see.
        quantities: The names of its numbers in the record's values.
        cells: The cells it may take them from.
    """

    name: str
    kind: str
    title: str
    caption: str
    quantities: tuple[str, ...]
    cells: Parameters = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True)
class Study:
    """A published comparison that can be run again.

    Attributes:
        name: As in ``coset study run NAME``.
        title: A line.
        question: What is asked, and what is done to answer it.
        source: The paper.
        revision: Raised whenever the same parameters would give other numbers.
        compute: Address of the function of a cell, ``module:function``.
        cells: The grid of each scale.
        seeds: The repetitions of each scale.
        claims: What the paper says.
        controls: What must hold for any of it to be believed.
        exhibits: What is shown.
        shrunk: What was made smaller than in the paper, and how.
        learnt: What came out at scale small, and why, where it is known.
    """

    name: str
    title: str
    question: str
    source: str
    revision: int
    compute: str
    cells: Mapping[str, Sequence[Cell]]
    seeds: Mapping[str, tuple[int, ...]]
    claims: tuple[Claim, ...]
    controls: tuple[Control, ...]
    exhibits: tuple[Exhibit | TableExhibit | ExplorerExhibit, ...]
    shrunk: str = ""
    learnt: str = ""

    def wording(self, claim: Claim) -> str:
        """What a claim says, after its name where another claim says the same of something else."""
        alike = sum(other.says == claim.says for other in self.claims)
        return (
            claim.says if alike < 2 else f"{claim.name[:1].upper()}{claim.name[1:]}: {claim.says}"
        )

    def cell(self, scale: str, name: str) -> Cell:
        """A cell by its name."""
        return next(cell for cell in self.cells[scale] if cell.name == name)


def key_of(study: str, cell: Cell, seed: int, data: str, revision: int) -> str:
    """What a record is found again by: sixteen digits of a sha256 over all it depends on.

    >>> key_of("s", Cell("a", {"k": 1}), 0, "", 1) == key_of("s", Cell("b", {"k": 1}), 0, "", 1)
    True
    """
    facts = [study, dict(cell.parameters), seed, data, revision]
    text = json.dumps(facts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
