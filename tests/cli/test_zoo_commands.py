"""``coset zoo``: from nothing to a table, and refusals in one line."""

import subprocess
import sys
import time

import pytest

from coset import cli
from coset.zoo import Zoo, recipes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("commands") / "zoo"
    assert cli.main(["zoo", "train", "tiny", str(place), "--count", "4", "--engine", "serial"]) == 0
    return place


def test_training_ends_with_a_table(folder, capsys):
    assert cli.main(["zoo", "train", "tiny", str(folder), "--count=5", "--engine=serial"]) == 0
    out, err = capsys.readouterr()
    begin = f"Training 5 networks of the recipe tiny in {folder}, one after the other"
    assert out.splitlines()[0] == begin
    assert "networks           5 of 1,210 parameters" in out
    assert "excess of mass, %" in out
    assert out.splitlines()[-1] == f"Open it with: coset.zoo.Zoo.open({str(folder)!r})"
    assert "5 of 5 networks" in err
    assert len(Zoo.open(folder)) == 5


@pytest.mark.slow
def test_the_first_line_comes_within_two_seconds(tmp_path):
    """Of processor time; wall time depends on what else the machine does."""
    words = [sys.executable, "-X", "importtime", "-m", "coset", "zoo", "train", "tiny"]
    begun = time.monotonic()
    running = subprocess.Popen(
        [*words, str(tmp_path / "zoo"), "--count", "1", "--engine", "serial"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline().startswith("Training 1 networks of the recipe tiny")
    seconds = time.monotonic() - begun
    _, err = running.communicate()
    assert running.returncode == 0
    assert seconds < 10
    assert " torch\n" in err


def test_listing_packing_and_verifying(folder, capsys):
    assert cli.main(["zoo", "list", str(folder), "--where", "step is null", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    count = len(Zoo.open(folder))
    assert out.startswith(f"{count} of {2 * count} weights of {count} networks in {folder}")
    assert f"and {count - 2} more" in out
    assert cli.main(["zoo", "verify", str(folder)]) == 0
    assert f"{count} networks in {folder}, no faults" in capsys.readouterr().out
    assert cli.main(["zoo", "pack", str(folder), "--dtype", "float16"]) == 0
    assert f"{count} networks in 1 shard," in capsys.readouterr().out
    shard = folder / "shards" / "00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert cli.main(["zoo", "verify", str(folder)]) == 1
    assert "shards/00000.safetensors, member" in capsys.readouterr().out
    content[-1] ^= 1
    shard.write_bytes(content)


def test_recipes_are_listed(capsys):
    assert cli.main(["zoo", "recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(recipes())
    assert all(line.startswith(name) for line, name in zip(lines, recipes(), strict=True))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "tinny", "ZOO"], "'tinny'"),
        (["train", "tiny", "ZOO", "--count", "0"], "--count"),
        (["train", "tiny", "ZOO", "--engine", "threads"], "threads"),
        (["train", "tiny", "ZOO", "--engine", "serial", "--workers", "2"], "--workers 2"),
        (["train", "tiny", "ZOO", "--address", "auto"], "--address auto"),
        (["list", "ZOO"], "no zoo.json"),
        (["verify", "ZOO"], "no zoo.json"),
        (["pack", "ZOO"], "no zoo.json"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words, told, tmp_path, capsys):
    place = tmp_path / "none"
    assert cli.main(["zoo", *[str(place) if word == "ZOO" else word for word in words]]) == 2
    out, err = capsys.readouterr()
    assert told in err
    assert len(err.splitlines()) == 1
    assert not out
    assert not place.exists()


def test_a_file_in_the_way_is_named(tmp_path, capsys):
    place = tmp_path / "file"
    place.write_text("mine")
    assert cli.main(["zoo", "train", "tiny", str(place), "--count", "1"]) == 2
    assert f"got FOLDER {place}" in capsys.readouterr().err
    assert place.read_text() == "mine"
