"""Exhibits: what records show, as charts and tables of plain numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coset.report.charts import Chart, Curve
from coset.studies.records import Record
from coset.studies.study import Exhibit, ExplorerExhibit, Panel, Series, TableExhibit

_DASH = "–"


def charts_of(exhibit: Exhibit, records: Sequence[Record]) -> list[Chart]:
    """The panels of a figure that have numbers."""
    charts = []
    for panel in exhibit.panels:
        curves = [_curve(panel, series, records) for series in panel.series]
        kept = tuple(curve for curve in curves if curve is not None)
        if kept:
            charts.append(
                Chart(
                    panel.kind,
                    kept,
                    panel.title,
                    panel.x,
                    panel.y,
                    panel.levels,
                    panel.marks,
                    panel.log,
                    panel.diagonal,
                    panel.limits,
                )
            )
    return charts


def shown_by(exhibit: Exhibit, records: Sequence[Record]) -> list[str]:
    """The names of the records that a figure is made from."""
    wanted = [(series.cells, series.x) for panel in exhibit.panels for series in panel.series]
    return sorted(
        {
            record.name
            for record in records
            for where, name in wanted
            if record.fits(where) and record.look_up(name) is not None
        }
    )


def explored_by(exhibit: ExplorerExhibit, records: Sequence[Record]) -> Record | None:
    """The record that an explorer shows: that of the first seed that has all it needs."""
    return next(
        (
            record
            for record in sorted(records, key=lambda record: record.seed)
            if record.fits(exhibit.cells)
            and all(record.values.get(name) is not None for name in exhibit.quantities)
        ),
        None,
    )


def _curve(panel: Panel, series: Series, records: Sequence[Record]) -> Curve | None:
    mine = [
        record
        for record in records
        if record.fits(series.cells)
        and record.look_up(series.x) is not None
        and (not series.y or record.look_up(series.y) is not None)
    ]
    if not mine:
        return None
    match panel.kind:
        case "histogram":
            values = [v for record in mine for v in _numbers(record.look_up(series.x))]
            return Curve(series.label, values) if values else None
        case "points":
            return _pairs(series, mine[:1])
        case "density":
            return _pairs(series, mine)
        case "heat":
            return _matrix(series, mine[:1] if panel.first else mine)
        case _:
            found = _means(series, mine[:1] if panel.first else mine)
            band = _numbers(mine[0].look_up(series.band)) if series.band else ()
            return found and replace(found, band=band or found.band, dots=series.dots)


def _numbers(value: Any) -> list[float]:
    parts = value if isinstance(value, list | tuple) else [value]
    return [float(part) for part in parts if isinstance(part, int | float)]


def _pairs(series: Series, records: Sequence[Record]) -> Curve | None:
    pairs = [
        (x, y)
        for record in records
        for x, y in zip(record.look_up(series.x), record.look_up(series.y), strict=True)
        if x is not None and y is not None
    ]
    if not pairs:
        return None
    return Curve(series.label, [x for x, _ in pairs], [y for _, y in pairs])


def _matrix(series: Series, records: Sequence[Record]) -> Curve:
    """The mean of matrices, whose axes are the values named after them."""
    matrices = [record.look_up(series.y) for record in records]
    rows, columns = len(matrices[0]), len(matrices[0][0])
    mean = [
        [_mean([m[i][j] for m in matrices if m[i][j] is not None]) for j in range(columns)]
        for i in range(rows)
    ]
    first = records[0]
    return Curve(
        series.label,
        list(first.look_up(f"{series.y}_x")),
        list(first.look_up(f"{series.y}_y")),
        matrix=mean,
    )


def _means(series: Series, records: Sequence[Record]) -> Curve | None:
    """The mean over seeds at each x, which is a list in every record, or one number in each."""
    found: dict[Any, list[float]] = {}
    for record in records:
        x, y = record.look_up(series.x), record.look_up(series.y)
        xs, ys = (x, y) if isinstance(y, list | tuple) else ([x], [y])
        for place, value in zip(xs, ys, strict=True):
            if isinstance(value, int | float):
                found.setdefault(place, []).append(float(value))
    if not found:
        return None
    words = any(isinstance(place, str) for place in found)
    places = list(found) if words else sorted(found)
    return Curve(
        series.label,
        places,
        [_mean(found[place]) for place in places],
        [_deviation(found[place]) for place in places],
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def rows_of(exhibit: TableExhibit, records: Sequence[Record]) -> list[list[str]]:
    """Mean and standard error over the seeds for each row and column that has numbers."""
    rows = []
    for label, key, where in exhibit.rows:
        mine = [record for record in records if record.fits(where)]
        cells = [
            _shown([record.values.get(name.format(row=key)) for record in mine])
            for _, name in exhibit.columns
        ]
        if any(cell != _DASH for cell in cells):
            rows.append([label, *cells])
    return rows


def _shown(values: Sequence[Any]) -> str:
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if not numbers:
        return _DASH
    mean = f"{_mean(numbers):.4g}"
    if len(numbers) < 2:
        return mean
    return f"{mean} ± {_deviation(numbers) / math.sqrt(len(numbers)):.2g}"
