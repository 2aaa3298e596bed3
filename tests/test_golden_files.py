"""Files of version 0.1, format 1, are read and predict what they did when they were written."""

import json

import pytest
import torch

import coset
from coset.posterior.records import FAMILIES
from coset.predictor import FORMAT
from coset.store import load_facts
from golden_predictors import CASES, FOLDER, module_of, told

pytestmark = pytest.mark.filterwarnings("ignore")  # the fits are far too short


def families_in(facts):
    """The classes that a record names."""
    if isinstance(facts, dict):
        if isinstance(facts.get("family"), str):
            yield facts["family"]
        facts = list(facts.values())
    if isinstance(facts, list):
        for part in facts:
            yield from families_in(part)


@pytest.mark.parametrize("name", CASES)
def test_a_file_of_this_format_is_read_and_predicts_the_same(name):
    path = FOLDER / f"{name}.safetensors"
    before = path.read_bytes()
    found = told(name, coset.load(path, module_of(name)))
    expected = json.loads(path.with_suffix(".json").read_text())
    for key, values in expected.items():
        if values is None:
            assert found[key] is None
        else:  # other machines round otherwise
            ours, theirs = (torch.tensor(v, dtype=torch.float64) for v in (found[key], values))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert path.read_bytes() == before
    assert load_facts(path)["format"] == FORMAT == 1


def test_every_class_that_a_file_may_hold_is_in_one():
    """Whoever adds a class adds a file: ``python tests/golden_predictors.py``."""
    held = {
        family for path in FOLDER.glob("*.safetensors") for family in families_in(load_facts(path))
    }
    assert set(FAMILIES) - held == set()


def test_the_files_are_small_and_belong_to_a_case():
    files = sorted(FOLDER.iterdir())
    assert {path.stem for path in files} == set(CASES)
    assert sum(path.stat().st_size for path in files) < 400_000
