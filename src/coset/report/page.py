"""A page: headline numbers, sections of tables, figures and pictures, and the raw numbers as JSON.

The page is one HTML file that loads nothing: styles, figures and pictures are inside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coset.files import write_text


@dataclass(frozen=True)
class Headline:
    """One large number at the top of the page."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under column names.

    Attributes:
        columns: The names.
        rows: A text for each column; the first names the row.
        words: Numbers of the columns that hold words, not numbers.
        caption: A line below.
        faint: Rows shown greyed below the others, such as published ones.
        tones: For words that are coloured, one of ``"good"``, ``"bad"``, ``"open"``.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    caption: str = ""
    faint: Sequence[Sequence[str]] = ()
    tones: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A drawing as SVG text, made by :mod:`coset.report.figures` or :mod:`coset.report.charts`.

    Attributes:
        svg: The drawing.
        caption: What to see.
        title: Above it.
        csv: Its numbers, to be kept by whoever reads the page.
        name: Of the file with the numbers.
    """

    svg: str
    caption: str = ""
    title: str = ""
    csv: str = ""
    name: str = "figure"

    @property
    def address(self) -> str:
        """The numbers as a data address."""
        return "data:text/csv;charset=utf-8," + quote(self.csv)


@dataclass(frozen=True)
class Picture:
    """A small picture as a data address, with the lines under it."""

    address: str
    title: str
    note: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Gallery:
    """A row of pictures."""

    pictures: Sequence[Picture]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, a few words, and what is shown under them.

    Attributes:
        title: The heading.
        text: Below it.
        tables: First.
        figures: Then.
        galleries: Last.
        notes: What a reader must know, above all of it.
        small: Lines at the end, in small print.
        anchor: Where links lead to.
    """

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    galleries: Sequence[Gallery] = ()
    notes: Sequence[str] = ()
    small: Sequence[str] = ()
    anchor: str = ""


@dataclass(frozen=True)
class Page:
    """Everything a report shows.

    Attributes:
        title: The heading.
        lead: What was done, in a sentence or two.
        headlines: A few large numbers.
        sections: The body.
        numbers: What the page was made from; written into it as JSON, which has ``null`` for
            numbers that are none.
        footer: Version, seed and the like.
        findings: What was found, a sentence each, below the lead.
    """

    title: str
    lead: str
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    footer: str = ""
    findings: Sequence[str] = ()


def render(page: Page) -> str:
    """The page as HTML; every text in it is escaped, but the figures, which are our own."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("coset.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html")
    return template.render(page=page, numbers=_as_json(page.numbers))


def _as_json(value: Any) -> Any:
    """The same with None for NaN and infinities: browsers cannot read a page's JSON with them."""
    if isinstance(value, Mapping):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_page(path: str | Path, page: Page) -> None:
    """Writes the page as one file, whole or not at all."""
    write_text(path, render(page))
