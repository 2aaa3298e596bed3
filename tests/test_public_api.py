"""The public names: one table, one view for type checkers, one place in the documentation."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import coset

ROOT = Path(__file__).parents[1]
DOCUMENTED = set(
    re.findall(
        r"^\.\. auto(?:function|class|exception|data):: coset\.(\w+)$",
        "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")),
        re.MULTILINE,
    )
)
SLOW = ("torch", "matplotlib", "jinja2", "sklearn", "scipy", "numpy")


def names_for_type_checkers():
    """What stands under ``if TYPE_CHECKING`` in ``coset/__init__.py``."""
    tree = ast.parse(Path(coset.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.name == alias.asname, "re-exports repeat the name"
            found[alias.name] = node.module
    return found


def test_the_table_and_the_type_checkers_agree():
    assert names_for_type_checkers() == coset.NAMES


@pytest.mark.parametrize("name", coset.NAMES)
def test_every_name_is_there_described_and_documented(name):
    value = getattr(coset, name)
    assert value is getattr(import_module(coset.NAMES[name]), name)
    assert (value.__doc__ or "").strip()
    assert name in DOCUMENTED


def test_only_public_names_are_documented():
    assert set(coset.NAMES) >= DOCUMENTED


def test_rooms_are_reached_without_an_import():
    assert coset.metrics.accuracy is import_module("coset.metrics").accuracy
    assert set(coset.ROOMS) | set(coset.NAMES) <= set(dir(coset))
    assert set(coset.__all__) == set(coset.ROOMS) | set(coset.NAMES)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = coset.nonsense


def imported_by(statement):
    script = f"import sys; {statement}; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(found.stdout.split())


def test_importing_coset_imports_nothing_slow():
    assert not imported_by("import coset") & set(SLOW)


def test_fitting_and_predicting_need_no_plots():
    loaded = imported_by("from coset import fit, load, Predictor, metrics, data, models")
    assert not loaded & {"matplotlib", "jinja2", "sklearn", "torchvision"}
