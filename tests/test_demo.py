import json
import re

import pytest
import torch

from coset import cli
from coset.demo import METRICS, Settings, build_page, run_demo
from coset.errors import CosetError
from coset.report import render

SMALL = Settings(members=3, epochs=4)


@pytest.fixture(scope="module")
def result():
    return run_demo(SMALL)


def test_held_out_digits_are_nowhere_in_training(result):
    assert result.unseen_names == ("8", "9")
    assert result.data.classes == tuple("01234567")
    assert result.single.known.shape[2] == 8
    # 1347 training and 450 test digits, two of ten classes gone from both
    assert len(result.data.train_targets) + len(result.data.test_targets) < 1797
    trained = {tuple(row) for row in result.data.train_inputs.flatten(1).tolist()}
    tested = {tuple(row) for row in result.unseen[0].flatten(1).tolist()}
    assert not trained & tested


def test_the_same_seed_gives_the_same_numbers(result):
    again = run_demo(SMALL)
    assert again.rows() == result.rows()
    assert render(build_page(again)) == render(build_page(result))
    assert run_demo(Settings(seed=1, members=3, epochs=4)).rows() != result.rows()


def test_nobody_elses_random_numbers_change():
    before = torch.get_rng_state()
    run_demo(Settings(members=2, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("settings", [{"seed": "x"}, {"seed": -1}, {"seed": 0.5}])
def test_a_seed_is_a_whole_number(settings):
    with pytest.raises(CosetError, match="got seed="):
        Settings(**settings)


def test_even_a_short_run_learns_something(result):
    for outcome in result.outcomes:
        numbers = outcome.numbers()
        assert numbers["accuracy"] > 0.5
        assert numbers["AUROC by entropy"] > 0.5
    numbers = result.ensemble.numbers()
    assert numbers["disagreement, unseen"] > numbers["disagreement, known"]


def test_one_network_shows_no_disagreement(result):
    for row in result.rows():
        assert row[0] in METRICS
        assert (row[1] == "–") == ("disagreement" in row[0])


def test_the_page_stands_alone_and_holds_its_numbers(result):
    page = render(build_page(result))
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert "@import" not in page
    assert page.count("<svg") == 5
    assert page.count("data:text/csv") == 3
    assert page.count('src="data:image/png') == 32
    embedded = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page, re.S)
    numbers = json.loads(embedded.group(1))
    scores = numbers["scores"]["ensemble of 3"]
    assert scores.keys() == METRICS.keys()
    assert scores == result.ensemble.numbers()
    alone = numbers["scores"]["one network"]
    assert all((value is None) == ("disagreement" in metric) for metric, value in alone.items())
    assert f"{scores['accuracy']:.1%}" in page
    assert len(numbers["entropy"]["one network"]["known"]) == len(result.data.test_targets)


def test_the_command_ends_by_naming_the_file_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    code = cli.main(["demo", "--members", "2", "--epochs", "2", "--out", "a/b"])
    torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert code == 0
    assert shown.splitlines()[-1] == "Report: a/b/report.html"
    assert "accuracy" in shown
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["report.html"]


@pytest.mark.parametrize("bad", [{"members": 1}, {"epochs": 0}])
def test_settings_that_make_no_sense(bad):
    with pytest.raises(CosetError):
        Settings(**bad)
