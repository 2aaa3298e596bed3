"""The newcomer's page of zoos is what happens: its commands run in order, line by line."""

import math
import re
import shlex
from pathlib import Path

import pytest

from coset import cli
from coset.zoo.recipe import parse_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "zoo.md").read_text()
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
PROGRESS = re.compile(r"\[[#.]+\].*left.*a minute")


def sessions(text):
    """Commands of a page, and the lines they print."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((shlex.split(line[2:]), []))
            else:
                found[-1][1].append(line)
    return found


def masked(lines):
    """Lines without numbers and widths of columns."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in lines]


def numbers(lines):
    return [float(each.replace(",", "")) for each in NUMBER.findall(" ".join(lines))]


@pytest.mark.parametrize(
    "small",
    [
        pytest.param(True, id="tiny"),
        pytest.param(False, id="as it is", marks=[pytest.mark.slow, pytest.mark.data]),
    ],
)
def test_the_commands_print_what_the_page_says(small, tmp_path, monkeypatch, capfd):
    """With the recipe ``tiny`` in place of the page's, numbers are others and lines the same."""
    monkeypatch.chdir(tmp_path)
    text = PAGE
    if small:
        text = text.replace("optunet-mnist-small", "tiny").replace("--count 64", "--count 8")
        text = text.replace("ZOO --count", "ZOO --engine serial --count")
        text = text.replace("by 2 worker processes", "one after the other")
    for words, told in sessions(text):
        assert cli.main(words[1:]) == 0
        out, err = capfd.readouterr()
        expected = [line for line in told if not PROGRESS.fullmatch(line)]
        if len(expected) < len(told):
            assert "networks" in err, "progress is told"
        out = out.replace(" 1 worker process\n", " 2 worker processes\n")
        assert masked(out.splitlines()) == masked(expected)
        if not small and words[2] == "train":  # single networks differ between processors
            pairs = zip(numbers(out.splitlines()), numbers(expected), strict=True)
            assert all(math.isclose(ours, theirs, rel_tol=0.25) for ours, theirs in pairs)


def test_the_recipe_of_the_page_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    recipe = parse_recipe(text, where="the page", name="own")
    assert recipe.keep.epochs == (1, 2, 3)
