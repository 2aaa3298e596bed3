import subprocess
import sys
from pathlib import Path

import pytest

import coset
from coset import cli

LIGHT = """
import sys
import coset.cli
code = coset.cli.main({words!r})
slow = {{"torch", "matplotlib", "jinja2", "sklearn", "scipy", "numpy"}} & set(sys.modules)
print("code", code, "slow", sorted(slow))
"""


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["--version"], ["nonsense"]])
def test_help_loads_nothing_slow(words):
    script = LIGHT.format(words=words)
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    code = 2 if words == ["nonsense"] else 0
    assert found.stdout.splitlines()[-1] == f"code {code} slow []"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == coset.__version__


def test_python_runs_the_package_as_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "coset", "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == coset.__version__


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command in shown


def test_no_words_show_the_help(capsys):
    assert cli.main([]) == 0
    assert "demo" in capsys.readouterr().out


BAD = {
    "unknown command": (["demmo"], ["demmo", "demo"]),
    "unknown option": (["demo", "--memberz", "3"], ["--memberz", "--members"]),
    "no number": (["demo", "--seed", "abc"], ["--seed", "abc", "int"]),
    "a fraction": (["demo", "--members", "2.6"], ["--members", '"2.6"', "int"]),
    "too few": (["demo", "--members", "1"], ["--members", "1", ">= 2"]),
    "negative": (["demo", "--seed", "-1"], ["--seed", "-1", ">= 0"]),
    "one word too many": (["demo", "extra"], ["extra"]),
    "no value": (["demo", "--out"], ["--out"]),
}


@pytest.mark.parametrize(("words", "named"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_one_line(words, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("coset: ")
    assert "Try: coset" in error
    assert all(word in error for word in named)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused_before_any_work(capsys, tmp_path, monkeypatch):
    worked = []
    monkeypatch.setattr("coset.demo.run_demo", lambda *_, **__: worked.append(True))
    blocked = tmp_path / "taken"
    blocked.write_text("mine")
    for out in (blocked, blocked / "inside"):
        assert cli.main(["demo", "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert str(blocked) in error
    assert blocked.read_text() == "mine"
    assert not worked


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (coset.CosetError("got a\nlong story", "needed less"), 2, "got a long story; needed less"),
        (OSError(28, "No space left on device", "/x/report.html"), 2, "/x/report.html: No space"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures_inside_a_command_have_no_traceback(
    raised, code, message, capsys, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr("coset.demo.run_demo", fail)
    assert cli.main(["demo", "--out", str(tmp_path / "out")]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") <= 1
    assert not (tmp_path / "out").exists()


def test_the_installed_command_is_this_one():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert 'coset = "coset.cli:main"' in text
    assert '"cyclopts>=4"' in text  # before, an application could not be told what to do in the end
