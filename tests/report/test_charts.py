"""Charts of plain numbers: every kind draws, and the numbers come along."""

import pytest

from coset.errors import CosetError
from coset.report.charts import Chart, Curve, as_csv, draw_charts

KINDS = {
    "lines": Curve("a", [0.0, 1.0], [1.0, 2.0], [0.1, 0.1]),
    "points": Curve("a", [0.0, 1.0], [1.0, 2.0]),
    "histogram": Curve("a", [0.0, 1.0, 1.5]),
    "heat": Curve("a", [0.0, 1.0], [0.0, 1.0], matrix=[[1.0, 2.0], [3.0, 4.0]]),
    "density": Curve("a", [0.0, 1.0], [1.0, 2.0]),
    "bars": Curve("a", ["one", "two"], [1.0, 2.0], [0.1, 0.1]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_with_its_facts_inside(kind):
    facts = {"records": ["s/a/seed 0"]}
    drawn = draw_charts([Chart(kind, (KINDS[kind],), "title")], name=kind, facts=facts)
    assert drawn.startswith("<svg")
    assert "s/a/seed 0" in drawn
    assert drawn == draw_charts([Chart(kind, (KINDS[kind],), "title")], name=kind, facts=facts)


def test_a_matrix_is_written_with_its_axes():
    rows = as_csv([Chart("heat", (KINDS["heat"],))]).splitlines()
    assert rows[1:] == [",a,0,0,1", ",a,1,0,2", ",a,0,1,3", ",a,1,1,4"]


def test_a_chart_without_numbers_is_refused():
    with pytest.raises(CosetError, match="no numbers"):
        draw_charts([Chart("lines", (Curve("a", []),), "empty")])
