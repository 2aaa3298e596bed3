"""Runs: from cells to records, again after a stop, and everything that can be wrong with a file."""

import json
import math
import os
import subprocess
import sys
import time

import pytest

from coset import studies
from coset.engines import Serial
from coset.errors import CosetError
from coset.report import render
from coset.studies.page import build_page
from coset.studies.records import finite, read_record
from coset.studies.registry import study_named
from coset.studies.runs import Run

NAME = "functional-diversity"
KILLED = "min-mass"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "tiny"
    return studies.run(NAME, folder, scale="tiny", seeds=(0, 1, 2), engine=Serial())


@pytest.fixture
def copied(made, tmp_path):
    import shutil

    return shutil.copytree(made.folder, tmp_path / "copy")


def first_file(folder):
    return sorted(folder.glob("records/*/*.json"))[0]


def test_a_record_says_what_it_depends_on(made):
    assert [record.seed for record in made.records] == [0, 1, 2]
    record = made.records[0]
    assert (record.study, record.scale, record.threads) == (NAME, "tiny", 1)
    assert record.seconds > 0
    assert record.peak_memory > 1e6
    assert {"coset", "torch", "numpy"} <= record.versions.keys()
    assert len(record.data) == 16
    assert not record.is_changed
    facts = json.loads(first_file(made.folder).read_text())
    asked = "study cell scale seed values seconds peak_memory threads versions revision data"
    assert {*asked.split(), "warnings"} <= facts.keys()


def test_equal_seeds_give_equal_values(made, tmp_path):
    again = studies.run(NAME, tmp_path / "again", scale="tiny", seeds=[0], engine=Serial())
    assert again.records[0].values == made.records[0].values


def test_a_run_goes_on_where_it_stopped(copied):
    files = sorted(copied.glob("records/*/*.json"))
    before = {path: path.stat().st_mtime_ns for path in files[1:]}
    files[0].unlink()
    done = []
    found = studies.run(
        NAME, copied, scale="tiny", engine=Serial(), progress=lambda _, line: done.append(line)
    )
    assert len(done) == 1
    assert len(found.records) == 3
    assert {path: path.stat().st_mtime_ns for path in files[1:]} == before


def test_a_cell_whose_record_is_damaged_is_computed_again(copied):
    path = first_file(copied)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(CosetError, match=path.name):
        Run.open(copied)
    found = studies.run(NAME, copied, scale="tiny", seeds=(0, 1, 2), engine=Serial())
    assert len(found.records) == 3


def test_a_kill_in_the_middle_computes_no_cell_twice_and_leaves_none_out(tmp_path):
    command = [sys.executable, "-m", "coset", "study", "run", KILLED, "--scale", "tiny"]
    command += ["--out", "run", "--engine", "serial"]
    begun = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while len(found := list(tmp_path.glob("run/records/*/*.json"))) < 2:
            assert begun.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        begun.kill()  # kill -9
        begun.wait()
    found = list(tmp_path.glob("run/records/*/*.json"))
    before = {path: path.read_bytes() for path in found}
    study = study_named(KILLED)
    whole = len(study.cells["tiny"]) * len(study.seeds["tiny"])
    assert 2 <= len(before) < whole
    done = []
    again = studies.run(
        KILLED,
        tmp_path / "run",
        scale="tiny",
        engine=Serial(),
        progress=lambda _, line: done.append(line),
    )
    assert len(done) == whole - len(before)
    assert len(again.records) == whole == len({record.key for record in again.records})
    # the date of writing and the CPU time are part of a record: these were not written again
    assert all(path.read_bytes() == text for path, text in before.items())
    places = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in places if ".tmp" in path.name], "half-written files stay"


def test_records_that_no_cell_of_today_wrote_are_set_aside(copied, monkeypatch):
    from dataclasses import replace

    from coset.studies import running

    newer = replace(study_named(NAME), revision=99)
    monkeypatch.setattr(running, "study_named", lambda name: newer)
    found = studies.run(NAME, copied, scale="tiny", seeds=[0], engine=Serial())
    assert [(record.seed, record.revision) for record in found.records] == [(0, 99)]
    assert len(list((copied / "records" / NAME / "old").glob("*.json"))) == 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda facts: facts.pop("seed"), "seed"),
        (lambda facts: facts.update(seed="0"), "seed"),
        (lambda facts: facts.update(more=1), "more"),
        (lambda facts: facts["values"].update(pearson=math.nan), "NaN"),
        (lambda facts: facts.update(scale="small"), "scale"),
    ],
)
def test_a_record_that_is_none_is_refused_by_name(copied, change, word):
    path = first_file(copied)
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(CosetError, match=word) as refused:
        Run.open(copied)
    assert path.name in str(refused.value)


def test_a_number_changed_by_hand_is_noticed(copied):
    path = first_file(copied)
    facts = json.loads(path.read_text())
    facts["values"]["pearson"] = 0.0
    path.write_text(json.dumps(facts))
    opened = Run.open(copied)
    assert opened.records[0].is_changed
    assert all("changed" in verdict.why for verdict in opened.verdicts)
    assert any("changed" in line for line in opened.cautions(opened.studies[0]))
    again = studies.run(NAME, copied, scale="tiny", seeds=(0, 1, 2), engine=Serial())
    assert not any(record.is_changed for record in again.records)


def test_two_records_of_one_key_are_both_kept(copied):
    path = first_file(copied)
    facts = json.loads(path.read_text())
    facts["values"]["pearson"] = 0.0625
    path.with_name("other.json").write_text(json.dumps(facts))
    opened = Run.open(copied)
    assert len(opened.records) == 4
    ((one, other),) = opened.disagreements
    assert one.key == other.key
    assert all(verdict.verdict == "undecided" for verdict in opened.verdicts)
    told = next(v for v in opened.verdicts if v.claim == "weak correlation")
    agreed = [r.values["pearson"] for r in opened.records if r.seed != one.seed]
    assert told.ours == pytest.approx(sum(agreed) / 2)
    page = render(build_page(opened))  # both are shown
    assert f"two records of {one.name}" in page
    assert f"{one.values['pearson']!r}" in page
    assert "0.0625" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "functional-diversty"}, "did you mean functional-diversity"),
        ({"scale": "smal"}, "did you mean small"),
        ({"seeds": [-1]}, "seed=-1"),
        ({"seeds": [0.5]}, "seed=0.5"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_file_is_written(arguments, words, tmp_path):
    given = {"name": NAME, "scale": "tiny"} | arguments
    with pytest.raises(CosetError, match=words):
        studies.run(given.pop("name"), tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_folder_holds_one_scale_and_nothing_else(made, tmp_path):
    with pytest.raises(CosetError, match="'tiny'"):
        studies.run(NAME, made.folder, scale="demo")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CosetError, match="something else"):
        studies.run(NAME, tmp_path, scale="tiny")
    with pytest.raises(CosetError, match="holds no run"):
        Run.open(tmp_path)


def test_the_papers_own_size_is_planned_and_not_run(tmp_path):
    found = studies.run(NAME, tmp_path / "paper", scale="paper")
    assert found.records == found.verdicts == ()
    assert not (tmp_path / "paper").exists()


def test_numbers_that_are_not_finite_become_null_with_a_warning():
    values, warnings = finite({"a": math.inf, "b": [[1.0, math.nan]], "c": "x"})
    assert values == {"a": None, "b": [[1.0, None]], "c": "x"}
    assert [line.split(":")[0] for line in warnings] == ["a", "b"]


def test_reading_a_run_does_not_wait_for_torch(made):
    script = (
        "import sys; import coset.studies as s; s.names(); run = s.Run.open(sys.argv[1]); "
        "assert run.verdicts; s.write_report(run, sys.argv[1] + '/page.html'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(made.folder)], check=True, env=os.environ)
    (made.folder / "page.html").unlink()


def test_a_record_comes_back_as_it_was(made):
    path = first_file(made.folder)
    assert read_record(path) in made.records
