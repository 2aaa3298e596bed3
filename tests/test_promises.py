"""Every promise of the documentation names a test, and every test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "concepts" / "promises.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| Promise |")
]


def test_every_row_names_a_test():
    assert len(ROWS) > 25
    assert all(re.search(r"`tests/[\w/]+\.py::test_\w+`", row) for row in ROWS)


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_a_named_test_exists(path, name):
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_slow_tests_are_called_so():
    """A promise that only ``make test-all`` checks says so, and no other."""
    for path, name in set(NAMED):
        tree = ast.parse((ROOT / path).read_text())
        found = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
        slow = any("mark.slow" in ast.unparse(mark) for mark in found.decorator_list)
        assert slow == (f"(slow) `{path}::{name}`" in PAGE), name
