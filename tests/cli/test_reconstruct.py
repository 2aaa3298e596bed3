import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from coset import cli
from coset.tomography import FanBeam, ParallelBeam, simulate

PAGE = Path(__file__).parents[2] / "docs" / "start" / "tomography.md"
COMMANDS = re.findall(r"^\$ coset (reconstruct .*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def readings(tmp_path):
    path = tmp_path / "readings.npy"
    places = np.arange(13) - 6
    disc = 2 * np.sqrt(np.clip(9 - places**2, 0, None)).astype("float32")
    np.save(path, np.tile(disc, (8, 1)) + 0.01)
    return path


def test_readings_become_a_page_and_arrays(readings, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    words = ["reconstruct", str(readings), "--angles", "8", "--steps", "60", "--out", str(out)]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert f"Report: {out / 'report.html'}" in shown.replace("\n", "")
    assert {each.name for each in out.iterdir()} == {
        "report.html", "image.npy", "standard_deviation.npy",
    }  # fmt: skip
    image = np.load(out / "image.npy", allow_pickle=False)
    assert image.shape == (9, 9)  # 13 bins over the diagonal
    assert image[4, 4] > 5 * abs(image[0, 0])
    page = (out / "report.html").read_text()
    assert "standard deviation" in page
    assert not re.search(r'(src|href)="https?:', page)


def made_for(words, size):
    """A file such as the page speaks of."""
    angles = int(words[words.index("--angles") + 1])
    photons = float(words[words.index("--photons") + 1]) if "--photons" in words else None
    scan = (FanBeam if "fan" in words else ParallelBeam)(size, angles)
    image = torch.full((2 * size, 2 * size), 3.0 / size)
    return simulate(image, scan, photons=photons, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page(command, tmp_path, capsys, monkeypatch):
    """Each as it is written, of a smaller image and in fewer steps."""
    monkeypatch.chdir(tmp_path)
    words, size = shlex.split(re.sub(r" --size \d+", "", command)), 8
    if "--example" not in words:
        made = made_for(words, size)
        np.save(words[1], made.readings.numpy())
    out = Path(words[words.index("--out") + 1] if "--out" in words else "coset-reconstruction")
    assert cli.main([*words, "--size", str(size), "--steps", "20"]) == 0
    shown = capsys.readouterr().out
    assert f"Report: {out / 'report.html'}" in shown.replace("\n", "")
    assert np.load(out / "image.npy").shape == (size, size)
    page = (out / "report.html").read_text()
    assert ("truth" in page) == ("--example" in words)
    if "--example" in words:  # what was made is beside, to be tried again
        assert "(true: " in shown
        angles = int(words[words.index("--angles") + 1]) if "--angles" in words else 40
        assert len(np.load(out / "readings.npy")) == angles
        assert "around the network’s image" in page
        assert np.load(out / "truth.npy").shape == (size, size)


def test_the_page_shows_every_geometry_and_counts():
    assert any("--example" in each for each in COMMANDS)
    assert any("--geometry fan" in each for each in COMMANDS)
    assert any("--photons" in each for each in COMMANDS)


@pytest.mark.parametrize("more", [["--geometry", "fan"], ["--photons", "1000"]])
def test_the_example_takes_every_geometry_and_counts(more, tmp_path, capsys):
    out = str(tmp_path / "out")
    small = ["--size", "8", "--angles", "6", "--steps", "20", "--out", out]
    assert cli.main(["reconstruct", "--example", *more, *small]) == 0
    assert "6 angles" in capsys.readouterr().out


BAD = {
    "nothing": ([], "READINGS"),
    "both": (["READ", "--example"], "--example"),
    "no angles": (["READ"], "--angles 8"),
    "wrong angles": (["READ", "--angles", "9"], "--angles 9"),
    "transposed": (["READ", "--angles", "13"], "transposed"),
    "no file": (["nowhere.npy", "--angles", "8"], "nowhere.npy"),
    "unknown geometry": (["READ", "--angles", "8", "--geometry", "cone"], "cone"),
    "photons": (["READ", "--angles", "8", "--photons", "-3"], "photons=-3"),
    "not counts": (["READ", "--angles", "8", "--photons", "1e4"], "line integrals"),
    "counts": (["COUNTS", "--angles", "8"], "(--photons)"),
    "dead bin": (["DEAD", "--angles", "8"], "(--missing nan)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(case, readings, tmp_path, capsys):
    words, told = BAD[case]
    values = np.load(readings)
    files = {"READ": values, "COUNTS": np.round(1000 * np.exp(-values)), "DEAD": values.copy()}
    files["DEAD"][:, 4] = np.nan
    for name, each in files.items():
        np.save(readings.with_name(f"{name}.npy"), each)
    words = [str(readings.with_name(f"{w}.npy")) if w in files else w for w in words]
    out = tmp_path / "out"
    assert cli.main(["reconstruct", *words, "--out", str(out)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("coset: ")
    assert told in line
    assert not out.exists()


def test_files_of_other_kinds_are_refused(tmp_path, capsys):
    path = tmp_path / "pickled.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    text = tmp_path / "text.npy"
    text.write_text("1 2 3")
    cube = tmp_path / "cube.npy"
    np.save(cube, np.zeros((2, 3, 4)))
    for each in (path, text, cube):
        assert cli.main(["reconstruct", str(each), "--angles", "2", "--out", str(tmp_path)]) == 2
        assert each.name in capsys.readouterr().err
