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
from coset.report.drawing import ON_DARK
from coset.report.scripts import explorer_scripts, fingerprint


@dataclass(frozen=True)
class Headline:
    """One large number at the top of the page."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """What was found, in words: about what, and the anchor of the section that shows it."""

    title: str
    text: str
    anchor: str = ""


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
        svg: The drawing; or several, which stand side by side where there is room.
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
        return data_address(self.csv)


def data_address(csv: str) -> str:
    """Numbers as an address that holds them."""
    return "data:text/csv;charset=utf-8," + quote(csv, safe=",:/()[]|=*+")


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
class Explorer:
    """Something that the reader can try: what is drawn follows what is picked.

    Attributes:
        kind: Who draws it: a name in ``KINDS`` of ``templates/explorers.js``.
        data: The numbers, as JSON values.
        caption: What to see.
        title: Above it.
        csv: The numbers, to be kept by whoever reads the page.
        name: Different for each explorer of a page.
        facts: What the numbers were made from, such as the names of records.
    """

    kind: str
    data: Mapping[str, Any]
    caption: str = ""
    title: str = ""
    csv: str = ""
    name: str = "explorer"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The numbers as a data address."""
        return data_address(self.csv)

    @property
    def embedded(self) -> dict[str, Any]:
        """What the page holds of it."""
        return {**self.data, "facts": dict(self.facts)}


@dataclass(frozen=True)
class Section:
    """A heading, a few words, and what is shown under them.

    Attributes:
        title: The heading.
        text: Below it, with an empty line between paragraphs.
        tables: First.
        figures: Then.
        explorers: Then.
        galleries: Last.
        notes: What a reader must know, above all of it.
        small: Lines at the end, in small print.
        anchor: Where links lead to.
    """

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    explorers: Sequence[Explorer] = ()
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
        findings: What was found, below the lead.
    """

    title: str
    lead: str
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    footer: str = ""
    findings: Sequence[Finding] = ()


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
    explored = any(section.explorers for section in page.sections)
    scripts = explorer_scripts() if explored else ()
    return environment.get_template("report.html").render(
        page=page,
        numbers=_as_json(page.numbers),
        scripts=scripts,
        policy=_policy(scripts),
        on_dark=ON_DARK,
    )


def _policy(scripts: Sequence[str]) -> str:
    """What the page may do: show what is in it, run exactly these scripts, and load nothing."""
    allowed = f"; script-src {' '.join(map(fingerprint, scripts))}" if scripts else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}"


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
