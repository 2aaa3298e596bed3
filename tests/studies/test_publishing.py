"""What is published: the table of papers is the registry's, and every command in it exists."""

import json
import re
from pathlib import Path

from coset import cli
from coset.engines import Serial
from coset.studies import names, run
from coset.studies.published import published
from coset.studies.publishing import NOT_HERE, papers, publish, results
from coset.studies.registry import study_named
from coset.studies.runs import Run

ROOT = Path(__file__).parents[2]


def test_the_page_of_papers_is_made_from_the_claims():
    page = (ROOT / "docs" / "papers.md").read_text()
    assert page == papers(), "run: python docs/results/publish.py"
    for name in names():
        for claim in study_named(name).claims:
            assert claim.says in page
    for *_, why in NOT_HERE:
        assert why in page


def test_what_came_out_is_told_study_by_study():
    page = (ROOT / "docs" / "results.md").read_text()
    assert page == results(), "run: python docs/results/publish.py"
    pictures = re.findall(r"\]\((results/figures/[^)]*)\)", page)
    assert len(pictures) == len(published()["seeds"])
    assert all((ROOT / "docs" / picture).is_file() for picture in pictures)
    against = [e for e in published()["verdicts"] if e["verdict"] == "not reproduced"]
    for entry in against:
        assert study_named(entry["study"]).learnt, "say why, or that the cause was not found"
        assert entry["claim"] in page


def test_every_link_and_command_of_the_first_page_exists():
    page = (ROOT / "README.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)]*)\)", page) if "://" not in link]
    assert sum(link.endswith(".svg") for link in links) == 4
    assert [link for link in links if not (ROOT / link).exists()] == []
    for name in re.findall(r"`coset study run ([^` ]*)`", page):
        assert name in names()


def test_every_command_on_it_exists():
    found = set(re.findall(r"`coset ([^`]*)`", papers()))
    assert found
    for command in found:
        words = command.split()
        assert words[0] in cli.COMMANDS
        if words[:2] == ["study", "run"]:
            assert words[2] in names()
        else:
            assert words in (["study", "list"], ["report"], ["inspect"])


def test_published_pictures_are_there_for_published_verdicts():
    for name in published()["seeds"]:
        for exhibit in study_named(name).exhibits:
            if hasattr(exhibit, "panels"):
                stem = ROOT / "docs" / "results" / "figures" / f"{name}-{exhibit.name}"
                assert stem.with_suffix(".svg").is_file()
                assert stem.with_suffix(".csv").is_file()


def test_published_records_give_the_published_verdicts():
    if not published()["verdicts"]:
        return
    found = Run.open(ROOT / "docs" / "results")
    entries = {(e["study"], e["claim"]): e["verdict"] for e in published()["verdicts"]}
    assert {(v.study, v.claim): v.verdict for v in found.verdicts} == entries


def test_publishing_writes_records_figures_and_verdicts(tmp_path):
    name = "order-in-training"
    made = run(name, tmp_path / "run", scale="tiny", seeds=[0], engine=Serial())
    publish(made, tmp_path / "results", tmp_path / "verdicts.json")
    again = Run.open(tmp_path / "results")
    assert again.records == made.records
    drawn = {path.name for path in (tmp_path / "results" / "figures").iterdir()}
    assert drawn == {f"{name}-{e}.{k}" for e in ("changes", "final") for k in ("svg", "csv")}
    assert (
        f"{name}/order/seed 0" in (tmp_path / "results/figures" / f"{name}-final.svg").read_text()
    )
    assert '"undecided"' in (tmp_path / "verdicts.json").read_text()


def test_publishing_one_study_leaves_the_others_and_replaces_its_own(tmp_path):
    results, verdicts = tmp_path / "results", tmp_path / "verdicts.json"
    for name, seeds in (("order-in-training", [0]), ("functional-diversity", [0]),
                        ("order-in-training", [1])):  # fmt: skip
        made = run(name, tmp_path / f"{name}{seeds}", scale="tiny", seeds=seeds, engine=Serial())
        publish(made, results, verdicts)
    found = Run.open(results)
    earlier = verdicts.read_text().replace(json.loads(verdicts.read_text())["date"], "2026-01-02")
    verdicts.write_text(earlier)
    publish(found, results, verdicts)  # draws figures anew: nothing was run, and the dates stay
    assert json.loads(verdicts.read_text()) == json.loads(earlier)
    assert [(r.study, r.seed) for r in found.records] == [
        ("functional-diversity", 0),
        ("order-in-training", 1),
    ]
    facts = json.loads(verdicts.read_text())
    assert facts["seeds"] == {"functional-diversity": [0], "order-in-training": [1]}
    assert facts["dates"].keys() == facts["seeds"].keys()
    assert {each["study"] for each in facts["verdicts"]} == set(facts["seeds"])
    pictures = {path.stem for path in (results / "figures").glob("*.svg")}
    assert {name.rsplit("-", 1)[0] for name in pictures} == set(facts["seeds"])


def test_the_readme_begins_with_four_published_pictures_and_what_makes_them():
    first = (ROOT / "README.md").read_text().split("## Three lines")[0]
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]*)\)", first)
    assert len(pictures) == 4
    commands = re.findall(r"`coset study run ([^`]*)`", first)
    for picture, study in zip(pictures, commands, strict=True):
        assert (ROOT / picture).is_file()
        assert Path(picture).stem.startswith(study)
        assert study in names()
