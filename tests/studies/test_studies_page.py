"""The page of a run: made from records alone, self-contained, and honest about what it lacks."""

import json
import re

import pytest

from coset import cli, studies
from coset.engines import Serial
from coset.errors import CosetError
from coset.report import render
from coset.studies.page import build_page
from coset.studies.published import published_entries
from coset.studies.runs import Run, begin

NAME = "functional-diversity"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "tiny"
    return studies.run(NAME, folder, scale="tiny", seeds=(0, 1, 2), engine=Serial())


def test_the_page_loads_nothing_and_names_its_records(made):
    html = render(build_page(made))
    loaded = re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html)
    assert loaded == []
    assert f"{NAME}/pairs/seed 0" in html  # inside the figure
    assert "data:text/csv" in html
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL)[1])
    assert len(numbers["verdicts"]) == len(made.verdicts)


def test_equal_records_give_equal_pages(made):
    assert render(build_page(made)) == render(build_page(Run.open(made.folder)))


def test_a_failed_control_is_the_first_thing_said(made, tmp_path):
    import shutil

    folder = shutil.copytree(made.folder, tmp_path / "copy")
    path = sorted(folder.glob("records/*/*.json"))[0]
    facts = json.loads(path.read_text())
    facts["values"]["control_identical"] = 0.5
    path.write_text(json.dumps(facts))
    page = build_page(Run.open(folder))
    assert "control failed" in page.findings[0].text
    html = render(page)
    assert "failed" in html


def test_an_empty_run_has_no_page(tmp_path):
    begin(tmp_path / "run", "tiny", [NAME])
    with pytest.raises(CosetError, match="without records"):
        studies.write_report(Run.open(tmp_path / "run"))


def test_the_command_line_from_run_to_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["study", "run", NAME, "--scale", "tiny", "--out", "r", "--engine", "serial"]
    assert cli.main([*words, "--seeds", "0"]) == 0
    assert cli.main(["study", "show", "r"]) == 0
    assert cli.main(["study", "list"]) == 0
    assert cli.main(["report", "r"]) == 0
    assert (tmp_path / "r" / "report.html").stat().st_size > 10_000
    assert cli.main(["report", "r", "--out", "page.html"]) == 0
    assert (tmp_path / "page.html").exists()
    assert cli.main(["study", "run", NAME, "--scale", "paper"]) == 0
    assert "cifar100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["study", "run", "functional"], "functional-diversity"),
        (["study", "run", "--scale", "huge"], "huge"),
        (["study", "run", NAME, "--engine", "dask"], "dask"),
        (["study", "show", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["report", "nowhere", "--out", "."], "folder"),
    ],
)
def test_bad_words_are_refused_in_one_line(words, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert list(tmp_path.iterdir()) == []


def test_a_small_scale_shows_published_verdicts_beside_its_numbers(made):
    """And never one of its own."""
    table = build_page(made).sections[0].tables[0]
    assert "here, at scale tiny" in table.columns
    ours = {v.claim: v.ours for v in made.verdicts}
    entries = published_entries()
    for row, claim in zip(table.rows, made.studies[0].claims, strict=True):
        entry = entries.get((NAME, claim.name))
        assert row[3] == ("not run yet" if entry is None else entry["verdict"])
        assert row[4] == f"{ours[claim.name]:.4g}"


def test_the_page_of_a_run_does_not_wait_for_torch(made):
    import subprocess
    import sys

    lines = (
        "import sys",
        "from coset import cli",
        f"assert cli.main(['report', {str(made.folder)!r}]) == 0",
        "assert 'torch' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_every_figure_has_its_numbers_its_caption_and_its_records(made):
    section = next(s for s in build_page(made).sections if s.anchor == NAME)
    assert section.figures
    for figure in section.figures:
        assert figure.caption
        assert figure.csv.count("\n") > 1
        drawings = figure.svg.split("<svg")[1:]
        assert drawings
        assert all("<metadata>" in part and f"{NAME}/pairs/seed" in part for part in drawings)


@pytest.mark.parametrize("value", ["x", [1, "a"], [[1], [2, 3]], {}, None, 10**400, True])
@pytest.mark.parametrize("name", ["pairs_inlier", "pearson", "control_identical"])
def test_a_record_changed_into_nonsense_is_named_or_shown_with_a_caution(
    made, tmp_path, name, value
):
    import shutil

    folder = shutil.copytree(made.folder, tmp_path / "copy")
    path = sorted(folder.glob("records/*/*.json"))[0]
    facts = json.loads(path.read_text())
    facts["values"][name] = value
    path.write_text(json.dumps(facts))
    changed = Run.open(folder)
    try:
        said = render(build_page(changed))
    except CosetError as error:
        said = str(error)
    assert f"{NAME}/pairs/seed 0" in said
    assert "was changed" in said
