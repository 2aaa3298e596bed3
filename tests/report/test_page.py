import json
import re

import pytest

from coset.report import (
    Figure,
    Finding,
    Gallery,
    Headline,
    Page,
    Picture,
    Section,
    Table,
    render,
    write_page,
)

NASTY = "<script>alert('x')</script>&\"'"


def nasty_page():
    section = Section(
        NASTY,
        NASTY,
        tables=[Table([NASTY, "b"], [[NASTY, "1"]], caption=NASTY)],
        figures=[Figure("<svg id='own'></svg>", NASTY)],
        galleries=[Gallery([Picture("data:image/png;base64,", NASTY, NASTY, wrong=True)], NASTY)],
    )
    return Page(
        NASTY, NASTY, [Headline(NASTY, NASTY, NASTY)], [section], {"</script>": NASTY}, NASTY
    )


def test_every_text_is_escaped_and_figures_are_not():
    page = render(nasty_page())
    assert "<script>alert" not in page
    assert "<svg id='own'>" in page
    assert page.count("</script>") == 1


def test_numbers_survive_as_json():
    page = render(nasty_page())
    text = re.search(r'id="numbers">(.*?)</script>', page, re.S).group(1)
    assert json.loads(text) == {"</script>": NASTY}


def test_numbers_that_are_none_are_null():
    """As browsers read it: JSON has no word for them."""
    numbers = {"a": [float("nan"), 1.5], "b": {"c": (float("inf"), "NaN", 3)}}
    page = render(Page("a", "b", numbers=numbers))
    text = re.search(r'id="numbers">(.*?)</script>', page, re.S).group(1)
    read = json.loads(text, parse_constant=pytest.fail)
    assert read == {"a": [None, 1.5], "b": {"c": [None, "NaN", 3]}}


def test_the_page_may_load_nothing():
    assert "default-src 'none'" in render(Page("a", "b"))


def test_columns_of_words_are_marked():
    page = render(Page("a", "b", sections=[Section("s", tables=[Table(["x", "y"], [["u", "1"]])])]))
    assert '<td role="cell" data-column="x" class="word">u</td>' in page


def test_written_whole(tmp_path):
    path = tmp_path / "report.html"
    write_page(path, Page("title", "lead"))
    assert path.read_text() == render(Page("title", "lead"))
    with pytest.raises(TypeError):
        write_page(path, Page("title", "lead", numbers={"bad": object()}))
    assert path.read_text() == render(Page("title", "lead"))


def test_findings_lead_to_their_sections():
    page = render(Page("a", "b", findings=[Finding("Wide.", "It is.", "wide")]))
    assert '<strong><a href="#wide">Wide.</a></strong> It is.' in page
