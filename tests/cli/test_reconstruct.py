import re

import numpy as np
import pytest

from coset import cli


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
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(case, readings, tmp_path, capsys):
    words, told = BAD[case]
    words = [str(readings) if word == "READ" else word for word in words]
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
