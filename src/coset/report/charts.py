"""Charts of plain numbers, each with its data as CSV.  Nothing here waits for torch."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from coset.errors import CosetError
from coset.report.drawing import FAINT, INK, INLIER, OUTLIER, drawing, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (INLIER, OUTLIER, "#2f855a", "#805ad5", "#b7791f", "#c53030", "#319795", "#718096")
"""Of the series of a chart, in their order."""

_BINS, _DOTS, _CELLS, _DRAWN = 40, 1500, 45, 120
"""Bars of a histogram; most dots of one series; hexagons across a density; most cells as paths."""

Numbers = Sequence[float]


@dataclass(frozen=True)
class Curve:
    """One series of a chart: its label, its numbers, and the half-width of a band around ``y``.

    The points of a line stand alone if ``dots``.
    """

    label: str
    x: Sequence[Any]
    y: Numbers = ()
    band: Numbers = ()
    matrix: Sequence[Numbers] = ()
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """One set of axes; see :class:`coset.studies.study.Panel` for what the fields mean."""

    kind: Literal["lines", "points", "histogram", "heat", "density", "bars"]
    curves: tuple[Curve, ...]
    title: str = ""
    x: str = ""
    y: str = ""
    levels: tuple[tuple[str, float], ...] = ()
    marks: tuple[tuple[str, float], ...] = ()
    log: str = ""
    diagonal: bool = False
    limits: tuple[float, float] | None = None


def draw_charts(
    charts: Sequence[Chart], *, name: str = "charts", facts: Mapping[str, Any] | None = None
) -> str:
    """Charts side by side as SVG text.

    Args:
        charts: What is drawn.
        name: Different for each figure of a page.
        facts: What the numbers were made from, kept inside the SVG.
    """
    for chart in charts:
        if not any(_length(curve) for curve in chart.curves):
            raise CosetError(
                f"got no numbers for the chart {chart.title or name!r}",
                "needed a finite number at least",
                "leave the chart out",
            )
    with drawing(len(charts), shared=False) as (figure, (row,)):
        for panel, chart in zip(row, charts, strict=True):
            _DRAWERS[chart.kind](panel, chart)
            _finish(panel, chart)
        return svg(figure, name, facts)


def draw_panels(
    charts: Sequence[Chart], *, name: str = "charts", facts: Mapping[str, Any] | None = None
) -> str:
    """Charts as one SVG text each: side by side where there is room, else below each other."""
    drawn = [
        draw_charts([chart], name=f"{name}-{place}", facts=facts)
        for place, chart in enumerate(charts, 1)
    ]
    return "".join(drawn)


def as_csv(charts: Sequence[Chart]) -> str:
    """The numbers of charts, a row each.

    >>> print(as_csv([Chart("lines", (Curve("a", [1], [2.5]),), title="t")]), end="")
    panel,series,x,y,band
    t,a,1,2.5,
    """
    return rows_as_csv(
        ("panel", "series", "x", "y", "band"),
        (
            (chart.title, curve.label, *row)
            for chart in charts
            for curve in chart.curves
            for row in _rows(curve)
        ),
    )


def nested_as_csv(numbers: Mapping[str, Any]) -> str:
    """Numbers and nested lists of them, a row each.

    >>> print(nested_as_csv({"losses": [[0.5, 0.25]], "name": "a"}), end="")
    quantity,place,value
    losses,1.1,0.5
    losses,1.2,0.25
    name,,a
    """
    return rows_as_csv(
        ("quantity", "place", "value"),
        (
            (name, ".".join(map(str, place)), part)
            for name, value in numbers.items()
            for place, part in _leaves(value)
        ),
    )


def rows_as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under their column names, numbers with six digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_short(value) for value in row] for row in rows)
    return text.getvalue()


def _leaves(value: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    if not isinstance(value, list | tuple):
        yield (), value
        return
    for number, part in enumerate(value, 1):
        for place, leaf in _leaves(part):
            yield (number, *place), leaf


def _rows(curve: Curve) -> Iterator[tuple[Any, Any, Any]]:
    if curve.matrix:
        for y, line in zip(curve.y, curve.matrix, strict=True):
            for x, value in zip(curve.x, line, strict=True):
                yield x, y, value
        return
    for k, x in enumerate(curve.x):
        yield x, curve.y[k] if curve.y else "", curve.band[k] if curve.band else ""


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _length(curve: Curve) -> int:
    return len(curve.x)


def _lines(panel: "Axes", chart: Chart) -> None:
    for curve, colour in zip(chart.curves, _colours(), strict=False):
        mark = "o" if len(curve.x) < 30 or curve.dots else ""
        panel.plot(
            curve.x,
            curve.y,
            marker=mark,
            markersize=3.5,
            color=colour,
            label=curve.label,
            lw=0 if curve.dots else 1.6,
        )
        if curve.band and any(curve.band):
            low = [y - b for y, b in zip(curve.y, curve.band, strict=True)]
            high = [y + b for y, b in zip(curve.y, curve.band, strict=True)]
            panel.fill_between(curve.x, low, high, color=colour, alpha=0.18, lw=0)


def _points(panel: "Axes", chart: Chart) -> None:
    for curve, colour in zip(chart.curves, _colours(), strict=False):
        step = max(1, math.ceil(len(curve.x) / _DOTS))
        panel.plot(
            curve.x[::step],
            curve.y[::step],
            "o",
            markersize=2.2 if len(curve.x) > 400 else 4.5,
            markeredgewidth=0,
            alpha=0.55,
            color=colour,
            label=curve.label,
        )


def _histogram(panel: "Axes", chart: Chart) -> None:
    import numpy as np

    every = [value for curve in chart.curves for value in curve.x]
    low, high = min(every), max(every)
    if "x" in chart.log:
        edges = np.geomspace(max(low, 1e-300), max(high, low * 1.001), _BINS + 1)
    else:
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    for curve, colour in zip(chart.curves, _colours(), strict=False):
        panel.hist(
            curve.x,
            bins=edges.tolist(),
            weights=[1 / len(curve.x)] * len(curve.x),
            histtype="stepfilled",
            alpha=0.5,
            edgecolor=colour,
            color=colour,
            label=curve.label,
        )


def _heat(panel: "Axes", chart: Chart) -> None:
    (curve,) = chart.curves
    many = len(curve.x) * len(curve.y) > _DRAWN
    image = panel.pcolormesh(
        list(curve.x),
        list(curve.y),
        [list(row) for row in curve.matrix],
        cmap="cividis",
        edgecolors="none" if many else "face",  # no seams where a browser scales
        lw=0 if many else 0.4,
        rasterized=many,  # a path for each pixel of a picture takes a hundred bytes
    )
    if chart.limits is not None:
        image.set_clim(*chart.limits)
    panel.figure.colorbar(image, ax=panel, label=curve.label)


def _density(panel: "Axes", chart: Chart) -> None:
    for curve in chart.curves:
        panel.hexbin(curve.x, curve.y, gridsize=_CELLS, mincnt=1, cmap="cividis", lw=0)


def _bars(panel: "Axes", chart: Chart) -> None:
    width = 0.8 / len(chart.curves)
    for k, (curve, colour) in enumerate(zip(chart.curves, _colours(), strict=False)):
        places = [i + (k - (len(chart.curves) - 1) / 2) * width for i in range(len(curve.x))]
        panel.bar(
            places,
            curve.y,
            width,
            yerr=curve.band or None,
            color=colour,
            alpha=0.75,
            ecolor=INK,
            label=curve.label,
        )
    words = [str(word) for word in chart.curves[0].x]
    tilt = 30 if sum(map(len, words)) > 36 else 0
    panel.set_xticks(range(len(words)), words, rotation=tilt, ha="right" if tilt else "center")


_DRAWERS = {
    "lines": _lines,
    "points": _points,
    "histogram": _histogram,
    "heat": _heat,
    "density": _density,
    "bars": _bars,
}


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _finish(panel: "Axes", chart: Chart) -> None:
    if "x" in chart.log:
        panel.set_xscale("log")
    if "y" in chart.log:
        panel.set_yscale("log")
    for (label, value), shade in zip(chart.levels, _greys(), strict=False):
        panel.axhline(value, color=shade, lw=1, ls="--", label=label)
    for (label, value), shade in zip(chart.marks, _greys(), strict=False):
        panel.axvline(value, color=shade, lw=1, ls="--", label=label)
    if chart.diagonal:
        low = max(panel.get_xlim()[0], panel.get_ylim()[0])
        high = min(panel.get_xlim()[1], panel.get_ylim()[1])
        panel.plot([low, high], [low, high], color=FAINT, lw=1, ls="--")
    if chart.limits is not None and chart.kind != "heat":
        panel.set_ylim(*chart.limits)
    panel.set(xlabel=chart.x, ylabel=chart.y)
    panel.set_title(chart.title, parse_math=False)
    handles, labels = panel.get_legend_handles_labels()
    shown = [(h, text) for h, text in zip(handles, labels, strict=True) if text]
    if shown and chart.kind not in ("heat", "density"):
        panel.legend([h for h, _ in shown], [text for _, text in shown], fontsize=8)


def _greys() -> Iterator[str]:
    while True:
        yield from ("#4a5568", "#a0aec0")
