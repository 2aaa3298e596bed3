"""Every file in examples/ runs, at a tiny size."""

import importlib.util
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
TINY = {
    "align_two_networks": {"width": 8, "epochs": 2},
    "uncertainty_in_three_lines": {"points": 60, "members": 2, "epochs": 3},
    "ensemble_on_digits": {"members": 2, "epochs": 2},
    "error_bars_by_method": {"points": 12, "epochs": 2, "draws": 20, "path": os.devnull},
    "estimate_depth": {"method": "map", "count": 10, "epochs": 1, "picture": os.devnull},
    "forecast_with_error_bars": {"length": 80, "steps": 5},
    "inspect_a_network": {"width": 4},
    "laplace_in_three_lines": {"points": 30, "steps": 50},
    "look_at_a_zoo": {"path": os.devnull},
    "noisy_regression": {"points": 60, "members": 2, "epochs": 3},
    "segment_camvid": {"data": "scenes", "count": 10, "epochs": 1, "picture": os.devnull},
    "read_published_networks": {"pictures": 20},
    "train_with_lightning": {"epochs": 2, "rows": 60},
}
NEEDED = {"train_with_lightning": "lightning"}
FILES = sorted(FOLDER.glob("*.py"))


def test_every_example_has_a_tiny_size():
    assert {path.stem for path in FILES} == TINY.keys()


# what Lightning says of itself
@pytest.mark.filterwarnings("ignore::Warning:lightning")
@pytest.mark.filterwarnings("ignore:.*(treespec|train_dataloader|does not have many workers)")
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_it_runs_and_prints_something(path, capsys):
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem], reason=f"needs the package {NEEDED[path.stem]}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(**TINY[path.stem])
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_it_is_short(path):
    assert len(path.read_text().splitlines()) <= 80
